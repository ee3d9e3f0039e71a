#ifndef LGPU_TESTS_ALLOCATOR_BROKER_BROKER_REPAIRS_H_
#define LGPU_TESTS_ALLOCATOR_BROKER_BROKER_REPAIRS_H_

#include <chrono>
#include <cstdint>

#include "allocator/broker/broker.h"
#include "allocator/broker/session_restore.h"

namespace lgpu {

inline LogicalId AddDevice(Broker& broker, std::uint64_t lease, Bytes limit, bool preallocate) {
  return *broker.AddDevice({.card = broker.Cards().front().id,
                            .limit = limit,
                            .preallocate = preallocate,
                            .lease = LeaseKey{lease},
                            .lease_name = "lease",
                            .owner = "owner"});
}

inline Broker::Answer GrowOf(Broker& broker, std::uint64_t session, LogicalId device, Bytes bytes,
                             std::chrono::milliseconds timeout) {
  const auto now = std::chrono::steady_clock::now();
  return broker.Grow({.session = SessionId{session},
                      .device = device,
                      .at_least = bytes,
                      .wanted = bytes,
                      .asked_at = now,
                      .deadline = now + timeout});
}

/// As a daemon has it that was started again: its limit is guaranteed, and no chunk is there yet.
inline absl::Status RestorePreallocated(Broker& broker, LogicalId device, Bytes limit) {
  return broker.restore().AddDevice(device, {.card = broker.Cards().front().id,
                                             .limit = limit,
                                             .preallocate = true,
                                             .lease = LeaseKey{1},
                                             .lease_name = "lease",
                                             .owner = "owner"});
}

}  // namespace lgpu

#endif  // LGPU_TESTS_ALLOCATOR_BROKER_BROKER_REPAIRS_H_
