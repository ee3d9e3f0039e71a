#include "kernels/bodies/cast.h"
#include "kernels/cuda/launch.cuh"

#define LGPU_CAST(name, type)                                                                        \
  extern "C" LGPU_KERNEL_FOR(3) lgpu_cast_##name(const __grid_constant__ lgpu::code::CastParameters p) { \
    lgpu::code::CastFrom<type>(p, LGPU_THREAD);                                                      \
  }
LGPU_FOR_FLOATS(LGPU_CAST)
LGPU_CAST(int32, std::int32_t)
LGPU_CAST(int64, std::int64_t)
