#include "kernels/cpu/transpose.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/bodies/transpose.h"
#include "kernels/cpu/convert_blocks.h"
#include "kernels/cpu/wide.h"

namespace lgpu::cpu {

namespace {

using code::Tile;
using code::TransposeParameters;

/// from[row * step + column] becomes to[column * pitch + row].
template <typename T>
void TransposeEach(const T* from, std::uint64_t step, T* to, std::uint64_t pitch, std::uint32_t rows,
                   std::uint32_t columns) {
  for (std::uint32_t row = 0; row < rows; ++row) {
    for (std::uint32_t column = 0; column < columns; ++column) {
      to[column * pitch + row] = from[row * step + column];
    }
  }
}

#if defined(__x86_64__)

/// A square that registers hold: so many rows and columns.
template <typename T>
inline constexpr std::uint32_t kSquare = sizeof(T) == 8 ? 4 : 8;

LGPU_WIDE_INLINE void TransposeSquare(const std::uint64_t* from, std::uint64_t step, std::uint64_t* to,
                                      std::uint64_t pitch) {
  __m256i row[4];
  for (int i = 0; i < 4; ++i) {
    row[i] = _mm256_loadu_si256(static_cast<const __m256i*>(static_cast<const void*>(from + i * step)));
  }
  const __m256i pairs[4] = {_mm256_unpacklo_epi64(row[0], row[1]), _mm256_unpackhi_epi64(row[0], row[1]),
                            _mm256_unpacklo_epi64(row[2], row[3]), _mm256_unpackhi_epi64(row[2], row[3])};
  const auto store = [to, pitch](int i) { return static_cast<__m256i*>(static_cast<void*>(to + i * pitch)); };
  for (int i = 0; i < 2; ++i) {
    _mm256_storeu_si256(store(i), _mm256_permute2x128_si256(pairs[i], pairs[i + 2], 0x20));
    _mm256_storeu_si256(store(i + 2), _mm256_permute2x128_si256(pairs[i], pairs[i + 2], 0x31));
  }
}

LGPU_WIDE_INLINE void TransposeSquare(const std::uint32_t* from, std::uint64_t step, std::uint32_t* to,
                                      std::uint64_t pitch) {
  __m256i a[8];
  __m256i b[8];
  for (int i = 0; i < 8; ++i) {
    a[i] = _mm256_loadu_si256(static_cast<const __m256i*>(static_cast<const void*>(from + i * step)));
  }
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  const auto store = [to, pitch](int i) { return static_cast<__m256i*>(static_cast<void*>(to + i * pitch)); };
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_si256(store(i), _mm256_permute2x128_si256(a[i], a[i + 4], 0x20));
    _mm256_storeu_si256(store(i + 4), _mm256_permute2x128_si256(a[i], a[i + 4], 0x31));
  }
}

LGPU_WIDE_INLINE void TransposeSquare(const std::uint16_t* from, std::uint64_t step, std::uint16_t* to,
                                      std::uint64_t pitch) {
  __m128i a[8];
  __m128i b[8];
  for (int i = 0; i < 8; ++i) {
    a[i] = _mm_loadu_si128(static_cast<const __m128i*>(static_cast<const void*>(from + i * step)));
  }
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm_unpacklo_epi16(a[i], a[i + 1]);
    b[i + 1] = _mm_unpackhi_epi16(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm_unpacklo_epi32(b[i], b[i + 2]);
    a[i + 1] = _mm_unpackhi_epi32(b[i], b[i + 2]);
    a[i + 2] = _mm_unpacklo_epi32(b[i + 1], b[i + 3]);
    a[i + 3] = _mm_unpackhi_epi32(b[i + 1], b[i + 3]);
  }
  const auto store = [to, pitch](int i) { return static_cast<__m128i*>(static_cast<void*>(to + i * pitch)); };
  for (int i = 0; i < 4; ++i) {
    _mm_storeu_si128(store(2 * i), _mm_unpacklo_epi64(a[i], a[i + 4]));
    _mm_storeu_si128(store(2 * i + 1), _mm_unpackhi_epi64(a[i], a[i + 4]));
  }
}

template <typename T>
LGPU_WIDE void TransposeWide(const T* from, std::uint64_t step, T* to, std::uint64_t pitch) {
  constexpr std::uint32_t kSize = code::TransposeTile<T>::kSize;
  for (std::uint32_t row = 0; row < kSize; row += kSquare<T>) {
    for (std::uint32_t column = 0; column < kSize; column += kSquare<T>) {
      TransposeSquare(from + row * step + column, step, to + column * pitch + row, pitch);
    }
  }
}

/// Whole rows of a tile, past the caches.
template <typename T>
LGPU_WIDE void StreamRows(const T* turned, T* to, std::uint64_t step, std::uint32_t rows) {
  constexpr std::uint32_t kSize = code::TransposeTile<T>::kSize;
  for (std::uint32_t row = 0; row < rows; ++row) {
    const auto* const from = static_cast<const __m256i*>(static_cast<const void*>(turned + row * kSize));
    auto* const line = static_cast<__m256i*>(static_cast<void*>(to + row * step));
    for (std::size_t i = 0; i < kSize * sizeof(T) / 32; ++i) {
      _mm256_stream_si256(line + i, _mm256_load_si256(from + i));
    }
  }
}

#else

template <typename T>
void StreamRows(const T*, T*, std::uint64_t, std::uint32_t) {}
template <typename T>
void TransposeWide(const T*, std::uint64_t, T*, std::uint64_t) {}

#endif

/// By way of a tile in the first-level cache: reads and writes whole rows. Caches hold few rows at the
/// distance that rows often have.
template <typename T>
void TransposeOne(const TransposeParameters& p, const Tile& tile, bool wide, bool past_caches) {
  constexpr std::uint32_t kSize = code::TransposeTile<T>::kSize;
  alignas(64) T turned[kSize * kSize];
  const T* const from = static_cast<const T*>(p.input) + tile.input;
  T* const to = static_cast<T*>(p.output) + tile.output;
  const bool whole = tile.rows == kSize && tile.columns == kSize;
  if (whole && wide) {
    TransposeWide(from, p.input_step, turned, kSize);
  } else {
    TransposeEach(from, p.input_step, turned, kSize, tile.rows, tile.columns);
  }
  if (past_caches && tile.rows == kSize) return StreamRows(turned, to, p.output_step, tile.columns);
  for (std::uint32_t row = 0; row < tile.columns; ++row) {
    const std::size_t bytes = tile.rows * sizeof(T);
    if (past_caches) {
      CopyPastCaches(turned + row * kSize, to + row * p.output_step, bytes);
    } else {
      std::memcpy(to + row * p.output_step, turned + row * kSize, bytes);
    }
  }
}

template <typename T>
void Transpose(const void* parameters) {
  const auto& p = *static_cast<const TransposeParameters*>(parameters);
  // Tiles of squares like this one touch only as many pages as the processor has translations for.
  constexpr std::uint32_t kTiles = 512 / code::TransposeTile<T>::kSize;
  constexpr std::uint64_t kAligned = 32 / sizeof(T);
  const bool wide = HasWide();
  bool past_caches =
      wide && WritesPastCaches(p.output, p.elements * sizeof(T)) && p.output_step % kAligned == 0;
  for (int d = 0; d < p.batch_rank; ++d) past_caches = past_caches && p.output_strides[d] % kAligned == 0;
  const std::uint32_t batches = p.tiles / (p.row_tiles * p.column_tiles);
  for (std::uint32_t batch = 0; batch < batches; ++batch) {
    for (std::uint32_t row = 0; row < p.row_tiles; row += kTiles) {
      for (std::uint32_t column = 0; column < p.column_tiles; column += kTiles) {
        for (std::uint32_t r = row; r < std::min(row + kTiles, p.row_tiles); ++r) {
          for (std::uint32_t c = column; c < std::min(column + kTiles, p.column_tiles); ++c) {
            TransposeOne<T>(p, code::TileAt<T>(p, batch, r, c), wide, past_caches);
          }
        }
      }
    }
  }
  if (past_caches) FencePastCaches();
}

}  // namespace

void (*TransposeFunction(std::size_t element_bytes))(const void*) {
  if (element_bytes == 2) return Transpose<std::uint16_t>;
  return element_bytes == 8 ? Transpose<std::uint64_t> : Transpose<std::uint32_t>;
}

}  // namespace lgpu::cpu
