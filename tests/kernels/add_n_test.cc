#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/kernel_testing.h"

namespace lgpu {
namespace {

using testing::Array;
using testing::Random;
using testing::RunOp;

template <typename T>
class AddNTest : public ::testing::Test {};
using Floating = ::testing::Types<float, double, Half, BFloat16>;
TYPED_TEST_SUITE(AddNTest, Floating);

// |result - exact| <= n * u(accumulation) * sum |x| + u(T) * |exact|.
TYPED_TEST(AddNTest, MatchesAnExactReference) {
  Random random;
  for (const std::int64_t elements : {1, 7, 2048, 5001}) {
    for (const int count : {1, 2, 3, 4, 5, 9, 33}) {
      std::vector<Array<TypeParam>> arrays;
      std::vector<TensorView> inputs;
      for (int i = 0; i < count; ++i) {
        arrays.emplace_back(Shape{elements});
        for (auto& value : arrays.back().values) {
          value = testing::FromDouble<TypeParam>(random.Uniform(-8, 8));
        }
      }
      for (const auto& array : arrays) inputs.push_back(array.view());
      const auto sum = RunOp<TypeParam>(AddNOp(), inputs);
      const double unit = std::is_same_v<TypeParam, double> ? 0x1p-53 : 0x1p-24;
      for (std::size_t i = 0; i < static_cast<std::size_t>(elements); ++i) {
        long double exact = 0;
        long double size = 0;
        for (const auto& array : arrays) {
          exact += testing::ToDouble(array.values[i]);
          size += std::fabs(testing::ToDouble(array.values[i]));
        }
        const long double bound =
            count * unit * size + testing::UnitRoundoff<TypeParam>() * std::fabs(exact) + 0x1p-25L;
        ASSERT_LE(std::fabs(testing::ToDouble(sum.values[i]) - exact), bound) << i << " of " << count;
      }
    }
  }
}

// The sum in the order of the inputs, in float for half and bfloat16, rounded once: the same bits on every
// device.
TYPED_TEST(AddNTest, EveryDeviceSumsInTheSameOrder) {
  using Sum = std::conditional_t<std::is_same_v<TypeParam, double>, double, float>;
  Random random;
  for (const int count : {2, 3, 8, 32, 33, 70}) {
    const std::int64_t elements = random.Whole(1, 3000);
    std::vector<Array<TypeParam>> arrays;
    std::vector<TensorView> inputs;
    for (int i = 0; i < count; ++i) {
      arrays.emplace_back(Shape{elements});
      for (auto& value : arrays.back().values) {
        value = testing::FromDouble<TypeParam>(random.Uniform(-1, 1) * std::exp2(random.Whole(-9, 9)));
      }
    }
    for (const auto& array : arrays) inputs.push_back(array.view());
    // Tensors that begin at aligned addresses, at equally misaligned ones, and anywhere.
    const std::size_t size = sizeof(TypeParam);
    for (const testing::Shifts& shifts : {testing::Shifts{0}, {size}, {3 * size, size, 0, 2 * size}}) {
      const auto sum = RunOp<TypeParam>(AddNOp(), inputs, {}, shifts);
      for (std::size_t i = 0; i < static_cast<std::size_t>(elements); ++i) {
        Sum expected = static_cast<Sum>(testing::ToDouble(arrays[0].values[i]));
        for (int k = 1; k < count; ++k) {
          expected += static_cast<Sum>(testing::ToDouble(arrays[static_cast<std::size_t>(k)].values[i]));
        }
        ASSERT_EQ(testing::ToDouble(sum.values[i]),
                  testing::ToDouble(testing::FromDouble<TypeParam>(expected)))
            << i << " of " << elements << ", " << count << " inputs";
      }
    }
  }
}

// One rounding over all inputs of a launch: ones beyond the last bit of a half sum still count.
TYPED_TEST(AddNTest, RoundsOnce) {
  const TypeParam one = testing::FromDouble<TypeParam>(1);
  const Array<TypeParam> large(Shape{1}, {testing::FromDouble<TypeParam>(2048)});
  const Array<TypeParam> small(Shape{1}, {one});
  std::vector<TensorView> inputs = {large.view()};
  for (int i = 0; i < 256; ++i) inputs.push_back(small.view());
  EXPECT_EQ(testing::ToDouble(RunOp<TypeParam>(AddNOp(), inputs).values[0]), 2304);
}

TYPED_TEST(AddNTest, TakesMoreInputsThanOneLaunchCarries) {
  const Array<TypeParam> one(Shape{3}, std::vector<TypeParam>(3, testing::FromDouble<TypeParam>(0.125)));
  const std::vector<TensorView> inputs(1000, one.view());
  for (const TypeParam value : RunOp<TypeParam>(AddNOp(), inputs).values) {
    EXPECT_EQ(testing::ToDouble(value), 125);
  }
}

TYPED_TEST(AddNTest, KeepsNanInfinityAndTheSignOfZero) {
  const auto of = [](double value) { return testing::FromDouble<TypeParam>(value); };
  const double infinity = std::numeric_limits<double>::infinity();
  const Array<TypeParam> a(Shape{4}, {of(std::nan("")), of(infinity), of(infinity), of(-0.0)});
  const Array<TypeParam> b(Shape{4}, {of(1), of(1), of(-infinity), of(-0.0)});
  const std::vector<TensorView> inputs = {a.view(), b.view()};
  const auto sum = RunOp<TypeParam>(AddNOp(), inputs);
  EXPECT_TRUE(std::isnan(testing::ToDouble(sum.values[0])));
  EXPECT_EQ(testing::ToDouble(sum.values[1]), infinity);
  EXPECT_TRUE(std::isnan(testing::ToDouble(sum.values[2])));
  EXPECT_TRUE(std::signbit(testing::ToDouble(sum.values[3])));
}

TYPED_TEST(AddNTest, ReadsAnInputTwiceWhereItComesTwice) {
  const Array<TypeParam> one(Shape{5}, std::vector<TypeParam>(5, testing::FromDouble<TypeParam>(1.5)));
  const std::vector<TensorView> inputs(3, one.view());
  for (const TypeParam value : RunOp<TypeParam>(AddNOp(), inputs).values) {
    EXPECT_EQ(testing::ToDouble(value), 4.5);
  }
}

TYPED_TEST(AddNTest, TensorsWithoutElementsAreSummed) {
  const Array<TypeParam> empty(Shape{2, 0});
  const std::vector<TensorView> inputs = {empty.view(), empty.view()};
  EXPECT_EQ(RunOp<TypeParam>(AddNOp(), inputs).shape, (Shape{2, 0}));
}

TEST(WholeAddNTest, WrapsAround) {
  const Array<std::int32_t> a(Shape{2}, {std::numeric_limits<std::int32_t>::max(), -5});
  const Array<std::int32_t> b(Shape{2}, {1, 3});
  const std::vector<TensorView> inputs = {a.view(), b.view()};
  EXPECT_EQ(RunOp<std::int32_t>(AddNOp(), inputs).values,
            (std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::min(), -2}));
  const Array<std::int64_t> c(Shape{1}, {std::numeric_limits<std::int64_t>::min()});
  const std::vector<TensorView> wide = {c.view(), c.view(), c.view()};
  EXPECT_EQ(RunOp<std::int64_t>(AddNOp(), wide).values[0], std::numeric_limits<std::int64_t>::min());
}

}  // namespace
}  // namespace lgpu
