#ifndef LGPU_KERNELS_LAUNCHERS_TRANSPOSE_H_
#define LGPU_KERNELS_LAUNCHERS_TRANSPOSE_H_

#include <optional>

#include "absl/status/status.h"
#include "kernels/bodies/elementwise.h"
#include "kernels/op.h"

namespace lgpu {

/// Transposes by tiles where they pay. Nothing, and no launch, for other moves: rows that stay rows, and
/// matrices with a side of fewer than 16 elements. `p` describes the move element by element.
std::optional<absl::Status> TransposeByTiles(const code::ElementwiseParameters& p, DType dtype,
                                             Launcher& launcher);

}  // namespace lgpu

#endif  // LGPU_KERNELS_LAUNCHERS_TRANSPOSE_H_
