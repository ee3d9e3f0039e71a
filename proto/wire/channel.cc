#include "proto/wire/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "proto/wire/text.h"

namespace lgpu {
namespace wire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kControlBytes = CMSG_SPACE(sizeof(int) * Protocol::kMaxFdsPerFrame);

std::string ErrnoText(int error) { return std::strerror(error); }

// Waits until `fd` is ready for `events`, or until the deadline. A hang-up counts as ready: the next call
// reports it.
PlainStatus WaitFor(int fd, short events, Channel::Deadline deadline, const char* waiting_for) {
  for (;;) {
    timespec timeout = {};
    if (deadline && *deadline != Channel::kAtOnce) {
      const auto left = std::max(*deadline - Clock::now(), Clock::duration::zero());
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
      timeout.tv_sec = static_cast<time_t>(seconds.count());
      timeout.tv_nsec = static_cast<long>(std::chrono::nanoseconds(left - seconds).count());
    }
    pollfd entry = {.fd = fd, .events = events, .revents = 0};
    const int ready = ::ppoll(&entry, 1, deadline ? &timeout : nullptr, nullptr);
    if (ready > 0) return {};
    if (ready == 0) {
      return PlainError(PlainCode::kDeadlineExceeded, Text("the time for ", waiting_for, " is over"));
    }
    if (errno != EINTR) {
      return PlainError(PlainCode::kInternal, Text("ppoll on a session: ", ErrnoText(errno)));
    }
  }
}

PlainStatus SendError(int error, std::size_t bytes, std::size_t fds) {
  switch (error) {
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
      return PlainError(PlainCode::kUnavailable, "the other end of the session is gone");
    case ETOOMANYREFS:
      return PlainError(PlainCode::kAborted,
                        "this user has too many descriptors on their way in sockets; send again later");
    case ENOBUFS:
    case ENOMEM:
      return PlainError(PlainCode::kAborted,
                        Text("no memory for a frame: ", ErrnoText(error), "; send again later"));
    case EMSGSIZE:
      return PlainError(PlainCode::kResourceExhausted,
                        Text("a frame of ", bytes, " bytes is more than the socket's buffer holds"));
    case EBADF:
      return PlainError(
          PlainCode::kInvalidArgument,
          Text("a frame with ", fds, " descriptors: one of them, or the session itself, is not open"));
    default:
      return PlainError(PlainCode::kInternal, Text("sendmsg on a session: ", ErrnoText(error)));
  }
}

// Takes the descriptors out of a received message and owns them, even if the message is otherwise wrong.
void TakeFds(msghdr& message, std::vector<UniqueFd>& fds) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    fds.reserve(fds.size() + count);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
}

PlainStatus CheckPacket(const msghdr& message, std::size_t bytes) {
  if (bytes == 0) return PlainError(PlainCode::kUnavailable, "the other end closed the session");
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return PlainError(PlainCode::kInvalidArgument,
                      Text("a packet is longer than a frame may be (", Protocol::kMaxFrameBytes, " bytes)"));
  }
  return {};
}

}  // namespace

