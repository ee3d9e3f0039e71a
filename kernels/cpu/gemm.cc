#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace lgpu::cpu {
namespace {

// A tile of C is 6 rows of two wide registers: with a value of A and two registers of B that is what 16
// registers hold.
constexpr std::int64_t kTileRows = 6;
template <typename T>
constexpr std::int64_t kTileColumns = 64 / sizeof(T);
// Blocks of A and B, packed: they stay in the second and third cache.
constexpr std::int64_t kBlockRows = 96;
constexpr std::int64_t kBlockColumns = 1024;
constexpr std::int64_t kDepth = 256;

template <typename T>
using Tile = std::array<T, static_cast<std::size_t>(kTileRows* kTileColumns<T>)>;

/// Element (row, column) of a matrix after transposition.
template <typename T>
struct Matrix {
  const T* data;
  std::int64_t row_stride;
  std::int64_t column_stride;
  T at(std::int64_t row, std::int64_t column) const {
    return data[row * row_stride + column * column_stride];
  }
};

// `a` has kTileRows values for each step of the depth, `b` a row of the tile.
template <typename T>
[[gnu::always_inline]] inline void MultiplyTile(const T* a, const T* b, std::int64_t depth,
                                                Tile<T>& product) {
  typedef T Wide __attribute__((vector_size(32), aligned(sizeof(T)), may_alias));
  constexpr std::int64_t kLanes = kTileColumns<T> / 2;
  Wide sums[kTileRows][2] = {};
  for (std::int64_t p = 0; p < depth; ++p) {
    const Wide left = *reinterpret_cast<const Wide*>(b + p * kTileColumns<T>);
    const Wide right = *reinterpret_cast<const Wide*>(b + p * kTileColumns<T> + kLanes);
    for (std::int64_t row = 0; row < kTileRows; ++row) {
      const T factor = a[p * kTileRows + row];
      sums[row][0] += factor * left;
      sums[row][1] += factor * right;
    }
  }
  for (std::int64_t row = 0; row < kTileRows; ++row) {
    *reinterpret_cast<Wide*>(product.data() + row * kTileColumns<T>) = sums[row][0];
    *reinterpret_cast<Wide*>(product.data() + row * kTileColumns<T> + kLanes) = sums[row][1];
  }
}

template <typename T>
using TileFunction = void (*)(const T* a, const T* b, std::int64_t depth, Tile<T>& product);

template <typename T>
void AnyTile(const T* a, const T* b, std::int64_t depth, Tile<T>& product) {
  MultiplyTile(a, b, depth, product);
}

#if defined(__x86_64__)
template <typename T>
__attribute__((target("avx2,fma"))) void WideTile(const T* a, const T* b, std::int64_t depth,
                                                  Tile<T>& product) {
  MultiplyTile(a, b, depth, product);
}
#endif

template <typename T>
TileFunction<T> FunctionOfThisProcessor() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return WideTile<T>;
#endif
  return AnyTile<T>;
}

/// Rows of A behind one another in groups of kTileRows, each by columns; rows that are not there are 0.
template <typename T>
void PackRows(const Matrix<T>& a, std::int64_t row, std::int64_t rows, std::int64_t column,
              std::int64_t depth, T* to) {
  for (std::int64_t group = 0; group < rows; group += kTileRows) {
    for (std::int64_t p = 0; p < depth; ++p) {
      for (std::int64_t r = group; r < group + kTileRows; ++r) {
        *to++ = r < rows ? a.at(row + r, column + p) : T{0};
      }
    }
  }
}

/// Columns of B in groups of kTileColumns, each by rows.
template <typename T>
void PackColumns(const Matrix<T>& b, std::int64_t row, std::int64_t depth, std::int64_t column,
                 std::int64_t columns, T* to) {
  for (std::int64_t group = 0; group < columns; group += kTileColumns<T>) {
    const std::int64_t here = std::min(kTileColumns<T>, columns - group);
    for (std::int64_t p = 0; p < depth; ++p) {
      for (std::int64_t c = 0; c < here; ++c) to[c] = b.at(row + p, column + group + c);
      for (std::int64_t c = here; c < kTileColumns<T>; ++c) to[c] = T{0};
      to += kTileColumns<T>;
    }
  }
}

