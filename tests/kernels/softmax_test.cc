#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/kernels/kernel_testing.h"

namespace lgpu {
namespace {

using testing::Array;
using testing::FromDouble;
using testing::Random;
using testing::ToDouble;

template <typename T>
class SoftmaxTest : public ::testing::Test {};
using Floating = ::testing::Types<float, double, Half, BFloat16>;
TYPED_TEST_SUITE(SoftmaxTest, Floating);

template <typename T>
struct Result {
  std::vector<T> loss, backprop;
};
template <typename T, typename Label>
Result<T> CrossEntropy(const Array<T>& logits, const Array<Label>& labels,
                       const testing::Shifts& shifts = {0}) {
  const std::vector<TensorView> inputs = {logits.view(), labels.view()};
  std::vector<TensorSpec> specs;
  const auto raw = testing::RunRaw(SoftmaxCrossEntropyOp(), inputs, {}, shifts, specs);
  Result<T> result;
  if (raw.size() != 2) return result;
  result.loss.resize(raw[0].size() / sizeof(T));
  result.backprop.resize(raw[1].size() / sizeof(T));
  if (!raw[0].empty()) std::memcpy(result.loss.data(), raw[0].data(), raw[0].size());
  if (!raw[1].empty()) std::memcpy(result.backprop.data(), raw[1].data(), raw[1].size());
  return result;
}

// Exponentials are computed in float but for double: each costs a few units of the last bit, their sum and
// the logarithm less. |loss - exact| <= 16 u' (1 + |exact| + spread) + u(T) |exact|; the gradient 16 u' +
// u(T) |exact|, where u' is float's (double's for double) and spread the distance of the largest logit from
// the least.
template <typename T, typename Label>
void CheckAgainstReference(std::int64_t rows, std::int64_t classes, double spread, Random& random) {
  Array<T> logits(Shape{rows, classes});
  for (auto& value : logits.values) value = FromDouble<T>(random.Uniform(-spread / 2, spread / 2));
  Array<Label> labels(Shape{rows});
  for (auto& label : labels.values) label = static_cast<Label>(random.Whole(0, classes - 1));
  const Result<T> result = CrossEntropy(logits, labels, {0, 8, sizeof(T), 2 * sizeof(T)});
  const long double unit = std::is_same_v<T, double> ? 0x1p-53L : 0x1p-24L;
  const long double own = testing::UnitRoundoff<T>();
  const long double least = sizeof(T) == 2 ? 0x1p-25L : 0;
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
    const T* const row = logits.values.data() + r * static_cast<std::size_t>(classes);
    long double most = ToDouble(row[0]);
    for (std::int64_t c = 1; c < classes; ++c) {
      most = std::fmax(most, static_cast<long double>(ToDouble(row[c])));
    }
    long double sum = 0;
    for (std::int64_t c = 0; c < classes; ++c) {
      sum += std::exp(static_cast<long double>(ToDouble(row[c])) - most);
    }
    const long double loss = std::log(sum) + most - static_cast<long double>(ToDouble(row[labels.values[r]]));
    ASSERT_LE(std::fabs(ToDouble(result.loss[r]) - loss),
              16 * unit * (1 + std::fabs(loss) + spread) + own * std::fabs(loss) + least);
    for (std::int64_t c = 0; c < classes; ++c) {
      const long double share = std::exp(static_cast<long double>(ToDouble(row[c])) - most) / sum;
      const long double exact = share - (c == labels.values[r] ? 1 : 0);
      const double actual =
          ToDouble(result.backprop[r * static_cast<std::size_t>(classes) + static_cast<std::size_t>(c)]);
      ASSERT_LE(std::fabs(actual - exact), 16 * unit * (1 + spread) + own * std::fabs(exact) + least)
          << r << "," << c;
    }
  }
}

TYPED_TEST(SoftmaxTest, MatchesAnExactReference) {
  Random random;
  for (const std::int64_t classes : {1, 2, 10, 33, 300}) {
    for (const std::int64_t rows : {1, 5, 130}) {
      CheckAgainstReference<TypeParam, std::int64_t>(rows, classes, 8, random);
      CheckAgainstReference<TypeParam, std::int32_t>(rows, classes, 40, random);
    }
  }
  // So long that a thread of a GPU has several loads on their way.
  CheckAgainstReference<TypeParam, std::int32_t>(3, 2000, 8, random);
  CheckAgainstReference<TypeParam, std::int32_t>(2, 9001, 8, random);
}

// On GPUs: a block has 64 rows of so few classes at a time, and a launch 4,096 blocks, of which four go on.
// Rows that are 16 apart lie alike, so equal ones have the same bits.
TYPED_TEST(SoftmaxTest, RowsBeyondTheBlocksOfALaunch) {
  constexpr std::int64_t kRows = 64 * (4096 + 3) + 5, kPeriod = 16;
  constexpr std::int64_t kClasses = 2 * 16 / static_cast<std::int64_t>(sizeof(TypeParam)) + 1;
  Random random;
  Array<TypeParam> logits(Shape{kRows, kClasses});
  for (std::size_t i = 0; i < logits.values.size(); ++i) {
    constexpr auto kRepeat = static_cast<std::size_t>(kPeriod * kClasses);
    logits.values[i] =
        i < kRepeat ? FromDouble<TypeParam>(random.Uniform(-4, 4)) : logits.values[i - kRepeat];
  }
  Array<std::int32_t> labels(Shape{kRows});
  for (std::size_t r = 0; r < labels.values.size(); ++r) labels.values[r] = static_cast<std::int32_t>(r % 2);
  const Result<TypeParam> result = CrossEntropy(logits, labels);
  ASSERT_EQ(result.loss.size(), static_cast<std::size_t>(kRows));
  const auto repeats = [](const std::vector<TypeParam>& values, std::size_t each) {
    return std::memcmp(values.data(), values.data() + each * kPeriod,
                       (values.size() - each * kPeriod) * sizeof(TypeParam)) == 0;
  };
  EXPECT_TRUE(repeats(result.loss, 1));
  EXPECT_TRUE(repeats(result.backprop, kClasses));
  EXPECT_GT(ToDouble(result.loss[0]), 0);
}

// The largest logit so far rises with each.
TYPED_TEST(SoftmaxTest, RisingLogitsLoseNothing) {
  constexpr std::int64_t kClasses = 1000;
  Array<TypeParam> logits(Shape{1, kClasses});
  long double sum = 0;
  for (std::size_t c = 0; c < logits.values.size(); ++c) {
    logits.values[c] = FromDouble<TypeParam>(static_cast<double>(c) / 1024);
    sum += std::exp(static_cast<long double>(ToDouble(logits.values[c])));
  }
  const auto result = CrossEntropy(logits, Array<std::int32_t>(Shape{1}, {0}));
  const long double loss = std::log(sum);
  const long double unit = std::is_same_v<TypeParam, double> ? 0x1p-53L : 0x1p-24L;
  EXPECT_NEAR(ToDouble(result.loss[0]), static_cast<double>(loss),
              static_cast<double>(16 * unit * (2 + loss) + testing::UnitRoundoff<TypeParam>() * loss));
}

TYPED_TEST(SoftmaxTest, MinusInfinityHasNoShare) {
  const auto of = [](double value) { return FromDouble<TypeParam>(value); };
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  constexpr std::int64_t kClasses = 300;
  Array<TypeParam> logits(Shape{2, kClasses}, std::vector<TypeParam>(2 * kClasses, of(kNone)));
  logits.values[150] = logits.values[299] = of(5);
  const auto result = CrossEntropy(logits, Array<std::int32_t>(Shape{2}, {150, 0}));
  EXPECT_NEAR(ToDouble(result.loss[0]), std::log(2.0), 0.01);
  EXPECT_EQ(ToDouble(result.backprop[0]), 0);
  EXPECT_EQ(ToDouble(result.backprop[150]), -0.5);
  EXPECT_EQ(ToDouble(result.backprop[299]), 0.5);
  EXPECT_TRUE(std::isnan(ToDouble(result.loss[1]))) << "a row of nothing else";
  EXPECT_TRUE(std::isnan(ToDouble(result.backprop[kClasses])));
}

TYPED_TEST(SoftmaxTest, InfinityMakesItsRowNan) {
  const auto of = [](double value) { return FromDouble<TypeParam>(value); };
  const Array<TypeParam> logits(Shape{1, 3}, {of(1), of(std::numeric_limits<double>::infinity()), of(2)});
  const auto result = CrossEntropy(logits, Array<std::int32_t>(Shape{1}, {0}));
  EXPECT_TRUE(std::isnan(ToDouble(result.loss[0])));
  EXPECT_TRUE(std::isnan(ToDouble(result.backprop[1])));
}

TYPED_TEST(SoftmaxTest, LargeLogitsDoNotOverflow) {
  const auto of = [](double value) { return FromDouble<TypeParam>(value); };
  const Array<TypeParam> logits(Shape{1, 2}, {of(30000), of(29000)});
  const auto result = CrossEntropy(logits, Array<std::int32_t>(Shape{1}, {0}));
  EXPECT_EQ(ToDouble(result.loss[0]), 0);
  EXPECT_EQ(ToDouble(result.backprop[1]), 0);
}

TYPED_TEST(SoftmaxTest, AnInvalidClassMakesItsRowNan) {
  const auto of = [](double value) { return FromDouble<TypeParam>(value); };
  const Array<TypeParam> logits(Shape{3, 2}, {of(1), of(2), of(3), of(4), of(5), of(6)});
  const auto result = CrossEntropy(logits, Array<std::int64_t>(Shape{3}, {2, 1, -1}));
  EXPECT_TRUE(std::isnan(ToDouble(result.loss[0])));
  EXPECT_TRUE(std::isnan(ToDouble(result.backprop[1])));
  EXPECT_FALSE(std::isnan(ToDouble(result.loss[1])));
  EXPECT_FALSE(std::isnan(ToDouble(result.backprop[2])));
  EXPECT_TRUE(std::isnan(ToDouble(result.loss[2])));
}

TYPED_TEST(SoftmaxTest, NanInALogitIsNanInItsRow) {
  const auto of = [](double value) { return FromDouble<TypeParam>(value); };
  const Array<TypeParam> logits(Shape{2, 3}, {of(1), of(std::nan("")), of(3), of(4), of(5), of(6)});
  const auto result = CrossEntropy(logits, Array<std::int32_t>(Shape{2}, {0, 0}));
  EXPECT_TRUE(std::isnan(ToDouble(result.loss[0])));
  EXPECT_TRUE(std::isnan(ToDouble(result.backprop[0])));
  EXPECT_FALSE(std::isnan(ToDouble(result.loss[1])));
}

TYPED_TEST(SoftmaxTest, NoRowsAreFine) {
  const auto result = CrossEntropy(Array<TypeParam>(Shape{0, 4}), Array<std::int32_t>(Shape{0}));
  EXPECT_TRUE(result.loss.empty());
}

}  // namespace
}  // namespace lgpu
