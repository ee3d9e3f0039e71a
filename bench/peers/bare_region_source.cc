#include "bench/peers/bare_region_source.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "allocator/suballocator.h"
#include "lgpu/refusal.h"

namespace lgpu::bench {
namespace {

constexpr std::uintptr_t kBase = std::uintptr_t{1} << 46;
constexpr std::uint64_t kReservedTimesLimit = 8;

}  // namespace

std::vector<Bytes> CutForGpu(const DeviceGrowth& growth) {
  PhysicalDevice gpu;
  gpu.granularity = 2_MiB;
  return ChunkSizesForGrowth(gpu, growth);
}

BareRegionSource::BareRegionSource(const Options& options) : options_(options) {
  if (options_.reserved.is_zero()) {
    options_.reserved = std::min(RoundUp(options_.limit, 2_MiB) * kReservedTimesLimit,
                                 RoundDown(Suballocator::kMaxReserved, 2_MiB));
  }
  if (options_.counters == nullptr) options_.counters = std::make_shared<SourceCounters>();
}

std::byte* BareRegionSource::base() const {
  return reinterpret_cast<std::byte*>(kBase);  // NOLINT: an address that is never touched
}

std::vector<Bytes> BareRegionSource::SizesOf(Bytes needed, Bytes granted) const {
  if (options_.cut) {
    return options_.cut({.needed = needed,
                         .granted = granted,
                         .held = options_.counters->held + granted,
                         .limit = options_.limit});
  }
  std::vector<Bytes> sizes;
  for (Bytes left = granted; !left.is_zero();) {
    // The largest power of two that the chunk class and the bytes left allow.
    Bytes bytes = options_.chunk;
    while (bytes > left) bytes = bytes / 2;
    left -= bytes;
    sizes.push_back(bytes);
  }
  return sizes;
}

absl::StatusOr<std::vector<Chunk>> BareRegionSource::Grow(const GrowRequest& request) {
  SourceCounters& counters = *options_.counters;
  ++counters.grow_calls;
  const Bytes room = SaturatingSub(RoundUp(options_.limit, granularity()), counters.held);
  if (room < request.at_least) {
    Refusal refusal;
    refusal.reason = RefusalReason::kLimit;
    refusal.asked = request.at_least;
    refusal.limit = options_.limit;
    return RefusalStatus(refusal);
  }
  std::vector<Chunk> chunks;
  for (const Bytes bytes :
       SizesOf(request.at_least, std::min(room, std::max(request.wanted, request.at_least)))) {
    counters.held += bytes;
    ++counters.chunks;
    chunks.push_back({ChunkId{next_id_++}, bytes});
    chunks_.emplace(chunks.back().id, bytes);
  }
  counters.peak_held = std::max(counters.peak_held, counters.held);
  return chunks;
}

absl::Status BareRegionSource::Map(std::span<const ChunkPlacement> placements) {
  ++options_.counters->map_calls;
  for (const ChunkPlacement& placement : placements) {
    const Bytes bytes = chunks_.at(placement.id);
    if (placement.offset + bytes > options_.reserved) {
      return absl::InternalError(
          absl::StrCat("a chunk at offset ", placement.offset.count(), " lies outside the region"));
    }
    options_.counters->mapped_pages += bytes / 2_MiB;
  }
  return absl::OkStatus();
}

absl::Status BareRegionSource::Unmap(std::span<const ChunkId> chunks) {
  ++options_.counters->unmap_calls;
  for (const ChunkId chunk : chunks) options_.counters->unmapped_pages += chunks_.at(chunk) / 2_MiB;
  return absl::OkStatus();
}

absl::Status BareRegionSource::Return(std::span<const ChunkId> chunks) {
  for (const ChunkId chunk : chunks) {
    const auto found = chunks_.find(chunk);
    if (found == chunks_.end()) {
      return absl::NotFoundError(absl::StrCat("chunk ", chunk.value, " is not granted"));
    }
    options_.counters->held -= found->second;
    chunks_.erase(found);
  }
  return absl::OkStatus();
}

}  // namespace lgpu::bench
