#ifndef LGPU_TENSOR_EXPORT_H_
#define LGPU_TENSOR_EXPORT_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "lgpu/export.h"

namespace lgpu {

class Tensor;

namespace internal {
class TensorBuffer;
}

/// A TensorExport lends the memory of one Tensor to code that is not lgpu's: DLPack, a buffer of Python's.
/// The memory stays mapped at its address, and charged to its lease, until the export goes; a Context that
/// has exports refuses Close.
///
/// Thread-safety: as std::unique_ptr; the destructor runs on any thread. The last export of a Context that is
/// gone closes the rest of it, and waits for that.
class LGPU_API TensorExport {
 public:
  /// Lends nothing.
  TensorExport() = default;
  ~TensorExport();
  TensorExport(TensorExport&& other) noexcept = default;
  TensorExport& operator=(TensorExport&& other) noexcept;

  /// Row-major, dense, and readable by this process's CPU. Null for a tensor without elements. Tensors are
  /// immutable: nothing may be written there.
  const void* data() const;

 private:
  friend class Tensor;
  explicit TensorExport(std::shared_ptr<internal::TensorBuffer> buffer) : buffer_(std::move(buffer)) {}
  void Release();
  std::shared_ptr<internal::TensorBuffer> buffer_;
};

/// Whether Context::Close gave this error because memory of the Context is in use outside of it: exports, or
/// blocks of Context::Memory. They may be gone by now.
LGPU_API bool IsMemoryInUse(const absl::Status& status);

}  // namespace lgpu

#endif  // LGPU_TENSOR_EXPORT_H_
