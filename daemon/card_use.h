#ifndef LGPU_DAEMON_CARD_USE_H_
#define LGPU_DAEMON_CARD_USE_H_

#include <cstdint>
#include <map>

#include "daemon/card_watch.h"
#include "lgpu/bytes.h"

namespace lgpu::daemon {

/// lgpu's own memory of a card.
struct ChunkUse {
  Bytes total;                            // of the card
  Bytes held;                             // in chunks, whoever has them
  std::map<std::int64_t, Bytes> granted;  // of these: what each process has, by pid
};

/// What each process that the driver lists has of a card besides chunks: context, modules, libraries, its own
/// allocations. The report does not say whether it counts the chunks that a process maps as the process's,
/// and drivers may differ: of both readings the one is taken that explains what the card has in use. What the
/// driver itself keeps of a card speaks for the reading that counts more. Pure.
std::map<std::int64_t, Bytes> BesideChunks(const CardReport& report, const ChunkUse& chunks);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_CARD_USE_H_
