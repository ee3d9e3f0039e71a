#ifndef LGPU_CLIENT_LINK_FRAME_CHANNEL_H_
#define LGPU_CLIENT_LINK_FRAME_CHANNEL_H_

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/plain_status.h"
#include "base/unique_fd.h"
#include "proto/wire/channel.h"
#include "proto/wire/session_messages.h"
#include "proto/wire/text.h"

namespace lgpu::link {

/// A FrameChannel is a wire::Channel of whole frames: a program's end of a session. Thread-safety as
/// wire::Channel.
class FrameChannel : public wire::Protocol {
 public:
  using Deadline = wire::Channel::Deadline;
  static constexpr auto kAtOnce = wire::Channel::kAtOnce;

  /// A frame with the descriptors that came with it.
  struct Received : wire::Channel::Descriptors {
    wire::Frame frame;
  };

  FrameChannel() = default;
  explicit FrameChannel(UniqueFd socket) : channel_(std::move(socket)) {}

  /// Errors as wire::Channel::Send.
  PlainStatus Send(const wire::Frame& frame, std::span<const int> fds = {}, Deadline deadline = {}) {
    wire::Encode(frame, encoded_);
    return channel_.Send(encoded_, fds, deadline);
  }
  /// Errors as wire::Channel::Receive; INVALID_ARGUMENT also for bytes that are no frame, after which the
  /// connection is of no use. On an error `received` is empty.
  PlainStatus Receive(Received& received, Deadline deadline = {}) {
    std::string_view packet;
    received.frame = {};
    PlainStatus status = channel_.Receive(packet, received, deadline);
    if (status.ok() && !wire::Decoder(packet).Read(received.frame)) {
      received = {};
      return PlainError(PlainCode::kInvalidArgument,
                        wire::Text("a packet of ", packet.size(), " bytes is no frame"));
    }
    return status;
  }

  void Shutdown() { channel_.Shutdown(); }
  /// As wire::Channel::TakeOver.
  PlainStatus TakeOver(FrameChannel other) { return channel_.TakeOver(std::move(other.channel_)); }
  /// As wire::Channel::Forget.
  void Forget() { channel_.Forget(); }

  int fd() const { return channel_.fd(); }

 private:
  wire::Channel channel_;
  std::string encoded_;  // of Send; only grows
};

}  // namespace lgpu::link

#endif  // LGPU_CLIENT_LINK_FRAME_CHANNEL_H_
