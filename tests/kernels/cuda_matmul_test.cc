// Tests of products that hold for a real GPU's library alone.

#include <memory>

#include "allocator/device/cuda/cuda_backend.h"
#include "base/check.h"
#include "tests/kernels/device_runner.h"
#include "tests/kernels/kernel_testing.h"

namespace lgpu {
namespace {

using testing::Array;

template <typename T>
class NarrowMatMulTest : public ::testing::Test {};
using Narrow = ::testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(NarrowMatMulTest, Narrow);

// The first half of each sum is 78000, which is more than half has and more bits than bfloat16 has; the whole
// is 1200.
TYPED_TEST(NarrowMatMulTest, PartialSumsAreNotRounded) {
  constexpr std::int64_t kSize = 16;
  constexpr std::int64_t kLength = 600;
  Array<TypeParam> a(Shape{kSize, kLength});
  Array<TypeParam> b(Shape{kLength, kSize});
  for (auto& value : a.values) value = testing::FromDouble<TypeParam>(1);
  for (std::size_t i = 0; i < b.values.size(); ++i) {
    b.values[i] = testing::FromDouble<TypeParam>(i < b.values.size() / 2 ? 260 : -256);
  }
  const std::vector<TensorView> inputs = {a.view(), b.view()};
  const auto product = testing::RunOp<TypeParam>(MatMulOp(), inputs);
  for (const TypeParam value : product.values) ASSERT_EQ(testing::ToDouble(value), 1200);
}

// 1 + 2^-12 has more bits than TensorFloat-32.
TEST(TensorFloat32Test, FactorsAreRoundedWhereItIsAskedFor) {
  const auto product = [](const MatMulLibrary::Options& options) {
    absl::StatusOr<std::unique_ptr<DeviceBackend>> backend = OpenCudaBackend();
    LGPU_CHECK(backend.ok());
    const std::unique_ptr<testing::KernelRunner> runner = testing::MakeDeviceRunner(
        *std::move(backend), KernelRegistry::ForCudaDevices({}), MatMulLibrary::Make(options));
    constexpr std::int64_t kSize = 64;  // tensor cores are for whole tiles
    Array<float> a(Shape{kSize, kSize});
    Array<float> b(Shape{kSize, kSize});
    for (std::size_t i = 0; i < kSize; ++i) {
      a.values[i * kSize + i] = 1 + 0x1p-12F;
      b.values[i * kSize + i] = 1;
    }
    const Kernel* const kernel = runner->registry().Find(MatMulOp(), DeviceType::kGpu, DType::kFloat32);
    LGPU_CHECK(kernel != nullptr);
    const std::vector<TensorView> inputs = {a.view(), b.view()};
    const std::vector<TensorSpec> outputs = {{DType::kFloat32, Shape{kSize, kSize}}};
    const std::vector<std::size_t> shifts = {0, 0, 0};
    const auto raw = testing::RunInArena(*runner, *kernel, inputs, outputs, {}, shifts);
    float first = 0;
    std::memcpy(&first, raw.at(0).data(), sizeof(first));
    return first;
  };
  EXPECT_EQ(product({}), 1 + 0x1p-12F);
  EXPECT_EQ(product({.tensor_float_32 = true}), 1.0F);
}

}  // namespace
}  // namespace lgpu
