#ifndef LGPU_DAEMON_SERVER_POLL_WAKER_H_
#define LGPU_DAEMON_SERVER_POLL_WAKER_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "allocator/broker/waker.h"
#include "base/unique_fd.h"

namespace lgpu::daemon {

/// A PollWaker ends the poll() of another thread. Thread-safe.
class PollWaker final : public Waker {
 public:
  /// RESOURCE_EXHAUSTED when there is no descriptor left.
  static absl::StatusOr<std::shared_ptr<PollWaker>> Create();

  /// Readable after Wake until Clear.
  int fd() const { return fd_.get(); }
  void Wake() const override;
  void Clear() const;

 private:
  explicit PollWaker(UniqueFd fd) : fd_(std::move(fd)) {}
  const UniqueFd fd_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_POLL_WAKER_H_
