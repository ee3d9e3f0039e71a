#ifndef LGPU_ALLOCATOR_DEVICE_BACKEND_FENCES_H_
#define LGPU_ALLOCATOR_DEVICE_BACKEND_FENCES_H_

#include <utility>
#include <vector>

#include "allocator/device/device_work.h"
#include "lgpu/stream_fences.h"

namespace lgpu {

/// BackendFences are the fences of a backend's streams, for the pool of one logical device: number n is the
/// n-th of its streams. The backend and the streams outlive it. Thread-safe.
class BackendFences final : public StreamFences {
 public:
  BackendFences(DeviceWork& backend, std::vector<StreamHandle> streams)
      : backend_(backend), streams_(std::move(streams)) {}

  absl::StatusOr<std::uint64_t> Record(StreamId stream) override;
  absl::StatusOr<bool> HasPassed(StreamId stream, std::uint64_t value) override;
  absl::Status Wait(StreamId stream, std::uint64_t value) override;
  absl::Status Order(StreamId waiter, StreamId stream, std::uint64_t value) override;

 private:
  absl::StatusOr<StreamHandle> Find(StreamId stream) const;

  DeviceWork& backend_;
  const std::vector<StreamHandle> streams_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_BACKEND_FENCES_H_
