#ifndef LGPU_PROTO_SESSION_CHANNEL_H_
#define LGPU_PROTO_SESSION_CHANNEL_H_

#include <string>
#include <string_view>

#include "lgpu/v1/session.pb.h"
#include "proto/framed_channel.h"

namespace lgpu {

/// v1::Frame by protobuf's generated code.
struct GeneratedFrameCodec {
  using Frame = v1::Frame;
  static void Encode(const Frame& frame, std::string& out) { frame.SerializeToString(&out); }
  static bool Decode(std::string_view bytes, Frame& frame) {
    return frame.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  }
  static void Clear(Frame& frame) { frame.Clear(); }
};

/// The daemon's end of a session.
using SessionChannel = FramedChannel<GeneratedFrameCodec>;
using ReceivedFrame = SessionChannel::Received;

}  // namespace lgpu

#endif  // LGPU_PROTO_SESSION_CHANNEL_H_
