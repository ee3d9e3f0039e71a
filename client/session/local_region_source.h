#ifndef LGPU_CLIENT_SESSION_LOCAL_REGION_SOURCE_H_
#define LGPU_CLIENT_SESSION_LOCAL_REGION_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/broker/broker.h"
#include "client/session/region.h"
#include "lgpu/region_source.h"

namespace lgpu {

class MaintenanceThread;

/// A LocalRegionSource is a RegionSource whose chunks come from this process's own Broker. It is one session
/// of that broker: devices of one process wait for each other's memory as processes do.
class LocalRegionSource final : public RegionSource {
 public:
  struct Options {
    LogicalId device;
    LeaseKey lease;     // of the device
    SessionId session;  // to be made; no other source has it
    int backend_device = 0;
    /// Woken when the broker asks the session for idle memory. Null: it is never asked.
    MaintenanceThread* maintenance = nullptr;
  };
  /// `limit`: the device's, in bytes; it may change. All that is passed by reference outlives the source.
  static absl::StatusOr<std::unique_ptr<LocalRegionSource>> Create(Broker& broker, DeviceMemory& backend,
                                                                   const std::atomic<std::uint64_t>& limit,
                                                                   const Options& options);
  ~LocalRegionSource() override;

  std::byte* base() const override { return region_->base(); }
  Bytes reserved() const override { return region_->reserved(); }
  Bytes granularity() const override { return region_->granularity(); }
  Bytes limit() const override { return Bytes(limit_.load(std::memory_order_relaxed)); }
  absl::StatusOr<std::vector<Chunk>> Grow(const GrowRequest& request) override;
  absl::Status Map(std::span<const ChunkPlacement> placements) override { return region_->Map(placements); }
  absl::Status Unmap(std::span<const ChunkId> chunks) override { return region_->Unmap(chunks); }
  absl::Status Return(std::span<const ChunkId> chunks) override;

 private:
  class Wakes;

  LocalRegionSource(Broker& broker, const std::atomic<std::uint64_t>& limit, const Options& options,
                    std::unique_ptr<Region> region);
  absl::StatusOr<std::vector<Chunk>> TakeOver(std::vector<Chunk> chunks);

  Broker& broker_;
  const LogicalId device_;
  const SessionId session_;
  const std::atomic<std::uint64_t>& limit_;
  const std::unique_ptr<Region> region_;
  const std::shared_ptr<Wakes> wakes_;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_LOCAL_REGION_SOURCE_H_
