#ifndef LGPU_KERNELS_BODIES_TRANSPOSE_H_
#define LGPU_KERNELS_BODIES_TRANSPOSE_H_

#include "kernels/bodies/numbers.h"

namespace lgpu::code {

/// A batch of matrices, whose columns become rows: the input's rows are `input_step` elements apart, the
/// output's, which are its columns, `output_step`. A tile is read along the one and written along the other,
/// so that both times neighbours in memory travel together. Steps and offsets are in elements.
struct TransposeParameters {
  static constexpr int kMostDimensions = 8;
  const void* input;
  void* output;
  std::uint64_t input_step, output_step;
  std::uint64_t elements;                 // of all matrices
  std::uint32_t rows, columns;            // of the input's matrices
  std::uint32_t row_tiles, column_tiles;  // of a matrix
  std::uint32_t tiles;                    // of all matrices
  std::int32_t batch_rank;                // dimensions of the batch, the outermost first
  std::uint32_t dimensions[kMostDimensions];
  std::uint64_t input_strides[kMostDimensions];
  std::uint64_t output_strides[kMostDimensions];
};

/// A tile is a square, by threads that move 4 to 16 elements each.
template <typename T>
struct TransposeTile {
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::uint32_t kSize = sizeof(T) == 2 ? 64 : 32;
  static constexpr std::uint32_t kPitch = kSize + (sizeof(T) == 2 ? 2 : 1);  // no two of a column in one bank
};

struct Tile {
  std::uint64_t input, output;
  std::uint32_t rows, columns;  // of the input; less than a whole one at the edges
};

template <typename T>
LGPU_CODE Tile TileAt(const TransposeParameters& p, std::uint32_t batch, std::uint32_t row_tile,
                      std::uint32_t column_tile) {
  constexpr std::uint32_t kSize = TransposeTile<T>::kSize;
  const std::uint32_t row = row_tile * kSize;
  const std::uint32_t column = column_tile * kSize;
  Tile tile;
  tile.input = row * p.input_step + column;
  tile.output = column * p.output_step + row;
  for (int d = p.batch_rank - 1; d >= 0; --d) {
    const std::uint32_t at = batch % p.dimensions[d];
    batch /= p.dimensions[d];
    tile.input += at * p.input_strides[d];
    tile.output += at * p.output_strides[d];
  }
  tile.rows = p.rows - row < kSize ? p.rows - row : kSize;
  tile.columns = p.columns - column < kSize ? p.columns - column : kSize;
  return tile;
}
template <typename T>
LGPU_CODE Tile TileNumber(const TransposeParameters& p, std::uint32_t number) {
  const std::uint32_t rest = number / p.column_tiles;
  return TileAt<T>(p, rest / p.row_tiles, rest % p.row_tiles, number % p.column_tiles);
}

/// One thread's part of a tile; `shared` has kSize * kPitch elements. All threads read before any writes.
template <typename T>
LGPU_CODE void ReadTile(const TransposeParameters& p, const Tile& tile, std::uint32_t thread, T* shared) {
  using Sizes = TransposeTile<T>;
  const T* const from = static_cast<const T*>(p.input) + tile.input;
  const std::uint32_t x = thread % Sizes::kSize;
#ifdef __CUDACC__
#pragma unroll
#endif
  for (std::uint32_t i = 0; i < Sizes::kSize; i += Sizes::kThreads / Sizes::kSize) {
    const std::uint32_t y = i + thread / Sizes::kSize;
    if (x < tile.columns && y < tile.rows) shared[y * Sizes::kPitch + x] = from[y * p.input_step + x];
  }
}
template <typename T>
LGPU_CODE void WriteTile(const TransposeParameters& p, const Tile& tile, std::uint32_t thread,
                         const T* shared) {
  using Sizes = TransposeTile<T>;
  T* const to = static_cast<T*>(p.output) + tile.output;
  const std::uint32_t x = thread % Sizes::kSize;
#ifdef __CUDACC__
#pragma unroll
#endif
  for (std::uint32_t i = 0; i < Sizes::kSize; i += Sizes::kThreads / Sizes::kSize) {
    const std::uint32_t y = i + thread / Sizes::kSize;
    if (x < tile.rows && y < tile.columns) to[y * p.output_step + x] = shared[x * Sizes::kPitch + y];
  }
}

}  // namespace lgpu::code

#endif  // LGPU_KERNELS_BODIES_TRANSPOSE_H_
