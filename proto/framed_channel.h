#ifndef LGPU_PROTO_FRAMED_CHANNEL_H_
#define LGPU_PROTO_FRAMED_CHANNEL_H_

#include <sys/socket.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "proto/wire/channel.h"
#include "proto/wire/connect.h"

namespace lgpu {

/// A FramedChannel is a wire::Channel of whole frames. `Codec` says what a frame is and how it is encoded:
///   using Frame = ...;
///   static void Encode(const Frame&, std::string& out);   // replaces `out`
///   static bool Decode(std::string_view, Frame&);         // replaces the frame; false: the bytes are none
///   static void Clear(Frame&);
/// Thread-safety as wire::Channel.
template <typename Codec>
class FramedChannel : public wire::Protocol {
 public:
  using Frame = typename Codec::Frame;
  using Deadline = wire::Channel::Deadline;
  static constexpr auto kAtOnce = wire::Channel::kAtOnce;

  /// A frame with the descriptors that came with it.
  struct Received : wire::Channel::Descriptors {
    Frame frame;
  };

  FramedChannel() = default;
  explicit FramedChannel(UniqueFd socket) : channel_(std::move(socket)) {}

  /// Connects to a listening socket; errors as ConnectUnix.
  static absl::StatusOr<FramedChannel> Connect(const std::string& path) {
    PlainResult<UniqueFd> socket = ConnectUnix(path, SOCK_SEQPACKET);
    if (!socket.ok()) return absl::Status(socket.status());
    return FramedChannel(*std::move(socket));
  }

  /// Errors as wire::Channel::Send.
  absl::Status Send(const Frame& frame, std::span<const int> fds = {}, Deadline deadline = {}) {
    Codec::Encode(frame, encoded_);
    return channel_.Send(encoded_, fds, deadline);
  }
  /// Errors as wire::Channel::SendLast.
  absl::Status SendLast(const Frame& frame, Deadline deadline) {
    Codec::Encode(frame, encoded_);
    return channel_.SendLast(encoded_, deadline);
  }
  /// Errors as wire::Channel::Receive; INVALID_ARGUMENT also for bytes that are no frame, after which the
  /// connection is of no use.
  absl::StatusOr<Received> Receive(Deadline deadline = {}) {
    Received received;
    if (absl::Status status = ReceiveInto(received, deadline); !status.ok()) return status;
    return received;
  }
  /// As Receive, into a frame of the caller's: reuses its memory and closes its descriptors. On an error it
  /// is empty.
  absl::Status ReceiveInto(Received& received, Deadline deadline = {}) {
    std::string_view packet;
    absl::Status status = channel_.Receive(packet, received, deadline);
    if (status.ok() && !Codec::Decode(packet, received.frame)) {
      status =
          absl::InvalidArgumentError("a packet of " + std::to_string(packet.size()) + " bytes is no frame");
    }
    if (!status.ok()) {
      received.fds.clear();
      Codec::Clear(received.frame);
    }
    return status;
  }

  void Shutdown() { channel_.Shutdown(); }
  /// As wire::Channel::TakeOver.
  absl::Status TakeOver(FramedChannel other) { return channel_.TakeOver(std::move(other.channel_)); }

  int fd() const { return channel_.fd(); }
  explicit operator bool() const { return channel_.fd() >= 0; }

 private:
  wire::Channel channel_;
  std::string encoded_;  // of Send; only grows
};

}  // namespace lgpu

#endif  // LGPU_PROTO_FRAMED_CHANNEL_H_
