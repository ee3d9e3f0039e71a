// Measures the runtime's part of an op (output allocation, placement, record) against the bare call on
// buffers that exist, in the same run; the record's part of a small copy; and a large matmul against OpenBLAS
// itself. On one simulated GPU of this process.

#include <benchmark/benchmark.h>
#include <cblas.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/gemm.h"
#include "kernels/registry.h"
#include "lgpu/lgpu.h"
#include "proto/wire/placement_ring.h"

namespace lgpu {
namespace {

/// The program's context; ends the program if there is none.
Context OpenContext() {
  const char* endpoint = std::getenv("LGPU_ENDPOINT");
  absl::StatusOr<Context> context =
      Context::Create({.endpoint = endpoint == nullptr ? "local:1x1GiB" : endpoint});
  if (!context.ok()) {
    std::cerr << "dispatch_bench: " << context.status() << "\n";
    std::exit(1);
  }
  return *std::move(context);
}

Tensor Square(const Context& context, std::int64_t size) {
  const std::vector<float> ones(static_cast<std::size_t>(size * size), 1);
  return context.Constant<float>({size, size}, ones).value();
}

/// The kernel of an op on buffers of this program, as the runtime calls it.
void RunBare(benchmark::State& state, const Op& op) {
  float data[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {}};
  const TensorSpec spec{DType::kFloat32, {2, 2}};
  const auto view = [&](int i) { return TensorView{reinterpret_cast<std::byte*>(data[i]), spec}; };
  const std::vector<TensorView> inputs = {view(0), view(1)};
  const TensorView output = view(2);
  const KernelRegistry registry = KernelRegistry::ForSimulatedDevices({});
  const Kernel* kernel = registry.Find(op, DeviceType::kGpu, DType::kFloat32);
  CpuLauncher launcher;
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernel->run(inputs, {&output, 1}, {}, launcher));
    benchmark::ClobberMemory();
  }
}

void BM_SmallAddNBare(benchmark::State& state) { RunBare(state, AddNOp()); }
void BM_SmallMatMulBare(benchmark::State& state) { RunBare(state, MatMulOp()); }

void BM_SmallAddN(benchmark::State& state, const Context* context) {
  const std::vector<Tensor> inputs = {Square(*context, 2), Square(*context, 2)};
  for (auto _ : state) benchmark::DoNotOptimize(AddN(inputs));
}
void BM_SmallMatMul(benchmark::State& state, const Context* context) {
  const Tensor a = Square(*context, 2);
  for (auto _ : state) benchmark::DoNotOptimize(MatMul(a, a));
}
void BM_SmallMatMulInScope(benchmark::State& state, const Context* context) {
  const Tensor a = Square(*context, 2);
  const DeviceScope scope(*context, "/GPU:0");
  for (auto _ : state) benchmark::DoNotOptimize(MatMul(a, a));
}

// The record's part of a copy: two looks at the clock and a Push.
void BM_CopyRecord(benchmark::State& state) {
  static const auto ring = std::make_unique<PlacementRing>();
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    benchmark::ClobberMemory();
    const auto took = std::chrono::steady_clock::now() - begin;
    ring->Push({.flags = PlacementEntry::kCopy,
                .output_bytes = 16,
                .submitted_unix_ns = static_cast<std::uint64_t>(begin.time_since_epoch().count()),
                .host_ns = static_cast<std::uint64_t>(took.count())});
  }
}
void BM_SmallConstant(benchmark::State& state, const Context* context) {
  const std::vector<float> ones(4, 1);
  for (auto _ : state) benchmark::DoNotOptimize(context->Constant<float>({2, 2}, ones));
}
void BM_SmallRead(benchmark::State& state, const Context* context) {
  const Tensor a = Square(*context, 2);
  float values[4] = {};
  for (auto _ : state) benchmark::DoNotOptimize(a.CopyToHost(values, sizeof(values)));
}

constexpr std::int64_t kLarge = 1024;

/// The product of OpenBLAS, or lgpu's own for machines without a BLAS.
void BM_LargeMatMulBlas(benchmark::State& state, decltype(&::cblas_sgemm) sgemm) {
  const std::vector<float> a(kLarge * kLarge, 1);
  std::vector<float> c(kLarge * kLarge);
  for (auto _ : state) {
    sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kLarge, kLarge, kLarge, 1, a.data(), kLarge, a.data(),
          kLarge, 0, c.data(), kLarge);
    benchmark::ClobberMemory();
  }
}
void BM_LargeMatMul(benchmark::State& state, const Context* context) {
  const Tensor a = Square(*context, kLarge);
  for (auto _ : state) benchmark::DoNotOptimize(MatMul(a, a));
}

}  // namespace
}  // namespace lgpu

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const lgpu::Context context = lgpu::OpenContext();
  benchmark::RegisterBenchmark("SmallAddN/bare", lgpu::BM_SmallAddNBare);
  benchmark::RegisterBenchmark("SmallAddN/runtime", lgpu::BM_SmallAddN, &context);
  benchmark::RegisterBenchmark("SmallMatMul/bare", lgpu::BM_SmallMatMulBare);
  benchmark::RegisterBenchmark("SmallMatMul/runtime", lgpu::BM_SmallMatMul, &context);
  benchmark::RegisterBenchmark("SmallMatMul/runtime_in_scope", lgpu::BM_SmallMatMulInScope, &context);
  benchmark::RegisterBenchmark("SmallCopy/record", lgpu::BM_CopyRecord);
  benchmark::RegisterBenchmark("SmallCopy/constant", lgpu::BM_SmallConstant, &context);
  benchmark::RegisterBenchmark("SmallCopy/read", lgpu::BM_SmallRead, &context);
  benchmark::RegisterBenchmark("MatMul1024/openblas", lgpu::BM_LargeMatMulBlas, &::cblas_sgemm)
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
  benchmark::RegisterBenchmark("MatMul1024/without_a_blas", lgpu::BM_LargeMatMulBlas, &lgpu::cpu::OwnSgemm)
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
  benchmark::RegisterBenchmark("MatMul1024/runtime", lgpu::BM_LargeMatMul, &context)
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
