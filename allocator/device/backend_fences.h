#ifndef LGPU_ALLOCATOR_DEVICE_BACKEND_FENCES_H_
#define LGPU_ALLOCATOR_DEVICE_BACKEND_FENCES_H_

#include <cstdint>
#include <vector>

#include "allocator/device/device_work.h"
#include "base/mutex.h"
#include "lgpu/stream_fences.h"

namespace lgpu {

/// BackendFences are the fences of a backend's streams, for the pool of one logical device. A stream gets its
/// number from Add, and keeps it until Remove. The backend outlives it; a stream outlives its number.
/// Thread-safe; no lock is held over a call of the backend.
class BackendFences final : public StreamFences {
 public:
  explicit BackendFences(DeviceWork& backend) : backend_(backend) {}

  /// Gives the stream the lowest free number. RESOURCE_EXHAUSTED: kMaxStreams have one.
  absl::StatusOr<StreamId> Add(StreamHandle stream);
  /// Waits until the stream has done its work; its number may then go to another stream. Memory that was
  /// allocated for the number or used on it may still be freed. INVALID_ARGUMENT for a number without a
  /// stream.
  absl::Status Remove(StreamId stream);
  /// Waits until all streams have done the work queued on them now. Memory that was freed behind that work is
  /// idle for the pool from then on.
  absl::Status WaitForAll();

  absl::StatusOr<std::uint64_t> Record(StreamId stream) override;
  absl::StatusOr<bool> HasPassed(StreamId stream, std::uint64_t value) override;
  absl::Status Wait(StreamId stream, std::uint64_t value) override;
  absl::Status Order(StreamId waiter, StreamId stream, std::uint64_t value) override;

 private:
  // A number, and the stream that has it. Values below `base` belong to earlier streams and have passed; a
  // value of this stream is `base` plus its sequence. `base` grows with every stream, even one that recorded
  // nothing, so that a call can see that the stream changed meanwhile.
  struct Slot {
    StreamHandle stream;  // not valid: none
    std::uint64_t base = 0;
    std::uint64_t last = 0;  // the largest value recorded
  };
  absl::StatusOr<Slot> Find(StreamId stream) const ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsOfRemoved(StreamId stream, std::uint64_t value) const ABSL_LOCKS_EXCLUDED(mutex_);

  DeviceWork& backend_;
  mutable Mutex mutex_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_BACKEND_FENCES_H_
