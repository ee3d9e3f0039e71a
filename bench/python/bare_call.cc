// The C++ call that python_bench.py compares with: a MatMul of 2x2 floats on a simulated GPU, with its output
// freed. Prints the nanoseconds per call.

#include <lgpu/lgpu.h>

#include <chrono>
#include <cstdlib>
#include <iostream>

using namespace lgpu;

namespace {

absl::StatusOr<double> Measure(int calls) {
  LGPU_ASSIGN_OR_RETURN(const Context context, Context::Create({.logical_devices = {{.memory_limit = 32_MiB}},
                                                                .endpoint = "local:1x64MiB"}));
  LGPU_ASSIGN_OR_RETURN(const Tensor a, context.Constant<float>({{1, 2}, {3, 4}}));
  for (int i = 0; i < calls / 10; ++i) LGPU_RETURN_IF_ERROR(MatMul(a, a).status());
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) LGPU_RETURN_IF_ERROR(MatMul(a, a).status());
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  return took.count() / calls;
}

}  // namespace

int main(int argc, char** argv) {
  const absl::StatusOr<double> nanoseconds = Measure(argc > 1 ? std::atoi(argv[1]) : 100000);
  if (!nanoseconds.ok()) {
    std::cerr << "bare_call: " << nanoseconds.status() << "\n";
    return 1;
  }
  std::cout << *nanoseconds << "\n";
  return 0;
}
