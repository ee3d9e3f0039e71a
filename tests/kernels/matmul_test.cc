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
class MatMulTest : public ::testing::Test {};
using Floating = ::testing::Types<float, double, Half, BFloat16>;
TYPED_TEST_SUITE(MatMulTest, Floating);

/// Element (row, column) of the operand that is stored transposed or not.
template <typename T>
double At(const Array<T>& array, bool transposed, std::int64_t row, std::int64_t column) {
  const std::int64_t i = transposed ? column * array.shape[1] + row : row * array.shape[1] + column;
  return testing::ToDouble(array.values[static_cast<std::size_t>(i)]);
}

// |result - exact| <= k * u(accumulation) * sum |a b| + u(T) * |exact|: k additions in float (double for
// double) and one rounding to T.
template <typename T>
void ExpectProduct(const Array<T>& a, const Array<T>& b, const OpAttributes& attributes) {
  const std::vector<TensorView> inputs = {a.view(), b.view()};
  const Array<T> product = RunOp<T>(MatMulOp(), inputs, attributes);
  const std::int64_t k = attributes.transpose_a ? a.shape[0] : a.shape[1];
  const double unit = std::is_same_v<T, double> ? 0x1p-52 : 0x1p-23;
  for (std::int64_t i = 0; i < product.shape[0]; ++i) {
    for (std::int64_t j = 0; j < product.shape[1]; ++j) {
      long double exact = 0;
      long double size = 0;
      for (std::int64_t p = 0; p < k; ++p) {
        const long double term = static_cast<long double>(At(a, attributes.transpose_a, i, p)) *
                                 static_cast<long double>(At(b, attributes.transpose_b, p, j));
        exact += term;
        size += std::fabs(term);
      }
      const long double bound = static_cast<long double>(k + 1) * unit * size +
                                testing::UnitRoundoff<T>() * std::fabs(exact) + 0x1p-25L;
      const double actual =
          testing::ToDouble(product.values[static_cast<std::size_t>(i * product.shape[1] + j)]);
      ASSERT_LE(std::fabs(static_cast<long double>(actual) - exact), bound) << i << "," << j;
    }
  }
}

TYPED_TEST(MatMulTest, MatchesAnExactReferenceOnOddSizes) {
  SKIP_WITHOUT_KERNEL(MatMulOp(), kDTypeOf<TypeParam>);
  Random random;
  const std::int64_t sizes[][3] = {{1, 1, 1},   {2, 3, 2},     {1, 17, 5},
                                   {33, 7, 65}, {19, 600, 13}, {530, 3, 521}};
  for (const auto& [m, k, n] : sizes) {
    for (int transposes = 0; transposes < 4; ++transposes) {
      const bool ta = (transposes & 1) != 0;
      const bool tb = (transposes & 2) != 0;
      Array<TypeParam> a(ta ? Shape{k, m} : Shape{m, k});
      Array<TypeParam> b(tb ? Shape{n, k} : Shape{k, n});
      for (auto& value : a.values) value = testing::FromDouble<TypeParam>(random.Uniform(-2, 2));
      for (auto& value : b.values) value = testing::FromDouble<TypeParam>(random.Uniform(-2, 2));
      ExpectProduct(a, b, {.transpose_a = ta, .transpose_b = tb});
    }
  }
}

TYPED_TEST(MatMulTest, EmptyInnerDimensionGivesZeros) {
  SKIP_WITHOUT_KERNEL(MatMulOp(), kDTypeOf<TypeParam>);
  const Array<TypeParam> a(Shape{3, 0});
  const Array<TypeParam> b(Shape{0, 2});
  const std::vector<TensorView> inputs = {a.view(), b.view()};
  const auto product = RunOp<TypeParam>(MatMulOp(), inputs);
  ASSERT_EQ(product.values.size(), 6U);
  for (const TypeParam value : product.values) EXPECT_EQ(testing::ToDouble(value), 0);
}

