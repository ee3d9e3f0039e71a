#include "client/session/local_region_source.h"

#include "client/session/fork_guard.h"
#include "lgpu/status.h"

namespace lgpu {

absl::StatusOr<std::unique_ptr<LocalRegionSource>> LocalRegionSource::Create(LocalBroker& broker,
                                                                             LogicalId device,
                                                                             DeviceMemory& backend,
                                                                             int backend_device) {
  const Bytes limit = broker.limit(device);
  const Bytes granularity = backend.devices()[static_cast<std::size_t>(backend_device)].granularity;
  LGPU_ASSIGN_OR_RETURN(std::unique_ptr<Region> region,
                        Region::Reserve(backend, backend_device, granularity, limit));
  return std::unique_ptr<LocalRegionSource>(new LocalRegionSource(broker, device, std::move(region)));
}

LocalRegionSource::~LocalRegionSource() {
  if (region_->IsForked()) return;
  const std::vector<Region::Held> held = region_->TakeAll();
  if (!held.empty()) (void)broker_.Return(device_, held);
}

absl::StatusOr<std::vector<Chunk>> LocalRegionSource::Grow(const GrowRequest& request) {
  if (region_->IsForked()) return ForkedError();
  LGPU_ASSIGN_OR_RETURN(const std::vector<Region::Held> held, broker_.Grow(device_, request));
  std::vector<Chunk> chunks;
  chunks.reserve(held.size());
  for (const Region::Held& chunk : held) {
    LGPU_RETURN_IF_ERROR(region_->Add(chunk));
    chunks.push_back(chunk.chunk);
  }
  return chunks;
}

absl::Status LocalRegionSource::Return(std::span<const ChunkId> chunks) {
  LGPU_ASSIGN_OR_RETURN(const std::vector<Region::Held> held, region_->Take(chunks));
  return held.empty() ? absl::OkStatus() : broker_.Return(device_, held);
}

}  // namespace lgpu
