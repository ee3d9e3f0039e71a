#include "kernels/cuda/device_kernels.h"

#include "kernels/cuda/cuda_kernels.h"

// The fat binaries of the .cu files (bin2c).
extern "C" const unsigned long long lgpu_cuda_memory[];
extern "C" const unsigned long long lgpu_cuda_add_n[];
extern "C" const unsigned long long lgpu_cuda_cast[];
extern "C" const unsigned long long lgpu_cuda_elementwise[];
extern "C" const unsigned long long lgpu_cuda_reduce[];
extern "C" const unsigned long long lgpu_cuda_transpose[];

namespace lgpu {

const DeviceKernel kFillKernel = {lgpu_cuda_memory, "lgpu_fill"};
const DeviceKernel kCopyKernel = {lgpu_cuda_memory, "lgpu_copy"};

namespace {

/// A kernel for every type of element; some are made for floating ones only.
struct Family {
  DeviceKernel half, bfloat16, float32, float64, int32, int64;

  const DeviceKernel* For(DType dtype) const {
    switch (dtype) {
      case DType::kFloat16:
        return &half;
      case DType::kBFloat16:
        return &bfloat16;
      case DType::kFloat32:
        return &float32;
      case DType::kFloat64:
        return &float64;
      case DType::kInt32:
        return int32.image == nullptr ? nullptr : &int32;
      case DType::kInt64:
        return int64.image == nullptr ? nullptr : &int64;
      case DType::kInvalid:
        break;
    }
    return nullptr;
  }
};

// Floating types, then whole ones.
#define LGPU_FLOATS(image, name) \
  {image, name "_half"}, {image, name "_bfloat16"}, {image, name "_float"}, { image, name "_double" }
#define LGPU_NUMBERS(image, name) \
  LGPU_FLOATS(image, name), {image, name "_int32"}, { image, name "_int64" }

const Family kAddN = {LGPU_NUMBERS(lgpu_cuda_add_n, "lgpu_add_n")};
const Family kAddNMany = {LGPU_NUMBERS(lgpu_cuda_add_n, "lgpu_add_n_many")};
const Family kCast = {LGPU_NUMBERS(lgpu_cuda_cast, "lgpu_cast")};
const Family kElementwise = {LGPU_NUMBERS(lgpu_cuda_elementwise, "lgpu_elementwise")};
const Family kReduce = {LGPU_NUMBERS(lgpu_cuda_reduce, "lgpu_reduce")};
const Family kSoftmax = {LGPU_FLOATS(lgpu_cuda_reduce, "lgpu_softmax"), {}, {}};

const DeviceKernel kTranspose2 = {lgpu_cuda_transpose, "lgpu_transpose_2"};
const DeviceKernel kTranspose4 = {lgpu_cuda_transpose, "lgpu_transpose_4"};
const DeviceKernel kTranspose8 = {lgpu_cuda_transpose, "lgpu_transpose_8"};

}  // namespace

const DeviceKernel* AddNKernel(DType dtype, bool many) { return (many ? kAddNMany : kAddN).For(dtype); }

const DeviceKernel* CastKernel(DType from) { return kCast.For(from); }
const DeviceKernel* ElementwiseKernel(DType dtype) { return kElementwise.For(dtype); }
const DeviceKernel* TransposeKernel(std::size_t element_bytes) {
  if (element_bytes == 2) return &kTranspose2;
  return element_bytes == 8 ? &kTranspose8 : &kTranspose4;
}
const DeviceKernel* ReduceKernel(DType dtype) { return kReduce.For(dtype); }
const DeviceKernel* SoftmaxKernel(DType dtype) { return kSoftmax.For(dtype); }

}  // namespace lgpu
