#include "daemon/server/poll_waker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace lgpu::daemon {

absl::StatusOr<std::shared_ptr<PollWaker>> PollWaker::Create() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", std::strerror(errno)));
  return std::shared_ptr<PollWaker>(new PollWaker(std::move(fd)));
}

void PollWaker::Wake() const {
  const std::uint64_t one = 1;
  // It fails only when the counter is full: then it is readable anyway.
  [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof(one));
}

void PollWaker::Clear() const {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t read = ::read(fd_.get(), &count, sizeof(count));
}

}  // namespace lgpu::daemon
