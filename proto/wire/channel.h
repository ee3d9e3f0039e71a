#ifndef LGPU_PROTO_WIRE_CHANNEL_H_
#define LGPU_PROTO_WIRE_CHANNEL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/plain_status.h"
#include "base/unique_fd.h"

namespace lgpu {

/// The process at the other end of a Unix socket, as the kernel names it.
struct PeerCredentials {
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::int64_t pid = 0;  // 0: in a pid namespace that this process cannot see
};
PlainResult<PeerCredentials> GetPeerCredentials(int socket);

namespace wire {

/// Versions and limits of the session protocol (docs/protocol.md).
struct Protocol {
  static constexpr std::uint32_t kProtocolVersion = 5;
  static constexpr std::uint32_t kOldestVersion = 1;
  static constexpr std::uint32_t kTrimVersion = 2;      // from here on a client answers Trim
  static constexpr std::uint32_t kAttachVersion = 3;    // from here on a daemon answers Attach
  static constexpr std::uint32_t kChargeVersion = 3;    // from here on a client page has `charges`
  static constexpr std::uint32_t kSnapshotVersion = 4;  // from here on a client can answer Snapshot
  static constexpr std::uint32_t kWithdrawVersion = 5;  // from here on a daemon knows Withdraw
  static constexpr std::uint32_t kGiveWayVersion = 5;  // from here on a client knows StillWaiting and Release
  static constexpr std::uint64_t kMostMoreMs = 3'600'000;  // of StillWaiting; what is above counts as this
  static constexpr std::size_t kMaxFrameBytes = 64 * 1024;
  static constexpr std::size_t kMaxFdsPerFrame = 253;  // SCM_MAX_FD of the kernel
  static constexpr std::size_t kMaxReturnChunks = 4096;
};

/// A Channel is one end of a session: a connected AF_UNIX SOCK_SEQPACKET socket that carries one encoded
/// frame per packet, with descriptors beside it. It owns the socket.
///
/// Thread-safety: one thread may Send while another one Receives; two senders, or two receivers, need a
/// lock of the caller's.
class Channel {
 public:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;  // nothing: wait for ever
  static constexpr std::chrono::steady_clock::time_point kAtOnce{};       // try once, look at no clock

  Channel() = default;
  explicit Channel(UniqueFd socket) : socket_(std::move(socket)) {}

  /// RESOURCE_EXHAUSTED: the frame or its descriptors are over the limits (a bug or a hostile size);
  /// UNAVAILABLE: the peer is gone, or DEADLINE_EXCEEDED it did not read in time; ABORTED: the kernel has too
  /// many descriptors in flight (ETOOMANYREFS) or too little memory, send again later; INVALID_ARGUMENT: a
  /// descriptor that is not open, or a frame without a body (no bytes, which would read as an end of file).
  /// Nothing was sent then. A deadline that has passed means: try once, without waiting. Never raises
  /// SIGPIPE.
  PlainStatus Send(std::string_view frame, std::span<const int> fds, Deadline deadline);
  /// As Send, before the channel is closed. Discards the peer's unread frames: closing a socket that still
  /// holds some would lose this one on its way.
  PlainStatus SendLast(std::string_view frame, Deadline deadline);

  /// The descriptors that came beside a frame.
  struct Descriptors {
    std::vector<UniqueFd> fds;
    /// More came than this process may open (RLIMIT_NOFILE); `fds` is empty then.
    bool fds_cut = false;
  };
  /// The next packet; `frame` is good until the next call. UNAVAILABLE: end of file; DEADLINE_EXCEEDED;
  /// INVALID_ARGUMENT: the packet is too long; the connection is of no use after that. On an error there are
  /// no descriptors. A deadline that has passed means: look once, without waiting.
  PlainStatus Receive(std::string_view& frame, Descriptors& beside, Deadline deadline);

  /// Ends both directions; a blocked Receive of another thread returns. The socket stays open.
  void Shutdown();
  /// Replaces this channel's socket by that of `other`; the descriptor keeps its number. Must not run beside
  /// Send or Receive. RESOURCE_EXHAUSTED: nothing has changed.
  PlainStatus TakeOver(Channel other);

  /// The program has closed the socket itself, and its number may be another file's by now: nothing is done
  /// to that one.
  void Forget() { (void)socket_.Release(); }

  int fd() const { return socket_.get(); }

 private:
  /// Whether recvmsg itself may wait, with the socket's receive time-out as the slice.
  bool MayBlock(Deadline deadline);
  bool SetReceiveTimeout(std::chrono::seconds timeout);

  UniqueFd socket_;
  // Not a vector: memory that no packet ever filled is never touched, so an idle session costs a page and not
  // 64 KiB.
  std::unique_ptr<char[]> buffer_;  // of Receive
  bool has_receive_timeout_ = false;
};

}  // namespace wire
}  // namespace lgpu

#endif  // LGPU_PROTO_WIRE_CHANNEL_H_
