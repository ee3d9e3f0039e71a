#include "proto/session_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/socket_connect.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kControlBytes = CMSG_SPACE(sizeof(int) * SessionChannel::kMaxFdsPerFrame);

std::string ErrnoText(int error) { return std::strerror(error); }

// Waits until `fd` is ready for `events`, or until the deadline. A hang-up counts as ready: the call that
// follows says what it is.
absl::Status WaitFor(int fd, short events, SessionChannel::Deadline deadline, const char* waiting_for) {
  for (;;) {
    timespec timeout = {};
    if (deadline && *deadline != SessionChannel::kAtOnce) {
      const auto left = std::max(*deadline - Clock::now(), Clock::duration::zero());
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
      timeout.tv_sec = static_cast<time_t>(seconds.count());
      timeout.tv_nsec = static_cast<long>(std::chrono::nanoseconds(left - seconds).count());
    }
    pollfd entry = {.fd = fd, .events = events, .revents = 0};
    const int ready = ::ppoll(&entry, 1, deadline ? &timeout : nullptr, nullptr);
    if (ready > 0) {
      return absl::OkStatus();
    }
    if (ready == 0) {
      return absl::DeadlineExceededError(absl::StrCat("the time for ", waiting_for, " is over"));
    }
    if (errno != EINTR) {
      return absl::InternalError(absl::StrCat("ppoll on a session: ", ErrnoText(errno)));
    }
  }
}

absl::Status SendError(int error, std::size_t bytes, std::size_t fds) {
  switch (error) {
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
      return absl::UnavailableError("the other end of the session is gone");
    case ETOOMANYREFS:
      return absl::AbortedError(
          "this user has too many descriptors on their way in sockets; send again later");
    case ENOBUFS:
    case ENOMEM:
      return absl::AbortedError(
          absl::StrCat("no memory for a frame: ", ErrnoText(error), "; send again later"));
    case EMSGSIZE:
      return absl::ResourceExhaustedError(
          absl::StrCat("a frame of ", bytes, " bytes is more than the socket's buffer holds"));
    case EBADF:
      return absl::InvalidArgumentError(absl::StrCat(
          "a frame with ", fds, " descriptors: one of them, or the session itself, is not open"));
    default:
      return absl::InternalError(absl::StrCat("sendmsg on a session: ", ErrnoText(error)));
  }
}

// Takes the descriptors out of a received message; they are owned from here on, whatever else is wrong.
void TakeFds(msghdr& message, std::vector<UniqueFd>& fds) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    fds.reserve(fds.size() + count);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
}

absl::Status CheckPacket(const msghdr& message, std::size_t bytes) {
  if (bytes == 0) {
    return absl::UnavailableError("the other end closed the session");
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packet is longer than a frame may be (", SessionChannel::kMaxFrameBytes, " bytes)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PeerCredentials> GetPeerCredentials(int socket) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return absl::InternalError(absl::StrCat("getsockopt(SO_PEERCRED): ", ErrnoText(errno)));
  }
  return PeerCredentials{.uid = peer.uid, .gid = peer.gid, .pid = peer.pid};
}

absl::StatusOr<SessionChannel> SessionChannel::Connect(const std::string& path) {
  absl::StatusOr<UniqueFd> socket = ConnectUnix(path, SOCK_SEQPACKET);
  if (!socket.ok()) {
    return std::move(socket).status();
  }
  return SessionChannel(*std::move(socket));
}

absl::Status SessionChannel::Send(const v1::Frame& frame, std::span<const int> fds, Deadline deadline) {
  const std::size_t bytes = frame.ByteSizeLong();
  if (bytes > kMaxFrameBytes || fds.size() > kMaxFdsPerFrame) {
    return absl::ResourceExhaustedError(absl::StrCat("a frame of ", bytes, " bytes and ", fds.size(),
                                                     " descriptors; at most ", kMaxFrameBytes, " and ",
                                                     kMaxFdsPerFrame, " go in one"));
  }
  if (bytes == 0) {
    return absl::InvalidArgumentError("a frame without a body cannot be sent");
  }
  if (encoded_.size() < bytes) {
    encoded_.resize(bytes);
  }
  frame.SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(encoded_.data()));

  iovec part = {.iov_base = encoded_.data(), .iov_len = bytes};
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
    if (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
      return absl::OkStatus();
    }
    if (errno == EINTR) {
      continue;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      return SendError(errno, bytes, fds.size());
    }
    if (absl::Status ready = WaitFor(socket_.get(), POLLOUT, deadline, "the other end to read");
        !ready.ok()) {
      return ready;
    }
  }
}

