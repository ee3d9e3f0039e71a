// Any packet that a peer may send, with descriptors beside it: it is a frame or an error, and no descriptor
// is left behind.
//
// Input: byte 0 is the number of descriptors (modulo 8), the rest is the packet.

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "proto/refusal_codec.h"
#include "proto/wire/frame_channel.h"

namespace lgpu {
namespace {

constexpr std::size_t kMaxFds = 8;

void SendRaw(int socket, const std::uint8_t* data, std::size_t size, std::size_t fd_count) {
  iovec part = {.iov_base = const_cast<std::uint8_t*>(data), .iov_len = size};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)] = {};
  const std::vector<int> fds(fd_count, STDERR_FILENO);
  if (fd_count > 0) {
    auto* header = reinterpret_cast<cmsghdr*>(control);
    header->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    std::memcpy(CMSG_DATA(header), fds.data(), fd_count * sizeof(int));
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
  }
  LGPU_CHECK(::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
}

int NextFreeDescriptor() { return UniqueFd(::dup(STDERR_FILENO)).get(); }

// Uses a received frame as receivers do: reads it, passes parts of it on, sends it again.
void Use(const wire::Frame& frame) {
  if (const auto* const refused = frame.Get<wire::GrowRefused>()) {
    const absl::Status status = StatusFromWire(refused->code, refused->message, refused->refusal);
    const absl::Status bare(status.code(), status.message());
    LGPU_CHECK(DecodeStatusDetails(bare, EncodeStatusDetails(status)).code() == status.code());
  }
  const std::string encoded = wire::Encode(frame);
  wire::Frame again;
  LGPU_CHECK(wire::Decoder(encoded).Read(again));
  LGPU_CHECK(again.body.index() == frame.body.index());
}

void RunOne(const std::uint8_t* data, std::size_t size) {
  const std::size_t fd_count = data[0] % kMaxFds;
  std::array<int, 2> ends;
  LGPU_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const UniqueFd sender(ends[0]);
  wire::FrameChannel channel{UniqueFd(ends[1])};
  const int next = NextFreeDescriptor();
  SendRaw(sender.get(), data + 1, size - 1, fd_count);
  {
    wire::ReceivedFrame received;
    const PlainStatus status = channel.Receive(received, std::chrono::steady_clock::now());
    if (status.ok()) {
      LGPU_CHECK_OP(received.fds.size(), ==, fd_count);
      Use(received.frame);
    } else {
      LGPU_CHECK(received.fds.empty());
      LGPU_CHECK(status.code == PlainCode::kInvalidArgument ||
                 (size == 1 && status.code == PlainCode::kUnavailable));
    }
  }
  LGPU_CHECK_OP(NextFreeDescriptor(), ==, next);
}

}  // namespace
}  // namespace lgpu

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Longer packets do not fit into a socket's buffer.
  if (size > 0 && size <= 128 * 1024) lgpu::RunOne(data, size);
  return 0;
}
