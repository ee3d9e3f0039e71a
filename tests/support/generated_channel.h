#ifndef LGPU_TESTS_SUPPORT_GENERATED_CHANNEL_H_
#define LGPU_TESTS_SUPPORT_GENERATED_CHANNEL_H_

#include <sys/socket.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/v1/session.pb.h"
#include "proto/wire/channel.h"
#include "proto/wire/connect.h"

namespace lgpu {

struct GeneratedFrame : wire::Channel::Descriptors {
  v1::Frame frame;
};

/// The other end of a session in tests, with protobuf's generated code: protobuf checks what lgpu's own codec
/// wrote.
class GeneratedChannel : public wire::Channel, public wire::Protocol {
 public:
  using Channel::Channel;

  /// Errors as ConnectUnix.
  static absl::StatusOr<GeneratedChannel> Connect(const std::string& path) {
    PlainResult<UniqueFd> socket = ConnectUnix(path, SOCK_SEQPACKET);
    if (!socket.ok()) return absl::Status(socket.status());
    return GeneratedChannel(*std::move(socket));
  }

  absl::Status Send(const v1::Frame& frame, std::span<const int> fds = {}, Deadline deadline = {}) {
    return Channel::Send(frame.SerializeAsString(), fds, deadline);
  }
  absl::Status SendLast(const v1::Frame& frame, Deadline deadline) {
    return Channel::SendLast(frame.SerializeAsString(), deadline);
  }
  absl::StatusOr<GeneratedFrame> Receive(Deadline deadline = {}) {
    GeneratedFrame received;
    std::string_view packet;
    const absl::Status status = Channel::Receive(packet, received, deadline);
    if (!status.ok()) return status;
    if (!received.frame.ParseFromArray(packet.data(), static_cast<int>(packet.size()))) {
      return absl::InvalidArgumentError("a packet of " + std::to_string(packet.size()) +
                                        " bytes is no frame");
    }
    return received;
  }

  explicit operator bool() const { return fd() >= 0; }
};

}  // namespace lgpu

#endif  // LGPU_TESTS_SUPPORT_GENERATED_CHANNEL_H_
