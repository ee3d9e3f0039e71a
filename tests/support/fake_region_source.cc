#include "tests/support/fake_region_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lgpu/refusal.h"
#include "lgpu/status.h"

namespace lgpu {

absl::StatusOr<std::unique_ptr<FakeRegionSource>> FakeRegionSource::Make(DeviceMemory& backend,
                                                                         const Options& options) {
  Options complete = options;
  const Bytes granularity = backend.devices()[0].granularity;
  if (complete.reserved.is_zero()) complete.reserved = RoundUp(complete.limit, granularity) * 8;
  if (complete.upstream == nullptr) complete.upstream = std::make_shared<FakeUpstream>();
  complete.upstream->limit = complete.limit.count();
  LGPU_ASSIGN_OR_RETURN(std::byte* const base, backend.Reserve(0, complete.reserved));
  return std::unique_ptr<FakeRegionSource>(new FakeRegionSource(backend, complete, base));
}

FakeRegionSource::FakeRegionSource(DeviceMemory& backend, const Options& options, std::byte* base)
    : backend_(backend), options_(options), upstream_(options.upstream), base_(base) {}

FakeRegionSource::~FakeRegionSource() {
  for (const auto& [id, held] : chunks_) {
    if (held.address != nullptr) {
      backend_.Unmap(held.address).IgnoreError();
      upstream_->mapped -= held.bytes.count();
    }
    backend_.Reclaim(held.memory).IgnoreError();
    upstream_->granted -= held.bytes.count();
  }
  backend_.Unreserve(base_, options_.reserved).IgnoreError();
}

absl::StatusOr<std::vector<Chunk>> FakeRegionSource::Grow(const GrowRequest& request) {
  if (upstream_->faults.Next()) return absl::UnavailableError("injected: Grow");
  const Bytes limit = RoundUp(Bytes(upstream_->limit), granularity());
  const Bytes ceiling = std::min(limit, Bytes(upstream_->card));
  Bytes give;
  for (std::uint64_t granted = upstream_->granted;;) {
    const Bytes room = SaturatingSub(ceiling, Bytes(granted));
    if (room < request.at_least) {
      upstream_->waits += request.timeout.count() > 0 ? 1 : 0;
      Refusal refusal;
      refusal.reason = ceiling < limit ? RefusalReason::kCard : RefusalReason::kLimit;
      refusal.asked = request.at_least;
      refusal.limit = Bytes(upstream_->limit);
      return RefusalStatus(refusal);
    }
    give = std::min(room, options_.no_smaller ? RoundUp(request.wanted, options_.chunk) : request.wanted);
    if (upstream_->granted.compare_exchange_weak(granted, granted + give.count())) break;
  }
  std::vector<Chunk> chunks;
  for (Bytes left = give; !left.is_zero();) {
    const Bytes bytes = std::min(left, options_.chunk);
    absl::StatusOr<MemoryHandle> memory = backend_.Create(0, bytes);
    if (!memory.ok()) {
      upstream_->granted -= left.count();
      std::vector<ChunkId> ids;
      for (const Chunk& chunk : chunks) ids.push_back(chunk.id);
      Return(ids).IgnoreError();
      return memory.status();
    }
    left -= bytes;
    MutexLock lock(mutex_);
    chunks.push_back({ChunkId{next_id_++}, bytes});
    chunks_.emplace(chunks.back().id, Held{*memory, bytes});
  }
  if (request.ahead && upstream_->on_its_way) upstream_->on_its_way();
  return chunks;
}

absl::StatusOr<FakeRegionSource::Held> FakeRegionSource::Find(ChunkId id, bool mapped) {
  MutexLock lock(mutex_);
  const auto found = chunks_.find(id);
  if (found == chunks_.end()) return absl::NotFoundError(absl::StrCat("chunk ", id.value, " is not granted"));
  if ((found->second.address != nullptr) != mapped) {
    return absl::FailedPreconditionError(
        absl::StrCat("chunk ", id.value, mapped ? " is not mapped" : " is mapped"));
  }
  return found->second;
}

void FakeRegionSource::SetAddress(ChunkId id, std::byte* address) {
  MutexLock lock(mutex_);
  Held& held = chunks_.find(id)->second;
  const std::uint64_t bytes = held.bytes.count();
  if (address != nullptr) {
    upstream_->mapped += bytes;
  } else {
    upstream_->mapped -= bytes;
  }
  held.address = address;
}

absl::Status FakeRegionSource::SetAccessByRuns(std::span<const ChunkPlacement> placements) {
  std::vector<std::pair<Bytes, Bytes>> ranges;
  for (const ChunkPlacement& placement : placements) {
    LGPU_ASSIGN_OR_RETURN(const Held held, Find(placement.id, true));
    ranges.emplace_back(placement.offset, held.bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 0; i < ranges.size();) {
    const Bytes start = ranges[i].first;
    Bytes end = start;
    for (; i < ranges.size() && ranges[i].first == end; ++i) end += ranges[i].second;
    LGPU_RETURN_IF_ERROR(backend_.SetAccess(base_ + start.count(), end - start));
  }
  return absl::OkStatus();
}

absl::Status FakeRegionSource::Map(std::span<const ChunkPlacement> placements) {
  if (upstream_->faults.Next()) return absl::InternalError("injected: Map");
  absl::Status status;
  std::vector<ChunkPlacement> done;
  for (const ChunkPlacement& placement : placements) {
    const absl::StatusOr<Held> held = Find(placement.id, false);
    status = held.status();
    if (status.ok() && placement.offset + held->bytes > options_.reserved) {
      status = absl::InvalidArgumentError("a placement lies outside the region");
    }
    if (status.ok()) status = backend_.Map(base_ + placement.offset.count(), held->memory);
    if (!status.ok()) break;
    SetAddress(placement.id, base_ + placement.offset.count());
    done.push_back(placement);
  }
  if (status.ok()) status = SetAccessByRuns(placements);
  if (!status.ok()) {
    for (const ChunkPlacement& placement : done) {
      backend_.Unmap(base_ + placement.offset.count()).IgnoreError();
      SetAddress(placement.id, nullptr);
    }
  }
  return status;
}

absl::Status FakeRegionSource::Unmap(std::span<const ChunkId> chunks) {
  if (upstream_->faults.Next()) return absl::InternalError("injected: Unmap");
  for (const ChunkId id : chunks) LGPU_RETURN_IF_ERROR(Find(id, true).status());
  for (const ChunkId id : chunks) {
    LGPU_ASSIGN_OR_RETURN(const Held held, Find(id, true));
    LGPU_RETURN_IF_ERROR(backend_.Unmap(held.address));
    SetAddress(id, nullptr);
  }
  return absl::OkStatus();
}

absl::Status FakeRegionSource::Return(std::span<const ChunkId> chunks) {
  // The chunks go in any case, as with a daemon that does not answer.
  const absl::Status answer =
      upstream_->faults.Next() ? absl::UnavailableError("injected: Return") : absl::OkStatus();
  for (const ChunkId id : chunks) LGPU_RETURN_IF_ERROR(Find(id, false).status());
  for (const ChunkId id : chunks) {
    LGPU_ASSIGN_OR_RETURN(const Held held, Find(id, false));
    {
      MutexLock lock(mutex_);
      chunks_.erase(id);
    }
    LGPU_RETURN_IF_ERROR(backend_.Reclaim(held.memory));
    upstream_->granted -= held.bytes.count();
  }
  return answer;
}

}  // namespace lgpu
