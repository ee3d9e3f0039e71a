// lgpu's own GPU kernels on plain bytes. Like all of them they become a part of the program and are loaded
// through the driver: no runtime library. Every kernel takes one parameter block by value and strides over
// the grid.

#include "kernels/bodies/memory.h"
#include "kernels/cuda/launch.cuh"

extern "C" LGPU_KERNEL lgpu_fill(const __grid_constant__ lgpu::FillParameters p) {
  lgpu::code::Fill(p, LGPU_THREAD);
}

extern "C" LGPU_KERNEL lgpu_copy(const __grid_constant__ lgpu::CopyParameters p) {
  lgpu::code::Copy(p, LGPU_THREAD);
}
