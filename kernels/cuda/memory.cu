// lgpu's own GPU kernels on plain bytes. Compiled to a fat binary that is part of the program and loaded
// through the driver: no runtime library. Every kernel takes one parameter block by value and strides over
// the grid.

#include "kernels/cuda/kernel_parameters.h"

namespace {

__device__ std::uint64_t First() { return std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ std::uint64_t Stride() { return std::uint64_t{gridDim.x} * blockDim.x; }

}  // namespace

extern "C" __global__ void lgpu_fill(lgpu::FillParameters p) {
  for (std::uint64_t i = First(); i < p.count; i += Stride()) p.to[i] = p.value;
}

extern "C" __global__ void lgpu_copy(lgpu::CopyParameters p) {
  const bool aligned =
      (reinterpret_cast<std::uint64_t>(p.to) | reinterpret_cast<std::uint64_t>(p.from)) % 16 == 0;
  const std::uint64_t wide = aligned ? p.bytes / 16 : 0;
  for (std::uint64_t i = First(); i < wide; i += Stride()) {
    reinterpret_cast<uint4*>(p.to)[i] = reinterpret_cast<const uint4*>(p.from)[i];
  }
  for (std::uint64_t i = wide * 16 + First(); i < p.bytes; i += Stride()) p.to[i] = p.from[i];
}
