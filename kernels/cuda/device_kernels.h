#ifndef LGPU_KERNELS_CUDA_DEVICE_KERNELS_H_
#define LGPU_KERNELS_CUDA_DEVICE_KERNELS_H_

#include <cstddef>

#include "allocator/device/device_work.h"
#include "lgpu/dtype.h"

namespace lgpu {

// lgpu's own kernels of GPUs, by the type of their elements: null where there is no kernel for the type, and
// always in a build without CUDA. Their parameter blocks are in kernels/bodies.
const DeviceKernel* AddNKernel(DType dtype, bool many);
const DeviceKernel* CastKernel(DType from);
const DeviceKernel* ElementwiseKernel(DType dtype);
/// One kernel for each size of an element: 2, 4 or 8 bytes.
const DeviceKernel* TransposeKernel(std::size_t element_bytes);
const DeviceKernel* ReduceKernel(DType dtype);
/// Adds up the sums of ReduceKernel in `partials`.
const DeviceKernel* ReducePartialsKernel(DType dtype);
const DeviceKernel* SoftmaxKernel(DType dtype);

}  // namespace lgpu

#endif  // LGPU_KERNELS_CUDA_DEVICE_KERNELS_H_
