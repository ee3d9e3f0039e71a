#include "kernels/bodies/add_n.h"
#include "kernels/cuda/launch.cuh"

#define LGPU_ADD_N(name, type)                                                                        \
  extern "C" LGPU_KERNEL lgpu_add_n_##name(const __grid_constant__ lgpu::code::AddNFew p) {       \
    lgpu::code::AddN<type>(p, LGPU_THREAD);                                                           \
  }                                                                                                   \
  extern "C" LGPU_KERNEL lgpu_add_n_many_##name(const __grid_constant__ lgpu::code::AddNMany p) { \
    lgpu::code::AddN<type>(p, LGPU_THREAD);                                                           \
  }
LGPU_FOR_NUMBERS(LGPU_ADD_N)
