#ifndef LGPU_KERNELS_CPU_ADD_N_WIDE_H_
#define LGPU_KERNELS_CPU_ADD_N_WIDE_H_

#include <cstdint>

#include "kernels/kernel_arguments.h"
#include "lgpu/dtype.h"

namespace lgpu::cpu {

/// Sums as many of the first elements as fill the processor's widest registers, in the order and with the
/// rounding of add_n.cc. The result is how many; 0 where the processor lacks the instructions.
std::int64_t AddWide(const KernelArguments& args, DType dtype);

}  // namespace lgpu::cpu

#endif  // LGPU_KERNELS_CPU_ADD_N_WIDE_H_
