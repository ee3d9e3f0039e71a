#ifndef LGPU_PYTHON_MODULE_ERRORS_H_
#define LGPU_PYTHON_MODULE_ERRORS_H_

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lgpu::python {

/// A StatusError carries an error of liblgpu to the caller in Python, where it is an exception of
/// lgpu.errors.
class StatusError : public std::runtime_error {
 public:
  explicit StatusError(absl::Status status) : std::runtime_error("lgpu"), status_(std::move(status)) {}
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

inline void Check(absl::Status status) {
  if (!status.ok()) throw StatusError(std::move(status));
}
template <typename T>
T Check(absl::StatusOr<T> value) {
  if (!value.ok()) throw StatusError(std::move(value).status());
  return *std::move(value);
}

/// The exception of lgpu.errors for a status that is not OK.
nanobind::object ExceptionOf(const absl::Status& status);
/// Python's error is that of the status. Where a signal is pending, its handler runs first, and what it
/// raises is the error.
void SetPythonError(const absl::Status& status);
/// StatusErrors become exceptions of lgpu.errors.
void RegisterErrors();

}  // namespace lgpu::python

#endif  // LGPU_PYTHON_MODULE_ERRORS_H_
