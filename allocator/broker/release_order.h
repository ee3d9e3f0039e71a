#ifndef LGPU_ALLOCATOR_BROKER_RELEASE_ORDER_H_
#define LGPU_ALLOCATOR_BROKER_RELEASE_ORDER_H_

#include <chrono>
#include <string>

#include "allocator/broker/ids.h"
#include "lgpu/bytes.h"
#include "lgpu/id.h"

namespace lgpu {

/// One request to a session to run the release hook of its lease, or to have the lease suspended.
using ReleaseId = Id<struct ReleaseTag>;

/// A lease is asked to give way: a request waits for its card, and the lease is idle, or its turn is over.
struct ReleaseOrder {
  ReleaseId id;
  LeaseKey lease;
  Bytes bytes;                        // that the request lacks, of what the lease holds
  std::chrono::milliseconds limit{};  // the hook may run so long
  std::string asker = {};             // the lease that waits; empty: it has no name
  bool is_turn = false;               // the lease is at work, and its turn is over
};

enum class ReleaseOutcome {
  kDone,     // the hook has ended well, and memory may come back a little later; or the lease is suspended
  kFailed,   // it ended with an error, or took too long
  kNotIdle,  // nothing was done: the lease was used meanwhile
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
