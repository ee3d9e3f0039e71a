#ifndef LGPU_TENSOR_H_
#define LGPU_TENSOR_H_

#include <cstddef>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/bytes.h"
#include "lgpu/dtype.h"
#include "lgpu/export.h"
#include "lgpu/shape.h"
#include "lgpu/tensor_export.h"

namespace lgpu {

namespace internal {
class TensorBuffer;
}

/// A Tensor is an immutable array on one device: the CPU or a logical GPU. Copies of a Tensor share its
/// memory, which goes back to its device with the last of them. Row-major, dense.
///
/// Thread-safety: as std::shared_ptr. A tensor may outlive its Context; then every use of its data is
/// FAILED_PRECONDITION.
class LGPU_API Tensor {
 public:
  Tensor() = default;

  /// False for a default-constructed tensor; its other members then answer with nothing or an error.
  bool has_value() const { return buffer_ != nullptr; }
  DType dtype() const;
  const Shape& shape() const;
  Bytes bytes() const;
  /// "/job:localhost/replica:0/task:0/device:GPU:0"
  const std::string& device() const;

  /// Waits for the tensor and copies it to the host. INVALID_ARGUMENT if `size` or T do not fit.
  absl::Status CopyToHost(void* to, std::size_t size) const;
  /// The same into as many elements as the tensor has: `CopyToHost<float>(vector)`.
  template <typename T>
  absl::Status CopyToHost(std::span<T> to) const {
    static_assert(kDTypeOf<T> != DType::kInvalid, "not an element type of lgpu");
    const absl::Status status = CheckType(kDTypeOf<T>);
    return status.ok() ? CopyToHost(to.data(), to.size_bytes()) : status;
  }
  template <typename T>
  absl::StatusOr<std::vector<T>> ToVector() const;

  /// The number that CUDA gives the GPU with the tensor in this process, after CUDA_VISIBLE_DEVICES; -1 for a
  /// tensor on a CPU or a simulated GPU.
  int cuda_device() const;
  /// Lends the tensor's memory to other code of this process, without a copy unless `options` asks for one.
  /// On a CPU or a simulated GPU it waits for the tensor. INVALID_ARGUMENT: `options.stream` is of another
  /// CUDA context.
  absl::StatusOr<TensorExport> Export(const ExportOptions& options) const;
  absl::StatusOr<TensorExport> Export() const { return Export({}); }

 private:
  friend class internal::TensorBuffer;
  explicit Tensor(std::shared_ptr<internal::TensorBuffer> buffer) : buffer_(std::move(buffer)) {}
  absl::Status CheckType(DType dtype) const;

  std::shared_ptr<internal::TensorBuffer> buffer_;
};

/// The values as nested lists: "[[44 56] [98 128]]"; long axes are shortened with "...". An error is
/// printed in their place.
LGPU_API std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

template <typename T>
absl::StatusOr<std::vector<T>> Tensor::ToVector() const {
  static_assert(kDTypeOf<T> != DType::kInvalid, "not an element type of lgpu");
  if (absl::Status status = CheckType(kDTypeOf<T>); !status.ok()) return status;
  std::vector<T> values(static_cast<std::size_t>(shape().elements()));
  if (absl::Status status = CopyToHost<T>(values); !status.ok()) return status;
  return values;
}

}  // namespace lgpu

#endif  // LGPU_TENSOR_H_
