#include "bench/grant_echo.h"

#include <sys/mman.h>

#include <array>
#include <cstdint>

#include "base/unique_fd.h"

namespace lgpu::bench {

void EchoGrants(SessionChannel& channel, Bytes bytes) {
  const UniqueFd memory(::memfd_create("lgpu-bench", MFD_CLOEXEC));
  ReceivedFrame received;
  v1::Frame answer;
  std::uint64_t next_id = 0;
  while (channel.ReceiveInto(received).ok()) {
    if (!received.frame.has_grow()) continue;
    v1::Grant& grant = *answer.mutable_grant();
    grant.set_request_id(received.frame.grow().request_id());
    grant.set_device_id(received.frame.grow().device_id());
    grant.set_grant_id(++next_id);
    grant.clear_chunks();
    v1::Chunk& chunk = *grant.add_chunks();
    chunk.set_id(next_id);
    chunk.set_bytes(bytes.count());
    if (!channel.Send(answer, std::array<int, 1>{memory.get()}).ok()) return;
  }
}

}  // namespace lgpu::bench
