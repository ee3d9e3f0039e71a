#ifndef LGPU_STREAM_FENCES_H_
#define LGPU_STREAM_FENCES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/export.h"

namespace lgpu {

/// A queue of device work that a Pool's owner numbers: 0 is the one that most blocks are for, the other
/// streams have numbers below kMaxStreams of the owner's choice.
using StreamId = std::uint32_t;
inline constexpr StreamId kMaxStreams = 64;

/// StreamFences are a Pool's view of a device's streams: points in them, and whether the device has passed a
/// point. A pool records one fence for a batch of freed blocks, never one for a block.
///
/// Thread-safe. A pool holds no lock over these calls. Errors of the device go through unchanged.
class LGPU_API StreamFences {
 public:
  virtual ~StreamFences() = default;
  StreamFences(const StreamFences&) = delete;
  StreamFences& operator=(const StreamFences&) = delete;

  /// A value that passes when all work queued on `stream` now is done. Values of a stream never fall.
  /// INVALID_ARGUMENT for a stream that the owner does not know.
  virtual absl::StatusOr<std::uint64_t> Record(StreamId stream) = 0;
  virtual absl::StatusOr<bool> HasPassed(StreamId stream, std::uint64_t value) = 0;
  /// Blocks this thread until it has passed.
  virtual absl::Status Wait(StreamId stream, std::uint64_t value) = 0;
  /// Work that is queued on `waiter` from now on waits, on the device, for `value` of `stream`.
  virtual absl::Status Order(StreamId waiter, StreamId stream, std::uint64_t value) = 0;

 protected:
  StreamFences() = default;
};

}  // namespace lgpu

#endif  // LGPU_STREAM_FENCES_H_
