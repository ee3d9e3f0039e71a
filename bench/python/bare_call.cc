// The C++ calls that python_bench.py compares with, on a simulated GPU: a MatMul of 2x2 floats with its
// output freed, or the copy of one float to the host. bare_call MatMul|CopyToHost CALLS prints nanoseconds
// per call.

#include <lgpu/lgpu.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string_view>

using namespace lgpu;

namespace {

template <typename Call>
absl::StatusOr<double> NanosecondsOf(int calls, const Call& call) {
  for (int i = 0; i < calls / 10; ++i) LGPU_RETURN_IF_ERROR(call());
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) LGPU_RETURN_IF_ERROR(call());
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  return took.count() / calls;
}

absl::StatusOr<double> Measure(std::string_view what, int calls) {
  LGPU_ASSIGN_OR_RETURN(const Context context, Context::Create({.logical_devices = {{.memory_limit = 32_MiB}},
                                                                .endpoint = "local:1x64MiB"}));
  LGPU_ASSIGN_OR_RETURN(const Tensor a, context.Constant<float>({{1, 2}, {3, 4}}));
  if (what == "MatMul") return NanosecondsOf(calls, [&a] { return MatMul(a, a).status(); });
  LGPU_ASSIGN_OR_RETURN(const Tensor scalar, context.Constant<float>(3.0F));
  float value = 0;
  return NanosecondsOf(calls, [&] { return scalar.CopyToHost(&value, sizeof(value)); });
}

}  // namespace

int main(int argc, char** argv) {
  const absl::StatusOr<double> nanoseconds =
      Measure(argc > 1 ? argv[1] : "MatMul", argc > 2 ? std::atoi(argv[2]) : 100000);
  if (!nanoseconds.ok()) {
    std::cerr << "bare_call: " << nanoseconds.status() << "\n";
    return 1;
  }
  std::cout << *nanoseconds << "\n";
  return 0;
}
