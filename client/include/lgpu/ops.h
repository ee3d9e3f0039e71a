#ifndef LGPU_OPS_H_
#define LGPU_OPS_H_

#include <initializer_list>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "lgpu/export.h"
#include "lgpu/tensor.h"

namespace lgpu {

// Ops run eagerly, in the context of their inputs (all of one context, else INVALID_ARGUMENT), on the
// device of this thread's innermost DeviceScope or where default placement puts them. Inputs on other
// devices are copied, as the context's device policy says. Errors: INVALID_ARGUMENT for shapes and dtypes
// that do not fit, with TensorFlow's texts; RESOURCE_EXHAUSTED with a Refusal when the output does not fit.

struct MatMulOptions {
  bool transpose_a = false;
  bool transpose_b = false;
};
/// [m,k] x [k,n] -> [m,n], all of one dtype; float16 and bfloat16 accumulate in float. int32 and int64 run on
/// the CPU only.
LGPU_API absl::StatusOr<Tensor> MatMul(const Tensor& a, const Tensor& b, const MatMulOptions& options = {});

/// The elementwise sum of one or more tensors of one shape and dtype. One input is returned unchanged.
LGPU_API absl::StatusOr<Tensor> AddN(std::span<const Tensor> inputs);
inline absl::StatusOr<Tensor> AddN(std::initializer_list<Tensor> inputs) {
  return AddN(std::span<const Tensor>(inputs.begin(), inputs.size()));
}

/// The same values in another dtype. To a floating type: rounded once, to nearest even; too large becomes
/// infinity. From a floating to a whole type: towards zero; NaN becomes 0, and what is out of range the
/// nearest end of the range. int64 to int32: the low bits. On the CPU only, unless
/// ContextOptions::cast_on_gpu.
LGPU_API absl::StatusOr<Tensor> Cast(const Tensor& input, DType to);

/// The tensor on the named device: itself, or a copy; no op, and no policy or scope has a say.
/// INVALID_ARGUMENT
/// "/job:localhost/replica:0/task:0/device:GPU:2 unknown device." where there is none.
LGPU_API absl::StatusOr<Tensor> CopyToDevice(const Tensor& input, std::string_view device);

/// A copy of the tensor on the device of this thread's scope: the explicit copy between devices.
LGPU_API absl::StatusOr<Tensor> Identity(const Tensor& input);

/// The shape, the number of elements, and the number of dimensions of a tensor, as int32. They read no
/// values: nothing is copied for them, and where no scope asks for a device they run where their input is.
LGPU_API absl::StatusOr<Tensor> ShapeOf(const Tensor& input);
LGPU_API absl::StatusOr<Tensor> SizeOf(const Tensor& input);
LGPU_API absl::StatusOr<Tensor> RankOf(const Tensor& input);

}  // namespace lgpu

#endif  // LGPU_OPS_H_
