#ifndef LGPU_KERNELS_CPU_CAST_H_
#define LGPU_KERNELS_CPU_CAST_H_

#include "lgpu/dtype.h"

namespace lgpu::cpu {

/// The host's half of a Cast, whose parameters are code::CastParameters: by the rules of
/// kernels/bodies/cast.h, many elements at once. Only the bits of a NaN may differ.
void (*CastFunction(DType from, DType to))(const void*);

}  // namespace lgpu::cpu

#endif  // LGPU_KERNELS_CPU_CAST_H_
