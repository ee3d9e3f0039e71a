#ifndef LGPU_PROTO_SESSION_CHANNEL_H_
#define LGPU_PROTO_SESSION_CHANNEL_H_

#include <string>
#include <string_view>

#include "proto/framed_channel.h"
#include "proto/wire/session_messages.h"

namespace lgpu {

/// wire::Frame by lgpu's own codec.
struct WireFrameCodec {
  using Frame = wire::Frame;
  static void Encode(const Frame& frame, std::string& out) { wire::Encode(frame, out); }
  static bool Decode(std::string_view bytes, Frame& frame) {
    frame = {};
    return wire::Decoder(bytes).Read(frame);
  }
  static void Clear(Frame& frame) { frame = {}; }
};

/// One end of a session, of lgpud or of a program.
using SessionChannel = FramedChannel<WireFrameCodec>;
using ReceivedFrame = SessionChannel::Received;

}  // namespace lgpu

#endif  // LGPU_PROTO_SESSION_CHANNEL_H_
