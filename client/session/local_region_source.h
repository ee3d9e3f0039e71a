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
#include "client/session/local_broker.h"
#include "client/session/region.h"
#include "lgpu/region_source.h"

namespace lgpu {

/// A LocalRegionSource is a RegionSource whose chunks come from this process's own LocalBroker.
class LocalRegionSource final : public RegionSource {
 public:
  /// `broker` and `backend` outlive it.
  static absl::StatusOr<std::unique_ptr<LocalRegionSource>> Create(LocalBroker& broker, LogicalId device,
                                                                   DeviceMemory& backend, int backend_device);
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
  LocalRegionSource(LocalBroker& broker, LogicalId device, std::unique_ptr<Region> region)
      : broker_(broker), device_(device), limit_(broker.limit_cell(device)), region_(std::move(region)) {}

  LocalBroker& broker_;
  const LogicalId device_;
  const std::atomic<std::uint64_t>& limit_;  // of the broker, which may change it
  const std::unique_ptr<Region> region_;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_LOCAL_REGION_SOURCE_H_
