#ifndef LGPU_TESTS_SUPPORT_GENERATED_CHANNEL_H_
#define LGPU_TESTS_SUPPORT_GENERATED_CHANNEL_H_

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

/// The other end of a session in tests: protobuf checks what lgpu's own codec wrote.
using GeneratedChannel = FramedChannel<GeneratedFrameCodec>;
using GeneratedFrame = GeneratedChannel::Received;

}  // namespace lgpu

#endif  // LGPU_TESTS_SUPPORT_GENERATED_CHANNEL_H_
