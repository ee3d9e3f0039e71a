#ifndef LGPU_TENSOR_IMPORT_H_
#define LGPU_TENSOR_IMPORT_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "lgpu/context.h"
#include "lgpu/dtype.h"
#include "lgpu/export.h"
#include "lgpu/shape.h"
#include "lgpu/tensor.h"

namespace lgpu {

/// A TensorImport copies an array that other code of this process has in the memory of a real GPU into a
/// tensor, without a way over the host. The tensor lies on a logical GPU of the same card: that of the
/// innermost DeviceScope, else the first one there. A DeviceScope that asks for any other device gets a copy
/// of it.
///
/// Thread-safety: const members, from any thread. It may outlive its Context; Copy is FAILED_PRECONDITION
/// then, and nothing may be queued on `stream`.
class LGPU_API TensorImport {
 public:
  /// `cuda_device`: the card, as CUDA numbers it in this process. NOT_FOUND: no GPU of the Context is on it.
  static absl::StatusOr<TensorImport> Open(const Context& context, int cuda_device);

  /// The CUstream that reads the array. Before Copy its owner makes it wait for the work that fills the
  /// array.
  void* stream() const { return stream_; }
  /// A tensor with a copy of the dense, row-major array at `data`, an address of the card. Waits until it is
  /// read. Errors as Context::ConstantBytes.
  absl::StatusOr<Tensor> Copy(DType dtype, const Shape& shape, const void* data) const;

 private:
  TensorImport(std::shared_ptr<internal::ContextState> state, int gpu, void* stream)
      : state_(std::move(state)), gpu_(gpu), stream_(stream) {}
  std::shared_ptr<internal::ContextState> state_;
  int gpu_;
  void* stream_;
};

}  // namespace lgpu

#endif  // LGPU_TENSOR_IMPORT_H_
