#ifndef LGPU_CLIENT_SESSION_CLIENT_CHANNEL_H_
#define LGPU_CLIENT_SESSION_CLIENT_CHANNEL_H_

#include <sys/socket.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/link/frame_channel.h"
#include "proto/wire/connect.h"

namespace lgpu {

/// A ClientChannel is liblgpu's end of a session.
class ClientChannel : public link::FrameChannel {
 public:
  using FrameChannel::FrameChannel;

  /// Connects to a listening socket; errors as ConnectUnix.
  static absl::StatusOr<ClientChannel> Connect(const std::string& path) {
    PlainResult<UniqueFd> socket = ConnectUnix(path, SOCK_SEQPACKET);
    if (!socket.ok()) return absl::Status(socket.status());
    return ClientChannel(*std::move(socket));
  }
};
using ClientFrame = ClientChannel::Received;

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_CLIENT_CHANNEL_H_
