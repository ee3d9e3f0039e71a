#ifndef LGPU_KERNELS_AXES_H_
#define LGPU_KERNELS_AXES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/op.h"

namespace lgpu {

/// Which dimensions of `shape` the list names, as bits; negative numbers count from the end. INVALID_ARGUMENT
/// with TensorFlow's text.
absl::StatusOr<std::uint32_t> ReducedAxes(const Shape& shape, const AxisList& axes);

/// The new order of a transposed tensor's dimensions: the list, or with `all` the reversed one.
AxisList TransposedOrder(const Shape& shape, const AxisList& axes);

}  // namespace lgpu

#endif  // LGPU_KERNELS_AXES_H_
