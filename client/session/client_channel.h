#ifndef LGPU_CLIENT_SESSION_CLIENT_CHANNEL_H_
#define LGPU_CLIENT_SESSION_CLIENT_CHANNEL_H_

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

/// A program's end of a session.
using ClientChannel = FramedChannel<WireFrameCodec>;
using ClientFrame = ClientChannel::Received;

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_CLIENT_CHANNEL_H_
