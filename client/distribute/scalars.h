#ifndef LGPU_CLIENT_DISTRIBUTE_SCALARS_H_
#define LGPU_CLIENT_DISTRIBUTE_SCALARS_H_

#include "absl/status/statusor.h"
#include "lgpu/context.h"
#include "lgpu/dtype.h"
#include "lgpu/tensor.h"

namespace lgpu::internal {

/// A tensor without dimensions, on the device of this thread's scope. INVALID_ARGUMENT for a whole dtype.
absl::StatusOr<Tensor> Scalar(const Context& context, DType dtype, double value);

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_DISTRIBUTE_SCALARS_H_