// A far deadline needs no poll before the receiving: the socket itself waits, a second at most.
bool SessionChannel::MayBlock(Deadline deadline) {
  constexpr std::chrono::seconds kSlice{1};
  if (!deadline) {
    return !has_receive_timeout_ || SetReceiveTimeout(std::chrono::seconds(0));
  }
  if (*deadline == kAtOnce || *deadline - Clock::now() < kSlice) {
    return false;
  }
  return has_receive_timeout_ || SetReceiveTimeout(kSlice);
}

bool SessionChannel::SetReceiveTimeout(std::chrono::seconds timeout) {
  const timeval value = {.tv_sec = timeout.count(), .tv_usec = 0};
  if (::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &value, sizeof(value)) != 0) {
    return false;
  }
  has_receive_timeout_ = timeout.count() != 0;
  return true;
}

absl::StatusOr<ReceivedFrame> SessionChannel::Receive(Deadline deadline) {
  ReceivedFrame received;
  if (absl::Status status = ReceiveInto(received, deadline); !status.ok()) {
    return status;
  }
  return received;
}

absl::Status SessionChannel::ReceiveInto(ReceivedFrame& received, Deadline deadline) {
  received.fds.clear();
  received.fds_cut = false;
  received.frame.Clear();
  if (!buffer_) {
    buffer_ = std::make_unique_for_overwrite<char[]>(kMaxFrameBytes);
  }
  iovec part = {.iov_base = buffer_.get(), .iov_len = kMaxFrameBytes};
  alignas(cmsghdr) char control[kControlBytes];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  ssize_t bytes;
  for (;;) {
    message.msg_controllen = sizeof(control);
    bytes = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | (MayBlock(deadline) ? 0 : MSG_DONTWAIT));
    if (bytes >= 0) {
      break;
    }
    if (errno == EINTR) {
      continue;
    }
    if (errno == ECONNRESET) {
      return absl::UnavailableError("the other end of the session is gone");
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      return absl::InternalError(absl::StrCat("recvmsg on a session: ", ErrnoText(errno)));
    }
    if (MayBlock(deadline)) {
      continue;  // a slice has passed
    }
    if (absl::Status ready = WaitFor(socket_.get(), POLLIN, deadline, "a frame to arrive"); !ready.ok()) {
      return ready;
    }
  }
  TakeFds(message, received.fds);
  received.fds_cut = (message.msg_flags & MSG_CTRUNC) != 0;
  if (received.fds_cut) {
    received.fds.clear();
  }
  absl::Status status = CheckPacket(message, static_cast<std::size_t>(bytes));
  if (status.ok() && !received.frame.ParseFromArray(buffer_.get(), static_cast<int>(bytes))) {
    status = absl::InvalidArgumentError(absl::StrCat("a packet of ", bytes, " bytes is no frame"));
  }
  if (!status.ok()) {
    received.frame.Clear();
    received.fds.clear();
  }
  return status;
}

absl::Status SessionChannel::TakeOver(SessionChannel other) {
  if (::dup3(other.fd(), fd(), O_CLOEXEC) < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("dup3 of a session's socket: ", ErrnoText(errno)));
  }
  // A new socket has no receive time-out.
  has_receive_timeout_ = other.has_receive_timeout_;
  return absl::OkStatus();
}

absl::Status SessionChannel::SendLast(const v1::Frame& frame, Deadline deadline) {
  ::shutdown(socket_.get(), SHUT_RD);
  const absl::Status sent = Send(frame, {}, deadline);
  char byte;
  constexpr int kMaxUnread = 1024;  // more than a socket takes
  for (int i = 0; i < kMaxUnread; ++i) {
    if (::recv(socket_.get(), &byte, sizeof(byte), MSG_DONTWAIT) <= 0) break;
  }
  return sent;
}

void SessionChannel::Shutdown() { ::shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace lgpu
