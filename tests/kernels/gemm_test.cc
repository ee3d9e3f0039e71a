#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

namespace lgpu::cpu {
namespace {

template <typename T>
class GemmTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(GemmTest, Types);

template <typename T>
struct Case {
  int m, n, k;
  bool transpose_a = false, transpose_b = false;
  T alpha = 1, beta = 0;
  int more = 0;  // elements between two rows
};

template <typename T>
void Multiply(const Case<T>& of, const T* a, int lda, const T* b, int ldb, T* c, int ldc) {
  const CBLAS_TRANSPOSE ta = of.transpose_a ? CblasTrans : CblasNoTrans;
  const CBLAS_TRANSPOSE tb = of.transpose_b ? CblasTrans : CblasNoTrans;
  if constexpr (std::is_same_v<T, float>) {
    OwnSgemm(CblasRowMajor, ta, tb, of.m, of.n, of.k, of.alpha, a, lda, b, ldb, of.beta, c, ldc);
  } else {
    OwnDgemm(CblasRowMajor, ta, tb, of.m, of.n, of.k, of.alpha, a, lda, b, ldb, of.beta, c, ldc);
  }
}

// Against sums in long double, within the bound that any order of k sums has.
template <typename T>
void Check(const Case<T>& of) {
  std::mt19937 random(7);
  std::uniform_real_distribution<T> values(-1, 1);
  const auto make = [&](int rows, int columns) {
    std::vector<T> made(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns + of.more));
    for (T& value : made) value = values(random);
    return made;
  };
  const int lda = (of.transpose_a ? of.m : of.k) + of.more;
  const int ldb = (of.transpose_b ? of.k : of.n) + of.more;
  const int ldc = of.n + of.more;
  const std::vector<T> a = make(of.transpose_a ? of.k : of.m, of.transpose_a ? of.m : of.k);
  const std::vector<T> b = make(of.transpose_b ? of.n : of.k, of.transpose_b ? of.k : of.n);
  const std::vector<T> before = make(of.m, of.n);
  std::vector<T> c = before;
  if (of.beta == T{0}) {  // the output's old elements are not read
    for (int i = 0; i < of.m; ++i) {
      for (int j = 0; j < of.n; ++j) {
        c[static_cast<std::size_t>(i * ldc + j)] = std::numeric_limits<T>::quiet_NaN();
      }
    }
  }
  Multiply(of, a.data(), lda, b.data(), ldb, c.data(), ldc);
  const long double bound =
      (of.k + 3) * static_cast<long double>(std::numeric_limits<T>::epsilon()) * (of.k + 1) * 4;
  for (int i = 0; i < of.m; ++i) {
    for (int j = 0; j < ldc; ++j) {
      const auto at = static_cast<std::size_t>(i * ldc + j);
      if (j >= of.n) {
        ASSERT_EQ(c[at], before[at]) << "behind row " << i;
        continue;
      }
      long double sum = 0;
      for (int p = 0; p < of.k; ++p) {
        const T left = a[static_cast<std::size_t>(of.transpose_a ? p * lda + i : i * lda + p)];
        const T right = b[static_cast<std::size_t>(of.transpose_b ? j * ldb + p : p * ldb + j)];
        sum += static_cast<long double>(left) * right;
      }
      const long double expected =
          of.alpha * sum + (of.beta == T{0} ? 0.0L : static_cast<long double>(of.beta) * before[at]);
      ASSERT_NEAR(static_cast<double>(c[at]), static_cast<double>(expected), static_cast<double>(bound))
          << of.m << "x" << of.n << "x" << of.k << " at " << i << ", " << j;
    }
  }
}

TYPED_TEST(GemmTest, SmallShapesAroundTheTile) {
  for (const int m : {1, 2, 5, 6, 7, 13}) {
    for (const int n : {1, 7, 8, 9, 15, 16, 17, 33}) {
      for (const int k : {1, 2, 9}) Check<TypeParam>({.m = m, .n = n, .k = k});
    }
  }
}

TYPED_TEST(GemmTest, ShapesAroundTheBlocks) {
  for (const int k : {255, 256, 257, 513}) Check<TypeParam>({.m = 13, .n = 20, .k = k});
  for (const int m : {95, 96, 97, 193}) Check<TypeParam>({.m = m, .n = 17, .k = 5});
  for (const int n : {1023, 1024, 1025}) Check<TypeParam>({.m = 7, .n = n, .k = 3});
  Check<TypeParam>({.m = 101, .n = 1031, .k = 259});
}

TYPED_TEST(GemmTest, TranspositionFactorsAndWiderRows) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const int more : {0, 3}) {
        Check<TypeParam>({.m = 23,
                          .n = 37,
                          .k = 300,
                          .transpose_a = transpose_a,
                          .transpose_b = transpose_b,
                          .more = more});
        Check<TypeParam>({.m = 23,
                          .n = 37,
                          .k = 300,
                          .transpose_a = transpose_a,
                          .transpose_b = transpose_b,
                          .alpha = TypeParam(0.5),
                          .beta = TypeParam(-2),
                          .more = more});
      }
    }
  }
}

TYPED_TEST(GemmTest, InfinityAndNanGoWhereTheyBelong) {
  const TypeParam infinity = std::numeric_limits<TypeParam>::infinity();
  const TypeParam a[] = {1, infinity, 2, 3};
  const TypeParam b[] = {4, 5, 6, 0};
  TypeParam c[4];
  Multiply<TypeParam>({.m = 2, .n = 2, .k = 2}, a, 2, b, 2, c, 2);
  EXPECT_EQ(c[0], infinity);
  EXPECT_TRUE(std::isnan(c[1]));
  EXPECT_EQ(c[2], 26);
  EXPECT_EQ(c[3], 10);
}

}  // namespace
}  // namespace lgpu::cpu