PlainStatus Channel::Send(std::string_view frame, std::span<const int> fds, Deadline deadline) {
  if (frame.size() > Protocol::kMaxFrameBytes || fds.size() > Protocol::kMaxFdsPerFrame) {
    return PlainError(PlainCode::kResourceExhausted,
                      Text("a frame of ", frame.size(), " bytes and ", fds.size(), " descriptors; at most ",
                           Protocol::kMaxFrameBytes, " and ", Protocol::kMaxFdsPerFrame, " go in one"));
  }
  if (frame.empty()) return PlainError(PlainCode::kInvalidArgument, "a frame without a body cannot be sent");

  iovec part = {.iov_base = const_cast<char*>(frame.data()), .iov_len = frame.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[kControlBytes];
  if (!fds.empty()) {
    auto* header = reinterpret_cast<cmsghdr*>(control);
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  }
  for (;;) {
    if (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return SendError(errno, frame.size(), fds.size());
    if (PlainStatus ready = WaitFor(socket_.get(), POLLOUT, deadline, "the other end to read"); !ready.ok()) {
      return ready;
    }
  }
}

// With a far deadline no poll precedes recvmsg: the socket itself waits, a second at most.
bool Channel::MayBlock(Deadline deadline) {
  constexpr std::chrono::seconds kSlice{1};
  if (!deadline) return !has_receive_timeout_ || SetReceiveTimeout(std::chrono::seconds(0));
  if (*deadline == kAtOnce || *deadline - Clock::now() < kSlice) return false;
  return has_receive_timeout_ || SetReceiveTimeout(kSlice);
}

bool Channel::SetReceiveTimeout(std::chrono::seconds timeout) {
  const timeval value = {.tv_sec = timeout.count(), .tv_usec = 0};
  if (::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &value, sizeof(value)) != 0) return false;
  has_receive_timeout_ = timeout.count() != 0;
  return true;
}

PlainStatus Channel::Receive(std::string_view& frame, Descriptors& beside, Deadline deadline) {
  beside.fds.clear();
  beside.fds_cut = false;
  frame = {};
  if (!buffer_) buffer_ = std::make_unique_for_overwrite<char[]>(Protocol::kMaxFrameBytes);
  iovec part = {.iov_base = buffer_.get(), .iov_len = Protocol::kMaxFrameBytes};
  alignas(cmsghdr) char control[kControlBytes];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  ssize_t bytes;
  for (;;) {
    message.msg_controllen = sizeof(control);
    bytes = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | (MayBlock(deadline) ? 0 : MSG_DONTWAIT));
    if (bytes >= 0) break;
    if (errno == EINTR) continue;
    if (errno == ECONNRESET) {
      return PlainError(PlainCode::kUnavailable, "the other end of the session is gone");
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      return PlainError(PlainCode::kInternal, Text("recvmsg on a session: ", ErrnoText(errno)));
    }
    if (MayBlock(deadline)) {
      continue;  // a slice has passed
    }
    if (PlainStatus ready = WaitFor(socket_.get(), POLLIN, deadline, "a frame to arrive"); !ready.ok()) {
      return ready;
    }
  }
  TakeFds(message, beside.fds);
  beside.fds_cut = (message.msg_flags & MSG_CTRUNC) != 0;
  if (beside.fds_cut) beside.fds.clear();
  PlainStatus status = CheckPacket(message, static_cast<std::size_t>(bytes));
  if (status.ok()) {
    frame = std::string_view(buffer_.get(), static_cast<std::size_t>(bytes));
  } else {
    beside.fds.clear();
  }
  return status;
}

PlainStatus Channel::TakeOver(Channel other) {
  if (::dup3(other.fd(), fd(), O_CLOEXEC) < 0) {
    return PlainError(PlainCode::kResourceExhausted, Text("dup3 of a session's socket: ", ErrnoText(errno)));
  }
  // A new socket has no receive time-out.
  has_receive_timeout_ = other.has_receive_timeout_;
  return {};
}

PlainStatus Channel::SendLast(std::string_view frame, Deadline deadline) {
  ::shutdown(socket_.get(), SHUT_RD);
  PlainStatus sent = Send(frame, {}, deadline);
  char byte;
  constexpr int kMaxUnread = 1024;  // more than a socket takes
  for (int i = 0; i < kMaxUnread; ++i) {
    if (::recv(socket_.get(), &byte, sizeof(byte), MSG_DONTWAIT) <= 0) break;
  }
  return sent;
}

void Channel::Shutdown() { ::shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace wire

PlainResult<PeerCredentials> GetPeerCredentials(int socket) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return PlainError(PlainCode::kInternal, wire::Text("getsockopt(SO_PEERCRED): ", std::strerror(errno)));
  }
  return PeerCredentials{.uid = peer.uid, .gid = peer.gid, .pid = peer.pid};
}

}  // namespace lgpu
