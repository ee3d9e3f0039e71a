#ifndef LGPU_ALLOCATOR_BROKER_CARD_USE_H_
#define LGPU_ALLOCATOR_BROKER_CARD_USE_H_

#include <cstdint>
#include <map>

#include "allocator/broker/card_watch.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// lgpu's own memory of a card.
struct ChunkUse {
  Bytes total;                            // of the card
  Bytes existing;                         // in chunks that are made, whoever has them
  std::map<std::int64_t, Bytes> granted;  // of these: what each process has, by pid
};

/// What each process that the driver lists has of a card besides chunks: context, modules, libraries, its own
/// allocations. The report does not say whether it counts the chunks that a process maps as the process's,
/// and drivers may differ: it is taken as it is unless that is more than the card has in use besides chunks.
/// So the sum never is, but for what changed while the driver was asked. Pure.
std::map<std::int64_t, Bytes> BesideChunks(const CardReport& report, const ChunkUse& chunks);

/// The report as if programs had not what they charged (by pid). A program that uses less of the card than it
/// charged uses nothing then.
CardReport WithoutCharges(CardReport report, std::map<std::int64_t, Bytes> charged);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_CARD_USE_H_
