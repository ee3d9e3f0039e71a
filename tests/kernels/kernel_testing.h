#ifndef LGPU_TESTS_KERNELS_KERNEL_TESTING_H_
#define LGPU_TESTS_KERNELS_KERNEL_TESTING_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/registry.h"

namespace lgpu::testing {

/// A random engine whose seed is in the test's output when it fails.
class Random {
 public:
  Random() : seed_(std::random_device{}()), engine_(seed_), trace_(__FILE__, __LINE__, Message()) {}
  std::mt19937& engine() { return engine_; }
  double Uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }
  std::int64_t Whole(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }

 private:
  std::string Message() const { return "seed " + std::to_string(seed_); }
  unsigned seed_;
  std::mt19937 engine_;
  ::testing::ScopedTrace trace_;
};

template <typename T>
T FromDouble(double value) {
  if constexpr (std::is_same_v<T, Half>) return FloatToHalf(static_cast<float>(value));
  if constexpr (std::is_same_v<T, BFloat16>) return FloatToBFloat16(static_cast<float>(value));
  if constexpr (std::is_arithmetic_v<T>) return static_cast<T>(value);
}
template <typename T>
double ToDouble(T value) {
  if constexpr (std::is_same_v<T, Half>) return HalfToFloat(value);
  if constexpr (std::is_same_v<T, BFloat16>) return BFloat16ToFloat(value);
  if constexpr (std::is_arithmetic_v<T>) return static_cast<double>(value);
}
/// Half the distance between neighbours, relative: one rounding costs at most this.
template <typename T>
constexpr double UnitRoundoff() {
  if constexpr (std::is_same_v<T, Half>) return 0x1p-11;
  if constexpr (std::is_same_v<T, BFloat16>) return 0x1p-8;
  if constexpr (std::is_same_v<T, float>) return 0x1p-24;
  if constexpr (std::is_same_v<T, double>) return 0x1p-53;
  return 0;
}

/// A host tensor.
template <typename T>
struct Array {
  Array(Shape s, std::vector<T> v) : shape(s), values(std::move(v)) {}
  explicit Array(Shape s) : shape(s), values(static_cast<std::size_t>(s.elements())) {}
  TensorView view() const {
    // Kernels do not write to inputs; a view has one type for inputs and outputs.
    auto* data = const_cast<T*>(values.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    return {reinterpret_cast<std::byte*>(data), {kDTypeOf<T>, shape}};
  }
  Shape shape;
  std::vector<T> values;
};

/// Runs `op` on the CPU into poisoned memory with guards on both sides, which must not change.
template <typename Out>
Array<Out> RunOnCpu(const Op& op, std::span<const TensorView> inputs, const OpAttributes& attributes = {}) {
  constexpr std::size_t kGuard = 64;
  std::vector<TensorSpec> specs;
  for (const TensorView& input : inputs) specs.push_back(input.spec);
  const absl::StatusOr<TensorSpec> spec = op.infer(specs, attributes);
  EXPECT_TRUE(spec.ok()) << spec.status();
  if (!spec.ok()) return Array<Out>(Shape{0});
  EXPECT_EQ(spec->dtype, kDTypeOf<Out>);
  Array<Out> result(spec->shape);
  const std::size_t size = result.values.size() * sizeof(Out);
  std::vector<std::byte> memory(size + 2 * kGuard, std::byte{0xff});  // NaN in every floating type
  const KernelRegistry registry = KernelRegistry::ForSimulatedDevices({});
  const Kernel* kernel = registry.Find(op, DeviceType::kCpu, inputs[0].spec.dtype);
  EXPECT_NE(kernel, nullptr);
  if (kernel == nullptr) return result;
  CpuLauncher launcher;
  const absl::Status status = kernel->run(inputs, {memory.data() + kGuard, *spec}, attributes, launcher);
  EXPECT_TRUE(status.ok()) << status;
  for (std::size_t i = 0; i < kGuard; ++i) {
    EXPECT_EQ(memory[i], std::byte{0xff});
    EXPECT_EQ(memory[kGuard + size + i], std::byte{0xff});
  }
  if (size != 0) std::memcpy(result.values.data(), memory.data() + kGuard, size);
  return result;
}

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_KERNELS_KERNEL_TESTING_H_
