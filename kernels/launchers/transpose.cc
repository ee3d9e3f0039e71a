#include "kernels/launchers/transpose.h"

#include <limits>

#include "kernels/bodies/transpose.h"
#include "kernels/cpu/transpose.h"
#include "kernels/cuda/device_kernels.h"
#include "kernels/launchers/common_launch.h"

namespace lgpu {

namespace {

constexpr std::uint64_t kLeast = 16;  // rows and columns

std::uint64_t TilesOf(std::uint64_t size, std::uint64_t tile) { return (size + tile - 1) / tile; }

}  // namespace

std::optional<absl::Status> TransposeByTiles(const code::ElementwiseParameters& p, DType dtype,
                                             Launcher& launcher) {
  // Dimensions are the output's. The one whose neighbours are neighbours in the input becomes its rows.
  const int last = p.rank - 1;
  int contiguous = last;
  for (int d = 0; d < p.rank; ++d) {
    if (p.a_strides[d] == 1) contiguous = d;
  }
  if (contiguous == last || p.dimensions[last] < kLeast || p.dimensions[contiguous] < kLeast) {
    return std::nullopt;
  }
  const std::size_t bytes = ElementBytes(dtype);
  const std::uint64_t tile =
      bytes == 2 ? code::TransposeTile<std::uint16_t>::kSize : code::TransposeTile<std::uint32_t>::kSize;
  const std::uint64_t row_tiles = TilesOf(p.dimensions[last], tile);
  const std::uint64_t column_tiles = TilesOf(p.dimensions[contiguous], tile);
  code::TransposeParameters t{};
  std::uint64_t tiles = row_tiles * column_tiles;
  std::uint64_t stride = 1;  // of the output
  std::uint64_t strides[code::TransposeParameters::kMostDimensions] = {};
  for (int d = last; d >= 0; --d) {
    strides[d] = stride;
    stride *= p.dimensions[d];
    if (d != last && d != contiguous) tiles *= p.dimensions[d];
  }
  constexpr std::uint64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (tiles > kMost || p.dimensions[last] > kMost || p.dimensions[contiguous] > kMost) return std::nullopt;
  for (int d = 0; d < last; ++d) {
    if (d == contiguous) continue;
    t.dimensions[t.batch_rank] = static_cast<std::uint32_t>(p.dimensions[d]);
    t.input_strides[t.batch_rank] = p.a_strides[d];
    t.output_strides[t.batch_rank] = strides[d];
    ++t.batch_rank;
  }
  t.input = p.a;
  t.output = p.output;
  t.input_step = p.a_strides[last];
  t.output_step = strides[contiguous];
  t.elements = p.packing.elements;
  t.rows = static_cast<std::uint32_t>(p.dimensions[last]);
  t.columns = static_cast<std::uint32_t>(p.dimensions[contiguous]);
  t.row_tiles = static_cast<std::uint32_t>(row_tiles);
  t.column_tiles = static_cast<std::uint32_t>(column_tiles);
  t.tiles = static_cast<std::uint32_t>(tiles);
  return launcher.Launch(CommonLaunch(cpu::TransposeFunction(bytes), TransposeKernel(bytes), t, tiles));
}

}  // namespace lgpu
