#ifndef LGPU_DAEMON_SERVER_WAKER_H_
#define LGPU_DAEMON_SERVER_WAKER_H_

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace lgpu::daemon {

/// A Waker ends the poll() of another thread. Thread-safe.
class Waker {
 public:
  /// RESOURCE_EXHAUSTED when there is no descriptor left.
  static absl::StatusOr<Waker> Create();

  /// Readable after Wake until Clear.
  int fd() const { return fd_.get(); }
  void Wake() const;
  void Clear() const;

 private:
  explicit Waker(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_WAKER_H_
