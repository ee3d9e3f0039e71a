#ifndef LGPU_ALLOCATOR_BROKER_RELEASE_ORDER_H_
#define LGPU_ALLOCATOR_BROKER_RELEASE_ORDER_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "allocator/broker/ids.h"
#include "lgpu/bytes.h"
#include "lgpu/id.h"

namespace lgpu {

/// One request to a session to run the release hook of its lease, or to have the lease suspended.
using ReleaseId = Id<struct ReleaseTag>;

/// A lease is asked to give way: a request waits for its card, and the lease is idle, or has worked for long
/// enough.
struct ReleaseOrder {
  ReleaseId id;
  LeaseKey lease;
  Bytes bytes;                        // that the request lacks, of what the lease holds
  std::chrono::milliseconds limit{};  // the hook may run so long
  std::string asker = {};             // the lease that waits; empty: it has no name
  std::string asker_owner = {};       // whose it is
  bool at_work = false;               // the lease is at work, and has been for long enough
};

/// A lease that was asked to give way and has not answered yet, and whose request it was asked for.
struct GivingWayView {
  LeaseKey lease;
  std::string for_owner;
  std::string for_lease;     // empty: the request has no lease yet, and no name for it
  std::int64_t for_pid = 0;  // 0: unknown
};

enum class ReleaseOutcome {
  kDone,     // the hook has ended well, and memory may come back a little later; or the lease is suspended
  kFailed,   // it ended with an error, or took too long
  kNotIdle,  // nothing was done: the lease was used meanwhile
};

/// What giving way came to so far.
struct GivingWayCounters {
  std::uint64_t asks = 0;
  std::uint64_t gave = 0;     // asks that are over, after which memory came
  std::uint64_t in_vain = 0;  // asks that are over, after which none came
  Bytes bytes = {};           // that came
  /// For how long requests waited while leases gave way for them; of those that wait no more.
  std::chrono::steady_clock::duration waited{};
};

/// What happened when a lease gave way. For people.
struct GivingWayNews {
  enum class What { kGave, kServed };
  What what = What::kGave;
  LeaseKey lease;    // that was asked; kServed: of the request
  Bytes bytes = {};  // kGave: that it gave; kServed: that were set aside for the request
  std::chrono::steady_clock::duration took{};  // since it was asked; kServed: since the request came
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_RELEASE_ORDER_H_
