#ifndef LGPU_ALLOCATOR_BROKER_SPARE_CHUNKS_H_
#define LGPU_ALLOCATOR_BROKER_SPARE_CHUNKS_H_

#include <optional>
#include <vector>

#include "allocator/broker/broker_core.h"

namespace lgpu {

/// SpareChunks makes the chunks of preallocated devices that no session holds yet.
///
/// Thread-safe: it takes the broker's lock, and calls the backend without it. The core outlives it.
class SpareChunks {
 public:
  explicit SpareChunks(BrokerCore& core) : core_(core) {}

  struct Made {
    absl::Status status;
    std::vector<ChunkId> leaving;  // made in vain, or beyond a limit: the caller reclaims them
  };
  struct Order {
    LogicalId device;
    Bytes bytes;                    // in all; they are booked for the device already
    std::vector<Bytes> sizes = {};  // empty: as the card's chunks of preallocated devices are cut
    MadeChunks made = {};           // of `sizes`, so far
    /// While memory is leaving, a backend that has too little may be asked again until then.
    Broker::TimePoint deadline;
    /// On an error the device has this smaller size again.
    std::optional<Ledger::LogicalOptions> size_before = {};
  };
  /// Makes the chunks of an order. On an error nothing stays booked. None: the order is to be made again
  /// later, with what `order.made` has by now.
  [[nodiscard]] std::optional<Made> Make(Order& order);
  /// Makes all that the device lacks and can have now.
  [[nodiscard]] Made MakeMissing(LogicalId device);

 private:
  Made Register(const Order& order, const MadeChunks& created) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);

  BrokerCore& core_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_SPARE_CHUNKS_H_
