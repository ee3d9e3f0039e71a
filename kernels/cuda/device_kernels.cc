#include "kernels/cuda/device_kernels.h"

#include "kernels/cuda/cuda_kernels.h"

// The images that the build makes of the .cu files (bin2c).
#define LGPU_IMAGE(stem)                                  \
  extern "C" const unsigned long long lgpu_cuda_##stem[]; \
  extern "C" const unsigned char lgpu_cuda_##stem##_ptx[]
LGPU_IMAGE(memory);
LGPU_IMAGE(add_n);
LGPU_IMAGE(cast);
LGPU_IMAGE(elementwise);
LGPU_IMAGE(reduce);
LGPU_IMAGE(transpose);

namespace lgpu {

namespace {

const DeviceImage kMemoryImage = {lgpu_cuda_memory, lgpu_cuda_memory_ptx};
const DeviceImage kAddNImage = {lgpu_cuda_add_n, lgpu_cuda_add_n_ptx};
const DeviceImage kCastImage = {lgpu_cuda_cast, lgpu_cuda_cast_ptx};
const DeviceImage kElementwiseImage = {lgpu_cuda_elementwise, lgpu_cuda_elementwise_ptx};
const DeviceImage kReduceImage = {lgpu_cuda_reduce, lgpu_cuda_reduce_ptx};
const DeviceImage kTransposeImage = {lgpu_cuda_transpose, lgpu_cuda_transpose_ptx};

}  // namespace

const DeviceKernel kFillKernel = {&kMemoryImage, "lgpu_fill"};
const DeviceKernel kCopyKernel = {&kMemoryImage, "lgpu_copy"};

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

const Family kAddN = {LGPU_NUMBERS(&kAddNImage, "lgpu_add_n")};
const Family kAddNMany = {LGPU_NUMBERS(&kAddNImage, "lgpu_add_n_many")};
const Family kCast = {LGPU_NUMBERS(&kCastImage, "lgpu_cast")};
const Family kElementwise = {LGPU_NUMBERS(&kElementwiseImage, "lgpu_elementwise")};
const Family kReduce = {LGPU_NUMBERS(&kReduceImage, "lgpu_reduce")};
const Family kReducePartials = {
    {&kReduceImage, "lgpu_reduce_partials_half"},  {&kReduceImage, "lgpu_reduce_partials_bfloat16"},
    {&kReduceImage, "lgpu_reduce_partials_float"}, {&kReduceImage, "lgpu_reduce_double"},
    {&kReduceImage, "lgpu_reduce_partials_int32"}, {&kReduceImage, "lgpu_reduce_int64"}};
const Family kSoftmax = {LGPU_FLOATS(&kReduceImage, "lgpu_softmax"), {}, {}};

const DeviceKernel kTranspose2 = {&kTransposeImage, "lgpu_transpose_2"};
const DeviceKernel kTranspose4 = {&kTransposeImage, "lgpu_transpose_4"};
const DeviceKernel kTranspose8 = {&kTransposeImage, "lgpu_transpose_8"};

}  // namespace

const DeviceKernel* AddNKernel(DType dtype, bool many) { return (many ? kAddNMany : kAddN).For(dtype); }

const DeviceKernel* CastKernel(DType from) { return kCast.For(from); }
const DeviceKernel* ElementwiseKernel(DType dtype) { return kElementwise.For(dtype); }
const DeviceKernel* TransposeKernel(std::size_t element_bytes) {
  if (element_bytes == 2) return &kTranspose2;
  return element_bytes == 8 ? &kTranspose8 : &kTranspose4;
}
const DeviceKernel* ReduceKernel(DType dtype) { return kReduce.For(dtype); }
const DeviceKernel* ReducePartialsKernel(DType dtype) { return kReducePartials.For(dtype); }
const DeviceKernel* SoftmaxKernel(DType dtype) { return kSoftmax.For(dtype); }

}  // namespace lgpu
