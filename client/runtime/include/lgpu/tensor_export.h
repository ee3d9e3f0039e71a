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

/// How other code is going to use the memory of a tensor.
struct ExportOptions {
  /// On a real GPU: the CUstream of that code, in the card's primary context. What is queued there after the
  /// call waits for the tensor; the host does not. Null or 1: the legacy default stream; 2: the calling
  /// thread's own default stream.
  void* stream = nullptr;
  /// False, on a real GPU: that code orders its work after the tensor's itself, and `stream` is not used.
  bool orders_stream = true;
  /// Lends a copy on the same device, which is charged to the lease and may be written.
  bool copies = false;
};

/// A TensorExport lends the memory of one Tensor to code that is not lgpu's: DLPack, a buffer of Python's.
/// The memory stays mapped at its address, and charged to its lease, until the export goes; a Context that
/// has exports refuses Close.
///
/// Thread-safety: as std::unique_ptr; the destructor runs on any thread. The last export of a Context that is
/// gone closes the rest of it, and waits for that.
/// Streams: on a real GPU the export ends after its user has queued the last work with the memory. Where that
/// was on a default stream, the memory is used again behind that work. Else the end of the export waits, as
/// cudaFree does, until the card has done all work of this program: other streams may be gone by then.
class LGPU_API TensorExport {
 public:
  /// Lends nothing.
  TensorExport() = default;
  ~TensorExport();
  TensorExport(TensorExport&& other) noexcept = default;
  TensorExport& operator=(TensorExport&& other) noexcept;

  /// Row-major and dense. An address of the GPU for a tensor on a real one, else readable by this process's
  /// CPU. Null for a tensor without elements. Tensors are immutable: nothing but a copy may be written.
  const void* data() const;

 private:
  friend class Tensor;
  TensorExport(std::shared_ptr<internal::TensorBuffer> buffer, bool on_default_stream)
      : buffer_(std::move(buffer)), on_default_stream_(on_default_stream) {}
  void Release();
  std::shared_ptr<internal::TensorBuffer> buffer_;
  bool on_default_stream_ = true;
};

/// Whether Context::Close gave this error because memory of the Context is in use outside of it: exports, or
/// blocks of Context::Memory. They may be gone by now.
LGPU_API bool IsMemoryInUse(const absl::Status& status);

}  // namespace lgpu

#endif  // LGPU_TENSOR_EXPORT_H_
