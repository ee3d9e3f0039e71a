#include "kernels/bodies/transpose.h"
#include "kernels/cuda/launch.cuh"

namespace {

template <typename T>
__device__ void Transpose(const lgpu::code::TransposeParameters& p) {
  using Sizes = lgpu::code::TransposeTile<T>;
  __shared__ T shared[Sizes::kSize * Sizes::kPitch];
  for (std::uint32_t i = blockIdx.x; i < p.tiles; i += gridDim.x) {
    const lgpu::code::Tile tile = lgpu::code::TileNumber<T>(p, i);
    lgpu::code::ReadTile<T>(p, tile, threadIdx.x, shared);
    __syncthreads();
    lgpu::code::WriteTile<T>(p, tile, threadIdx.x, shared);
    __syncthreads();
  }
}

}  // namespace

// Kernels are named by the bytes of an element.
#define LGPU_TRANSPOSE(bytes, type)                                                                            \
  extern "C" LGPU_KERNEL lgpu_transpose_##bytes(const __grid_constant__ lgpu::code::TransposeParameters p) { \
    Transpose<type>(p);                                                                                        \
  }
LGPU_TRANSPOSE(2, std::uint16_t)
LGPU_TRANSPOSE(4, std::uint32_t)
LGPU_TRANSPOSE(8, std::uint64_t)
