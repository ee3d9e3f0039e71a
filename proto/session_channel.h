#ifndef LGPU_PROTO_SESSION_CHANNEL_H_
#define LGPU_PROTO_SESSION_CHANNEL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "lgpu/v1/session.pb.h"

namespace lgpu {

/// Who is at the other end of a Unix socket, as the kernel says.
struct PeerCredentials {
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::int64_t pid = 0;  // 0: in a pid namespace that this process cannot see
};
absl::StatusOr<PeerCredentials> GetPeerCredentials(int socket);

/// A frame with the descriptors that came with it.
struct ReceivedFrame {
  v1::Frame frame;
  std::vector<UniqueFd> fds;
  /// More came than this process may open (RLIMIT_NOFILE); none is here then.
  bool fds_cut = false;
};

/// A SessionChannel is one end of a session: a connected AF_UNIX SOCK_SEQPACKET socket that carries one
/// v1::Frame per packet, with descriptors beside it. It owns the socket.
///
/// Thread-safety: one thread may Send while another one Receives; two senders, or two receivers, need a
/// lock of the caller's.
class SessionChannel {
 public:
  static constexpr std::uint32_t kProtocolVersion = 2;
  static constexpr std::uint32_t kOldestVersion = 1;
  static constexpr std::uint32_t kTrimVersion = 2;  // who speaks it answers Trim
  static constexpr std::size_t kMaxFrameBytes = 64 * 1024;
  static constexpr std::size_t kMaxFdsPerFrame = 253;  // SCM_MAX_FD of the kernel
  static constexpr std::size_t kMaxReturnChunks = 4096;

  using Deadline = std::optional<std::chrono::steady_clock::time_point>;  // nothing: wait for ever
  static constexpr std::chrono::steady_clock::time_point kAtOnce{};       // try once, look at no clock

  SessionChannel() = default;
  explicit SessionChannel(UniqueFd socket) : socket_(std::move(socket)) {}

  /// Connects to a listening socket. UNAVAILABLE: nobody there, naming path and cause;
  /// PERMISSION_DENIED: no right to; INVALID_ARGUMENT: the path is too long for a socket.
  static absl::StatusOr<SessionChannel> Connect(const std::string& path);

  /// RESOURCE_EXHAUSTED: the frame or its descriptors are over the limits (a bug or a hostile size);
  /// UNAVAILABLE: the peer is gone, or DEADLINE_EXCEEDED it did not read in time; ABORTED: the kernel has too
  /// many descriptors in flight (ETOOMANYREFS) or too little memory, send again later; INVALID_ARGUMENT: a
  /// descriptor that is not open, or a frame without a body (no bytes, which would read as an end of file).
  /// Nothing was sent then. A deadline that has passed means: try once, without waiting. Never raises
  /// SIGPIPE.
  absl::Status Send(const v1::Frame& frame, std::span<const int> fds = {}, Deadline deadline = {});
  /// As Send, before the channel is closed, and takes nothing of the peer's any more: a socket that is closed
  /// with frames in it that nobody read would lose this one on its way.
  absl::Status SendLast(const v1::Frame& frame, Deadline deadline);
  /// The next frame. UNAVAILABLE: end of file; DEADLINE_EXCEEDED; INVALID_ARGUMENT: the packet is no Frame,
  /// is too long, or its descriptors were cut off (they are closed); the connection is of no use after that.
  /// A deadline that has passed means: look once, without waiting.
  absl::StatusOr<ReceivedFrame> Receive(Deadline deadline = {});
  /// As Receive, into a frame of the caller's, whose memory is used again and whose descriptors are closed.
  /// On an error it is empty.
  absl::Status ReceiveInto(ReceivedFrame& received, Deadline deadline = {});

  /// Ends both directions; a blocked Receive of another thread returns. The socket stays open.
  void Shutdown();
  /// Goes on with the connection of `other`, under the number that its own socket had. Nobody sends or
  /// receives meanwhile. RESOURCE_EXHAUSTED, and nothing changes.
  absl::Status TakeOver(SessionChannel other);

  int fd() const { return socket_.get(); }
  explicit operator bool() const { return static_cast<bool>(socket_); }

 private:
  /// Whether recvmsg itself may wait, with the socket's receive time-out as the slice.
  bool MayBlock(Deadline deadline);
  bool SetReceiveTimeout(std::chrono::seconds timeout);

  UniqueFd socket_;
  // Not a vector: what no packet ever filled is never touched, so an idle session costs a page and not 64
  // KiB.
  std::unique_ptr<char[]> buffer_;  // of Receive
  bool has_receive_timeout_ = false;
  std::string encoded_;  // of Send; only grows
};

}  // namespace lgpu

#endif  // LGPU_PROTO_SESSION_CHANNEL_H_
