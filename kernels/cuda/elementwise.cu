#include "kernels/bodies/elementwise.h"
#include "kernels/cuda/launch.cuh"

#define LGPU_ELEMENTWISE(name, type)                                                                              \
  extern "C" LGPU_KERNEL lgpu_elementwise_##name(const __grid_constant__ lgpu::code::ElementwiseParameters p) { \
    lgpu::code::ApplyElementwise<type>(p, LGPU_THREAD);                                                           \
  }
LGPU_FOR_NUMBERS(LGPU_ELEMENTWISE)
