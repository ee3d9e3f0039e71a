// Every entry to proto/wire, so that the linker names every missing symbol.

#include "proto/wire/channel.h"
#include "proto/wire/connect.h"
#include "proto/wire/control_messages.h"
#include "proto/wire/pages.h"
#include "proto/wire/session_messages.h"

namespace lgpu {

extern "C" __attribute__((visibility("default"))) int lgpu_wire_alone(const char* path) {
  PlainResult<UniqueFd> socket = ConnectUnix(path, 0);
  if (!socket.ok()) return 1;
  wire::Channel channel(*std::move(socket));
  if (!channel.Send(wire::Encode(wire::Frame{.body = wire::Hello{}}), {}, {}).ok()) return 2;
  wire::Channel::Descriptors beside;
  std::string_view bytes;
  if (!channel.Receive(bytes, beside, {}).ok()) return 3;
  PlainResult<SharedPage<const StatsPage>> stats =
      SharedPages::OpenStatsPage(MapWithLibc, std::move(beside.fds[0]));
  PlainResult<SharedPage<ClientPage>> page =
      SharedPages::OpenClientPage(MapWithLibc, std::move(beside.fds[1]));
  if (!stats.ok() || !page.ok()) return 4;
  (*page)->ring.Push({});
  return wire::Decode<wire::Frame>(bytes) && wire::Decode<wire::Lease>(bytes) ? 0 : 5;
}

}  // namespace lgpu
