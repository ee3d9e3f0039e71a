#include "client/session/leased_region_source.h"

#include <algorithm>
#include <string>
#include <utility>

#include "allocator/device/simulated/memfd.h"
#include "client/session/fork_guard.h"
#include "lgpu/status.h"

namespace lgpu {

absl::StatusOr<std::unique_ptr<LeasedRegionSource>> LeasedRegionSource::Create(DaemonConnection& connection,
                                                                               DeviceMemory& backend,
                                                                               const Options& options) {
  LGPU_ASSIGN_OR_RETURN(std::unique_ptr<Region> region,
                        Region::Reserve(backend, options.backend_device, options.granularity, options.limit));
  std::unique_ptr<LeasedRegionSource> source(new LeasedRegionSource(connection, std::move(region), options));
  connection.AddHolder(*source);
  return source;
}

LeasedRegionSource::~LeasedRegionSource() {
  if (connection_.IsForked()) return;
  std::vector<ChunkId> ids;
  for (const Region::Held& held : region_->All()) ids.push_back(held.chunk.id);
  connection_.StartReturn(ids);
  // An error means that the daemon is gone for good, and the session with it.
  (void)ReleaseAndReturn(region_->TakeAll());
  connection_.RemoveHolder(*this);
}

absl::StatusOr<std::vector<DaemonConnection::HeldChunk>> LeasedRegionSource::Held() {
  std::vector<DaemonConnection::HeldChunk> chunks;
  for (const Region::Held& held : region_->All()) {
    DaemonConnection::HeldChunk& chunk = chunks.emplace_back();
    chunk.device = options_.device_id;
    chunk.chunk = held.chunk;
    if (!options_.known_by_descriptor) continue;
    absl::StatusOr<ExportedFd> fd = region_->backend().Export(held.memory);
    if (fd.ok()) {
      chunk.fd = *std::move(fd);
    } else {
      chunks.pop_back();  // it is being returned
    }
  }
  return chunks;
}

Bytes LeasedRegionSource::limit() const {
  const StatsPage& page = connection_.stats();
  const auto at = [&page](int slot) -> const StatsPage::Device& {
    return page.devices[static_cast<std::size_t>(slot)];
  };
  int slot = slot_.load(std::memory_order_relaxed);
  if (slot < 0 || at(slot).id.load(std::memory_order_acquire) != options_.device_id) {
    for (slot = 0; slot < StatsPage::kMaxDevices; ++slot) {
      if (at(slot).id.load(std::memory_order_acquire) == options_.device_id) break;
    }
    if (slot == StatsPage::kMaxDevices) return options_.limit;
    slot_.store(slot, std::memory_order_relaxed);
  }
  // One word, so no look at the epoch: it is either the limit before a resize or the one after.
  const Bytes limit(at(slot).limit.load(std::memory_order_acquire));
  return limit.is_zero() ? options_.limit : limit;
}

absl::StatusOr<std::vector<Chunk>> LeasedRegionSource::Grow(const GrowRequest& request) {
  if (connection_.IsForked()) return ForkedError();
  if (request.at_least.is_zero() || request.at_least.count() % granularity().count() != 0) {
    return absl::InvalidArgumentError("chunks come in multiples of " + FormatBytes(granularity()) +
                                      ", not zero; asked for " + std::to_string(request.at_least.count()) +
                                      " bytes");
  }
  GrowRequest rounded = request;
  rounded.wanted = std::max(request.at_least, RoundDown(request.wanted, granularity()));
  // Its time may be the longest there is: no deadline is worked out before it is needed.
  const auto asked_at = std::chrono::steady_clock::now();
  while (true) {
    const std::uint64_t generation = connection_.generation();
    absl::StatusOr<std::vector<Chunk>> granted = GrowOnce(rounded);
    const auto waited = std::chrono::steady_clock::now() - asked_at;
    const bool again = absl::IsUnavailable(granted.status()) && connection_.IsLost(generation);
    if (!again || waited >= request.timeout) return granted;
    rounded.timeout = request.timeout - waited;
  }
}

absl::StatusOr<std::vector<Chunk>> LeasedRegionSource::GrowOnce(const GrowRequest& request) {
  LGPU_ASSIGN_OR_RETURN(DaemonConnection::GrowCall call, connection_.Grow(options_.device_id, request));
  std::vector<Chunk> granted;
  std::vector<ChunkId> imported;
  absl::Status status;
  for (bool more = true; more && status.ok();) {
    absl::StatusOr<DaemonConnection::GrantPage> page = call.Next();
    if (!page.ok()) {
      status = page.status();
      break;
    }
    more = page->more;
    status = ImportPage(*std::move(page), granted, imported);
  }
  if (status.ok()) return granted;
  // Chunks granted before the error go back here; the call gives back pages that are still on their way.
  std::vector<ChunkId> ids;
  for (const Chunk& chunk : granted) ids.push_back(chunk.id);
  connection_.StartReturn(ids);
  if (absl::StatusOr<std::vector<Region::Held>> held = region_->Take(imported); held.ok()) {
    for (const Region::Held& chunk : *held) (void)region_->backend().Release(chunk.memory);
  }
  if (!ids.empty()) (void)connection_.Return(options_.device_id, ids);
  return status;
}

absl::Status LeasedRegionSource::ImportPage(DaemonConnection::GrantPage page, std::vector<Chunk>& granted,
                                            std::vector<ChunkId>& imported) {
  absl::Status first_error;
  if (page.fds_cut) {
    Bytes bytes;
    for (const DaemonConnection::GrantedChunk& chunk : page.chunks) bytes += chunk.chunk.bytes;
    first_error = MachineRefusal(RefusalReason::kDescriptors, "chunks that were granted", bytes);
  }
  for (DaemonConnection::GrantedChunk& chunk : page.chunks) {
    granted.push_back(chunk.chunk);
    if (!first_error.ok()) continue;
    absl::StatusOr<MemoryHandle> memory =
        region_->backend().Import(region_->device(), std::move(chunk.fd), chunk.chunk.bytes);
    first_error = memory.ok() ? region_->Add({chunk.chunk, *memory}) : memory.status();
    if (first_error.ok()) {
      imported.push_back(chunk.chunk.id);
    } else if (memory.ok()) {
      (void)region_->backend().Release(*memory);
    }
  }
  return first_error;
}

absl::Status LeasedRegionSource::Map(std::span<const ChunkPlacement> placements) {
  return region_->Map(placements);
}

absl::Status LeasedRegionSource::Unmap(std::span<const ChunkId> chunks) { return region_->Unmap(chunks); }

absl::Status LeasedRegionSource::Return(std::span<const ChunkId> chunks) {
  connection_.StartReturn(chunks);
  const absl::StatusOr<std::vector<Region::Held>> held = region_->Take(chunks);
  if (!held.ok()) {
    connection_.CancelReturn(chunks);
    return held.status();
  }
  return ReleaseAndReturn(*held);
}

absl::Status LeasedRegionSource::ReleaseAndReturn(std::span<const Region::Held> chunks) {
  absl::Status first_error;
  std::vector<ChunkId> ids;
  ids.reserve(chunks.size());
  for (const Region::Held& held : chunks) {
    first_error.Update(region_->backend().Release(held.memory));
    ids.push_back(held.chunk.id);
  }
  if (!ids.empty()) first_error.Update(connection_.Return(options_.device_id, ids));
  return first_error;
}

}  // namespace lgpu
