#ifndef LGPU_KERNELS_CPU_TRANSPOSE_H_
#define LGPU_KERNELS_CPU_TRANSPOSE_H_

#include <cstddef>

namespace lgpu::cpu {

/// The host's half of a tiled Transpose of elements of 2, 4 or 8 bytes; its parameters are
/// code::TransposeParameters.
void (*TransposeFunction(std::size_t element_bytes))(const void*);

}  // namespace lgpu::cpu

#endif  // LGPU_KERNELS_CPU_TRANSPOSE_H_