TYPED_TEST(MatMulTest, EmptyOuterDimensionGivesNothing) {
  SKIP_WITHOUT_KERNEL(MatMulOp(), kDTypeOf<TypeParam>);
  const Array<TypeParam> a(Shape{0, 4});
  const Array<TypeParam> b(Shape{4, 2});
  const std::vector<TensorView> inputs = {a.view(), b.view()};
  EXPECT_EQ(RunOp<TypeParam>(MatMulOp(), inputs).shape, (Shape{0, 2}));
}

TYPED_TEST(MatMulTest, NanAndInfinityComeThrough) {
  SKIP_WITHOUT_KERNEL(MatMulOp(), kDTypeOf<TypeParam>);
  const auto of = [](double value) { return testing::FromDouble<TypeParam>(value); };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const Array<TypeParam> a(Shape{3, 2}, {of(nan), of(1), of(infinity), of(1), of(2), of(3)});
  const Array<TypeParam> b(Shape{2, 1}, {of(1), of(1)});
  const std::vector<TensorView> inputs = {a.view(), b.view()};
  const auto product = RunOp<TypeParam>(MatMulOp(), inputs);
  EXPECT_TRUE(std::isnan(testing::ToDouble(product.values[0])));
  EXPECT_EQ(testing::ToDouble(product.values[1]), infinity);
  EXPECT_EQ(testing::ToDouble(product.values[2]), 5);
}

// 4096 ones: a sum kept in half or bfloat16 would stop at 2048 and 256.
TYPED_TEST(MatMulTest, AccumulatesInFloatAtLeast) {
  SKIP_WITHOUT_KERNEL(MatMulOp(), kDTypeOf<TypeParam>);
  const TypeParam one = testing::FromDouble<TypeParam>(1);
  const Array<TypeParam> a(Shape{1, 4096}, std::vector<TypeParam>(4096, one));
  const Array<TypeParam> b(Shape{4096, 1}, std::vector<TypeParam>(4096, one));
  const std::vector<TensorView> inputs = {a.view(), b.view()};
  EXPECT_EQ(testing::ToDouble(RunOp<TypeParam>(MatMulOp(), inputs).values[0]), 4096);
}

template <typename T>
class WholeMatMulTest : public ::testing::Test {};
using Whole = ::testing::Types<std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(WholeMatMulTest, Whole);

TYPED_TEST(WholeMatMulTest, IsExactAndWrapsAround) {
  SKIP_WITHOUT_KERNEL(MatMulOp(), kDTypeOf<TypeParam>);
  using Unsigned = std::make_unsigned_t<TypeParam>;
  Random random;
  const std::int64_t sizes[][3] = {{1, 1, 1}, {3, 130, 7}, {5, 64, 1030}, {2, 0, 3}};
  for (const auto& [m, k, n] : sizes) {
    for (int transposes = 0; transposes < 4; ++transposes) {
      const bool ta = (transposes & 1) != 0;
      const bool tb = (transposes & 2) != 0;
      Array<TypeParam> a(ta ? Shape{k, m} : Shape{m, k});
      Array<TypeParam> b(tb ? Shape{n, k} : Shape{k, n});
      const auto fill = [&random](Array<TypeParam>& array) {
        for (auto& value : array.values) {
          value = static_cast<TypeParam>(random.engine()() * 0x9e3779b97f4aULL);
        }
      };
      fill(a);
      fill(b);
      const std::vector<TensorView> inputs = {a.view(), b.view()};
      const auto product = RunOp<TypeParam>(MatMulOp(), inputs, {.transpose_a = ta, .transpose_b = tb});
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          Unsigned sum = 0;
          for (std::int64_t p = 0; p < k; ++p) {
            const auto x = a.values[static_cast<std::size_t>(ta ? p * m + i : i * k + p)];
            const auto y = b.values[static_cast<std::size_t>(tb ? j * k + p : p * n + j)];
            sum += static_cast<Unsigned>(x) * static_cast<Unsigned>(y);
          }
          ASSERT_EQ(product.values[static_cast<std::size_t>(i * n + j)], static_cast<TypeParam>(sum));
        }
      }
    }
  }
}

}  // namespace
}  // namespace lgpu
