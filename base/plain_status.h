#ifndef LGPU_BASE_PLAIN_STATUS_H_
#define LGPU_BASE_PLAIN_STATUS_H_

#include <string>
#include <type_traits>
#include <utility>

namespace lgpu {

/// The canonical status codes that code without abseil uses; the numbers are absl::StatusCode's.
enum class PlainCode {
  kOk = 0,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kAborted = 10,
  kInternal = 13,
  kUnavailable = 14,
};

/// A PlainStatus is an absl::Status for code that is linked without abseil. Where abseil is in use it
/// converts to an absl::Status by itself. It is a value type.
struct [[nodiscard]] PlainStatus {
  PlainCode code = PlainCode::kOk;
  std::string message = {};

  bool ok() const { return code == PlainCode::kOk; }

  /// To absl::Status, which this header does not know.
  template <typename Status>
  requires requires(const Status& status) { status.raw_code(); }
  operator Status() const {
    return Status(static_cast<std::remove_cvref_t<decltype(std::declval<const Status&>().code())>>(code),
                  message);
  }
};

inline PlainStatus PlainError(PlainCode code, std::string message) { return {code, std::move(message)}; }

/// A PlainResult is a value or an error; it converts to an absl::StatusOr of the same type.
template <typename T>
class [[nodiscard]] PlainResult {
 public:
  /// `status` is an error.
  PlainResult(PlainStatus status) : status_(std::move(status)) {
    if (ok()) status_ = {PlainCode::kInternal, "a result without a value"};
  }
  PlainResult(T value) : value_(std::move(value)) {}

  bool ok() const { return status_.ok(); }
  const PlainStatus& status() const { return status_; }
  T& operator*() & { return value_; }
  T&& operator*() && { return std::move(value_); }
  T* operator->() { return &value_; }

  template <typename StatusOr>
  requires std::is_same_v<typename StatusOr::value_type, T>
  operator StatusOr() && {
    if (ok()) return StatusOr(std::move(value_));
    return StatusOr(std::remove_cvref_t<decltype(std::declval<const StatusOr&>().status())>(status_));
  }

 private:
  PlainStatus status_;
  T value_{};
};

}  // namespace lgpu

// LGPU_RETURN_IF_ERROR and LGPU_ASSIGN_OR_RETURN of lgpu/status.h, for PlainStatus and PlainResult.
#define LGPU_PLAIN_RETURN_IF_ERROR(expression)                                 \
  do {                                                                         \
    if (::lgpu::PlainStatus plain_status = (expression); !plain_status.ok()) { \
      return plain_status;                                                     \
    }                                                                          \
  } while (false)
#define LGPU_PLAIN_ASSIGN_OR_RETURN(result, declaration, expression) \
  auto result = (expression);                                        \
  if (!result.ok()) return result.status();                          \
  declaration = *std::move(result)

#endif  // LGPU_BASE_PLAIN_STATUS_H_
