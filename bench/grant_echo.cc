#include "bench/grant_echo.h"

#include <sys/mman.h>

#include <array>
#include <cstdint>

#include "base/unique_fd.h"

namespace lgpu::bench {

void EchoGrants(wire::FrameChannel& channel, Bytes bytes) {
  const UniqueFd memory(::memfd_create("lgpu-bench", MFD_CLOEXEC));
  wire::ReceivedFrame received;
  std::uint64_t next_id = 0;
  while (channel.Receive(received).ok()) {
    const auto* const grow = received.frame.Get<wire::GrowRequest>();
    if (grow == nullptr) continue;
    ++next_id;
    const wire::Frame answer{.body = wire::Grant{.request_id = grow->request_id,
                                                 .grant_id = next_id,
                                                 .device_id = grow->device_id,
                                                 .chunks = {{.id = next_id, .bytes = bytes.count()}}}};
    if (!channel.Send(answer, std::array<int, 1>{memory.get()}).ok()) return;
  }
}

}  // namespace lgpu::bench
