#ifndef LGPU_PROTO_WIRE_FRAME_CHANNEL_H_
#define LGPU_PROTO_WIRE_FRAME_CHANNEL_H_

#include <span>
#include <string>
#include <string_view>

#include "base/plain_status.h"
#include "proto/wire/channel.h"
#include "proto/wire/session_messages.h"
#include "proto/wire/text.h"

namespace lgpu::wire {

/// A frame with the descriptors that came with it.
struct ReceivedFrame : Channel::Descriptors {
  Frame frame;
};

/// A FrameChannel is a Channel of whole frames: lgpud's end of a session, or a program's. Thread-safety as
/// Channel.
class FrameChannel : public Channel {
 public:
  using Channel::Channel;

  /// Errors as Channel::Send.
  PlainStatus Send(const Frame& frame, std::span<const int> fds = {}, Deadline deadline = {}) {
    Encode(frame, encoded_);
    return Channel::Send(encoded_, fds, deadline);
  }
  /// Errors as Channel::SendLast.
  PlainStatus SendLast(const Frame& frame, Deadline deadline) {
    Encode(frame, encoded_);
    return Channel::SendLast(encoded_, deadline);
  }
  /// Replaces `received`, and closes its descriptors. Errors as Channel::Receive; INVALID_ARGUMENT also for
  /// bytes that are no frame, after which the connection is of no use. On an error `received` is empty.
  PlainStatus Receive(ReceivedFrame& received, Deadline deadline = {}) {
    std::string_view packet;
    received.frame = {};
    PlainStatus status = Channel::Receive(packet, received, deadline);
    if (status.ok() && !Decoder(packet).Read(received.frame)) {
      received = {};
      return PlainError(PlainCode::kInvalidArgument,
                        Text("a packet of ", packet.size(), " bytes is no frame"));
    }
    return status;
  }

 private:
  std::string encoded_;  // of Send; only grows
};

}  // namespace lgpu::wire

#endif  // LGPU_PROTO_WIRE_FRAME_CHANNEL_H_
