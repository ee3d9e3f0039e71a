#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/kernel_testing.h"

namespace lgpu {
namespace {

using testing::Array;
using testing::FromDouble;
using testing::Random;
using testing::RunOp;
using testing::ToDouble;

AxisList List(const std::vector<int>& axes) {
  AxisList list;
  for (const int axis : axes) list.values[static_cast<std::size_t>(list.count++)] = axis;
  return list;
}

template <typename T>
class ReduceTest : public ::testing::Test {};
using Floating = ::testing::Types<float, double, Half, BFloat16>;
TYPED_TEST_SUITE(ReduceTest, Floating);

// |result - exact| <= n * 2^-53 * sum |x| + u(T) * |exact|, and the same over n for the mean.
template <typename T>
void CheckReduce(const Shape& shape, const std::vector<int>& axes, Random& random, std::size_t shift) {
  Array<T> input(shape);
  for (auto& value : input.values) value = FromDouble<T>(random.Uniform(-1, 1));
  std::uint32_t reduced = 0;
  for (const int axis : axes) reduced |= 1U << (axis < 0 ? axis + shape.rank() : axis);
  const std::vector<TensorView> inputs = {input.view()};
  const auto sum = RunOp<T>(SumOp(), inputs, {.axes = List(axes)}, {shift});
  const auto mean = RunOp<T>(MeanOp(), inputs, {.axes = List(axes), .keep_dims = true}, {shift});
  std::vector<long double> exact(sum.values.size(), 0);
  std::vector<long double> size(sum.values.size(), 0);
  for (std::size_t i = 0; i < input.values.size(); ++i) {
    std::size_t rest = i;
    std::size_t output = 0;
    std::size_t step = 1;
    for (int d = shape.rank() - 1; d >= 0; --d) {
      const auto length = static_cast<std::size_t>(shape[d]);
      if ((reduced >> d & 1U) == 0) {
        output += rest % length * step;
        step *= length;
      }
      rest /= length;
    }
    exact[output] += ToDouble(input.values[i]);
    size[output] += std::fabs(ToDouble(input.values[i]));
  }
  ASSERT_EQ(mean.values.size(), sum.values.size());
  const auto terms =
      static_cast<long double>(input.values.size()) / static_cast<long double>(sum.values.size());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const long double bound =
        terms * 0x1p-53L * size[i] + testing::UnitRoundoff<T>() * std::fabs(exact[i]) + 0x1p-25L * 0x1p-20L;
    ASSERT_LE(std::fabs(ToDouble(sum.values[i]) - exact[i]), bound) << shape << " " << i;
    const long double average = exact[i] / terms;
    const long double mean_bound = bound / terms + testing::UnitRoundoff<T>() * std::fabs(average) +
                                   (sizeof(T) == 2 ? 0x1p-25L : 0);  // half's least numbers
    ASSERT_LE(std::fabs(ToDouble(mean.values[i]) - average), mean_bound) << shape << " " << i;
  }
}

TYPED_TEST(ReduceTest, MatchesAnExactReference) {
  Random random;
  const std::pair<Shape, std::vector<int>> cases[] = {
      {{1}, {0}},        {{1000}, {0}},    {{7, 300}, {1}},        {{300, 7}, {0}},
      {{300, 70}, {-2}}, {{5, 6, 7}, {1}}, {{5, 6, 7}, {0, 2}},    {{5, 6, 7}, {0, 1, 2}},
      {{5, 6, 7}, {}},   {{3, 1, 4}, {1}}, {{2, 3, 4, 5}, {1, 3}}, {{2000, 10}, {1}},
      {{11, 1500}, {0}}, {{4097}, {0}}};
  for (const auto& [shape, axes] : cases) {
    CheckReduce<TypeParam>(shape, axes, random, 0);
    CheckReduce<TypeParam>(shape, axes, random, sizeof(TypeParam));
  }
}

// On GPUs: 4,096 blocks of a launch have 256 threads each, of which one loads 16 bytes at a time.
TYPED_TEST(ReduceTest, OutputsBeyondTheBlocksOfALaunch) {
  constexpr std::int64_t kTerms = 64;
  constexpr std::int64_t kThreadsOfOutput = kTerms * sizeof(TypeParam) / 16;
  Random random;
  CheckReduce<TypeParam>(Shape{4097 * 256 / kThreadsOfOutput, kTerms}, {1}, random, 0);
}

// A few outputs of many terms each are sums of parts, of uneven length.
TYPED_TEST(ReduceTest, SumsInPartsMatchAnExactReference) {
  Random random;
  const std::pair<Shape, std::vector<int>> cases[] = {
      {{300'001}, {0}}, {{3, 100'003}, {1}}, {{20'011, 7}, {0}}, {{90, 80, 70}, {0, 2}}, {{8192, 2}, {0, 1}}};
  for (const auto& [shape, axes] : cases) {
    CheckReduce<TypeParam>(shape, axes, random, 0);
    CheckReduce<TypeParam>(shape, axes, random, sizeof(TypeParam));
  }
}

TYPED_TEST(ReduceTest, NothingSumsToZeroAndHasNoMean) {
  const Array<TypeParam> empty(Shape{0, 3});
  const std::vector<TensorView> inputs = {empty.view()};
  const auto sum = RunOp<TypeParam>(SumOp(), inputs, {.axes = List({0})});
  ASSERT_EQ(sum.shape, (Shape{3}));
  for (const TypeParam value : sum.values) EXPECT_EQ(ToDouble(value), 0);
  for (const TypeParam value : RunOp<TypeParam>(MeanOp(), inputs, {.axes = List({0})}).values) {
    EXPECT_TRUE(std::isnan(ToDouble(value)));
  }
  EXPECT_EQ(RunOp<TypeParam>(SumOp(), inputs, {.axes = List({1})}).shape, (Shape{0}));
}

// As TensorFlow 2.21 does on its CPU.
TEST(WholeReduceTest, MeansAreExactAndRoundedTowardsZero) {
  SKIP_WITHOUT_KERNEL(MeanOp(), DType::kInt32);
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  const auto mean = [](const std::vector<std::int32_t>& values) {
    const Array<std::int32_t> input(Shape{static_cast<std::int64_t>(values.size())}, values);
    return RunOp<std::int32_t>(MeanOp(), std::vector<TensorView>{input.view()}, {.axes = List({0})}).values;
  };
  EXPECT_EQ(mean({-1, 2, 7}), std::vector<std::int32_t>{2});
  EXPECT_EQ(mean({-1, -2, -4}), std::vector<std::int32_t>{-2});
  EXPECT_EQ(mean({kMax, kMax}), std::vector<std::int32_t>{kMax});
  EXPECT_EQ(mean({}), std::vector<std::int32_t>{0});
  EXPECT_EQ(mean(std::vector<std::int32_t>(300'001, -3)), std::vector<std::int32_t>{-3});  // in parts
  const Array<std::int64_t> wide(Shape{3}, {-1, 2, 8});
  EXPECT_EQ(RunOp<std::int64_t>(MeanOp(), std::vector<TensorView>{wide.view()}, {.axes = List({0})}).values,
            std::vector<std::int64_t>{3});
}

TYPED_TEST(ReduceTest, NanAndInfinityComeThrough) {
  const auto of = [](double value) { return FromDouble<TypeParam>(value); };
  const double infinity = std::numeric_limits<double>::infinity();
  const Array<TypeParam> input(Shape{3, 2},
                               {of(std::nan("")), of(1), of(infinity), of(1), of(infinity), of(-infinity)});
  const std::vector<TensorView> inputs = {input.view()};
  const auto sum = RunOp<TypeParam>(SumOp(), inputs, {.axes = List({1})});
  EXPECT_TRUE(std::isnan(ToDouble(sum.values[0])));
  EXPECT_EQ(ToDouble(sum.values[1]), infinity);
  EXPECT_TRUE(std::isnan(ToDouble(sum.values[2])));
}

// More ones than a sum in the tensor's own type could count.
TYPED_TEST(ReduceTest, SumsAreWide) {
  const Array<TypeParam> ones(Shape{8192}, std::vector<TypeParam>(8192, FromDouble<TypeParam>(1)));
  const std::vector<TensorView> inputs = {ones.view()};
  EXPECT_EQ(ToDouble(RunOp<TypeParam>(SumOp(), inputs, {.axes = {.all = true}}).values[0]), 8192);
}

TEST(WholeReduceTest, SumWrapsAround) {
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  const Array<std::int32_t> input(Shape{2, 2}, {kMax, 1, -3, 5});
  const std::vector<TensorView> inputs = {input.view()};
  EXPECT_EQ(RunOp<std::int32_t>(SumOp(), inputs, {.axes = List({1})}).values,
            (std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::min(), 2}));
}

template <typename T>
void ExpectWrappedSum(std::int64_t elements) {
  using Unsigned = std::make_unsigned_t<T>;
  Random random;
  Array<T> input(Shape{elements});
  Unsigned sum = 0;
  for (T& value : input.values) {
    value = static_cast<T>(random.Whole(std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
    sum += static_cast<Unsigned>(value);
  }
  const std::vector<TensorView> inputs = {input.view()};
  EXPECT_EQ(RunOp<T>(SumOp(), inputs, {.axes = {.all = true}}).values[0], static_cast<T>(sum));
}

TEST(WholeReduceTest, SumInPartsWrapsAround) {
  ExpectWrappedSum<std::int32_t>(200'003);
  ExpectWrappedSum<std::int64_t>(200'003);
}

}  // namespace
}  // namespace lgpu
