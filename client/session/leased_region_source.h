#ifndef LGPU_CLIENT_SESSION_LEASED_REGION_SOURCE_H_
#define LGPU_CLIENT_SESSION_LEASED_REGION_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/daemon_connection.h"
#include "client/session/region.h"
#include "lgpu/region_source.h"

namespace lgpu {

/// A LeasedRegionSource is a RegionSource whose chunks a daemon grants: it asks over the session, imports
/// granted chunks and gives returned ones back. Its limit is the one in the stats page.
class LeasedRegionSource final : public RegionSource, private DaemonConnection::Holder {
 public:
  struct Options {
    std::uint64_t device_id = 0;  // LogicalDevice.id
    int backend_device = 0;
    Bytes granularity;
    Bytes limit;  // until the stats page has one
    /// A daemon that is started again knows the memory by its descriptors.
    bool known_by_descriptor = false;
  };
  /// `connection` and `backend` outlive it.
  static absl::StatusOr<std::unique_ptr<LeasedRegionSource>> Create(DaemonConnection& connection,
                                                                    DeviceMemory& backend,
                                                                    const Options& options);
  ~LeasedRegionSource() override;

  std::byte* base() const override { return region_->base(); }
  Bytes reserved() const override { return region_->reserved(); }
  Bytes granularity() const override { return region_->granularity(); }
  Bytes limit() const override;
  absl::StatusOr<std::vector<Chunk>> Grow(const GrowRequest& request) override;
  absl::Status Map(std::span<const ChunkPlacement> placements) override;
  absl::Status Unmap(std::span<const ChunkId> chunks) override;
  absl::Status Return(std::span<const ChunkId> chunks) override;

 private:
  LeasedRegionSource(DaemonConnection& connection, std::unique_ptr<Region> region, const Options& options)
      : connection_(connection), region_(std::move(region)), options_(options) {}

  absl::StatusOr<std::vector<DaemonConnection::HeldChunk>> Held() override;
  absl::StatusOr<std::vector<Chunk>> GrowOnce(const GrowRequest& request);
  /// Imports a page of a grant. All of its chunks are this session's, and appended to `granted`; `imported`
  /// gets the chunks that are in the region.
  absl::Status ImportPage(DaemonConnection::GrantPage page, std::vector<Chunk>& granted,
                          std::vector<ChunkId>& imported);
  /// Drops the imports of chunks that are out of the region, and gives them back.
  absl::Status ReleaseAndReturn(std::span<const Region::Held> chunks);

  DaemonConnection& connection_;
  const std::unique_ptr<Region> region_;
  const Options options_;
  mutable std::atomic<int> slot_{-1};  // of the stats page; -1: not seen there yet
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_LEASED_REGION_SOURCE_H_