/// One call's matrices and factors.
template <typename T>
struct Product {
  Matrix<T> a, b;
  std::int64_t m, n, k;
  T alpha, beta;
  T* c;
  std::int64_t ldc;
};

template <typename T>
void Store(const Product<T>& product, const Tile<T>& tile, std::int64_t row, std::int64_t rows,
           std::int64_t column, std::int64_t columns, T beta) {
  for (std::int64_t r = 0; r < std::min(kTileRows, rows); ++r) {
    T* const out = product.c + (row + r) * product.ldc + column;
    const T* const sums = tile.data() + r * kTileColumns<T>;
    for (std::int64_t c = 0; c < std::min(kTileColumns<T>, columns); ++c) {
      out[c] = product.alpha * sums[c] + (beta == T{0} ? T{0} : beta * out[c]);
    }
  }
}

template <typename T>
void Multiply(const Product<T>& product) {
  static const TileFunction<T> multiply = FunctionOfThisProcessor<T>();
  std::vector<T> rows_of_a(static_cast<std::size_t>(kBlockRows * kDepth));
  std::vector<T> columns_of_b(static_cast<std::size_t>(kBlockColumns * kDepth));
  Tile<T> tile;
  for (std::int64_t j = 0; j < product.n; j += kBlockColumns) {
    const std::int64_t columns = std::min(kBlockColumns, product.n - j);
    for (std::int64_t p = 0; p < product.k; p += kDepth) {
      const std::int64_t depth = std::min(kDepth, product.k - p);
      const T beta = p == 0 ? product.beta : T{1};
      PackColumns(product.b, p, depth, j, columns, columns_of_b.data());
      for (std::int64_t i = 0; i < product.m; i += kBlockRows) {
        const std::int64_t rows = std::min(kBlockRows, product.m - i);
        PackRows(product.a, i, rows, p, depth, rows_of_a.data());
        for (std::int64_t c = 0; c < columns; c += kTileColumns<T>) {
          for (std::int64_t r = 0; r < rows; r += kTileRows) {
            multiply(rows_of_a.data() + r * depth, columns_of_b.data() + c * depth, depth, tile);
            Store(product, tile, i + r, rows - r, j + c, columns - c, beta);
          }
        }
      }
    }
  }
}

template <typename T>
Matrix<T> MatrixOf(const T* data, blasint leading, CBLAS_TRANSPOSE transpose) {
  return transpose == CblasNoTrans ? Matrix<T>{data, leading, 1} : Matrix<T>{data, 1, leading};
}

}  // namespace

void OwnSgemm(CBLAS_ORDER /*order*/, CBLAS_TRANSPOSE transpose_a, CBLAS_TRANSPOSE transpose_b, blasint m,
              blasint n, blasint k, float alpha, const float* a, blasint lda, const float* b, blasint ldb,
              float beta, float* c, blasint ldc) {
  Multiply<float>(
      {MatrixOf(a, lda, transpose_a), MatrixOf(b, ldb, transpose_b), m, n, k, alpha, beta, c, ldc});
}

void OwnDgemm(CBLAS_ORDER /*order*/, CBLAS_TRANSPOSE transpose_a, CBLAS_TRANSPOSE transpose_b, blasint m,
              blasint n, blasint k, double alpha, const double* a, blasint lda, const double* b, blasint ldb,
              double beta, double* c, blasint ldc) {
  Multiply<double>(
      {MatrixOf(a, lda, transpose_a), MatrixOf(b, ldb, transpose_b), m, n, k, alpha, beta, c, ldc});
}

}  // namespace lgpu::cpu
