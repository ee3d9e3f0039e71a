#ifndef LGPU_TESTS_KERNELS_KERNEL_TESTING_H_
#define LGPU_TESTS_KERNELS_KERNEL_TESTING_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/registry.h"
#include "tests/kernels/kernel_runner.h"
#include "tests/support/test_seed.h"

namespace lgpu::testing {

/// A random engine with the seed of this run of the tests.
class Random {
 public:
  Random() : engine_(TestSeed()) {}
  std::mt19937& engine() { return engine_; }
  double Uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }
  std::int64_t Whole(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }

 private:
  std::mt19937 engine_;
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

/// Where the tensors of a test lie: bytes behind addresses that are aligned to 256; the inputs, then the
/// outputs. The last one counts for all further ones.
using Shifts = std::vector<std::size_t>;

/// Runs `op` on the device of this program (kernel_runner.h) into poisoned memory; the memory between the
/// tensors must not change.
inline std::vector<std::vector<std::byte>> RunRaw(const Op& op, std::span<const TensorView> inputs,
                                                  const OpAttributes& attributes, const Shifts& shifts,
                                                  std::vector<TensorSpec>& outputs) {
  std::vector<TensorSpec> specs;
  for (const TensorView& input : inputs) specs.push_back(input.spec);
  const absl::StatusOr<TensorSpec> spec = op.Infer(specs, attributes);
  EXPECT_TRUE(spec.ok()) << spec.status();
  if (!spec.ok()) return {};
  outputs = {*spec};
  if (op.infer_second != nullptr) outputs.push_back(op.infer_second(specs, attributes));
  KernelRunner& runner = ThisRunner();
  const Kernel* kernel = runner.registry().Find(op, runner.type(), inputs[0].spec.dtype);
  EXPECT_NE(kernel, nullptr) << op.name << " of " << DTypeName(inputs[0].spec.dtype);
  if (kernel == nullptr) return {};
  return RunInArena(runner, *kernel, inputs, outputs, attributes, shifts);
}

/// The first output.
template <typename Out>
Array<Out> RunOp(const Op& op, std::span<const TensorView> inputs, const OpAttributes& attributes = {},
                 const Shifts& shifts = {0}) {
  std::vector<TensorSpec> outputs;
  const std::vector<std::vector<std::byte>> raw = RunRaw(op, inputs, attributes, shifts, outputs);
  if (raw.empty()) return Array<Out>(Shape{0});
  EXPECT_EQ(outputs[0].dtype, kDTypeOf<Out>);
  Array<Out> result(outputs[0].shape);
  if (!raw[0].empty()) std::memcpy(result.values.data(), raw[0].data(), raw[0].size());
  return result;
}

/// Whether this program's device has a kernel for it that can run; some are the CPU's only.
inline bool HasKernel(const Op& op, DType dtype) {
  const Kernel* const kernel = ThisRunner().registry().Find(op, ThisRunner().type(), dtype);
  return kernel != nullptr && ThisRunner().CanRun(*kernel);
}
#define SKIP_WITHOUT_KERNEL(op, dtype) \
  if (!::lgpu::testing::HasKernel(op, dtype)) GTEST_SKIP() << (op).name << " has no kernel here"

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_KERNELS_KERNEL_TESTING_H_
