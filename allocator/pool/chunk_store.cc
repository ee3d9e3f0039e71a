#include "allocator/pool/chunk_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lgpu {
namespace {

bool Overlap(Suballocator::Range a, Suballocator::Range b) {
  return a.offset < b.end() && b.offset < a.end();
}

}  // namespace

std::vector<ChunkId> IdsOf(std::span<const Chunk> chunks) {
  std::vector<ChunkId> ids;
  ids.reserve(chunks.size());
  for (const Chunk& chunk : chunks) ids.push_back(chunk.id);
  return ids;
}

void ChunkStore::NoteReturned(std::span<const Chunk> chunks) {
  for (const Chunk& chunk : chunks) held_ -= chunk.bytes;
}

void ChunkStore::AddSpare(const Chunk& chunk) {
  spare_.push_back(chunk);
  spare_bytes_ += chunk.bytes;
}

void ChunkStore::AddSpare(std::span<const Chunk> chunks) {
  for (const Chunk& chunk : chunks) AddSpare(chunk);
}

std::vector<Chunk> ChunkStore::TakeSpare(std::span<const Chunk> chunks) {
  std::vector<Chunk> taken;
  for (const Chunk& chunk : chunks) {
    const auto at =
        std::find_if(spare_.begin(), spare_.end(), [&](const Chunk& other) { return other.id == chunk.id; });
    if (at != spare_.end()) {
      taken.push_back(chunk);
      spare_bytes_ -= chunk.bytes;
      spare_.erase(at);
    }
  }
  return taken;
}

std::vector<Chunk> ChunkStore::TakeSpareUpTo(Bytes most) {
  std::vector<Chunk> taken;
  for (auto at = spare_.end(); at != spare_.begin();) {
    --at;
    if (at->bytes <= most) {
      most -= at->bytes;
      spare_bytes_ -= at->bytes;
      taken.push_back(*at);
      at = spare_.erase(at);
    }
  }
  return taken;
}

std::optional<Chunk> ChunkStore::TakeLastSpare() {
  if (spare_.empty()) return std::nullopt;
  const Chunk last = spare_.back();
  spare_.pop_back();
  spare_bytes_ -= last.bytes;
  return last;
}

std::vector<Chunk> ChunkStore::TakeAllSpare() {
  spare_bytes_ = Bytes();
  return std::exchange(spare_, {});
}

void ChunkStore::NoteUnmapped(Suballocator::Range range) {
  mapped_.erase(mapped_.lower_bound(range.offset), mapped_.lower_bound(range.end()));
}

std::vector<Chunk> ChunkStore::TakeForSuspension() {
  std::vector<Chunk> taken = TakeAllSpare();
  for (const auto& [offset, chunk] : mapped_) taken.push_back(chunk);
  suspended_ = true;
  return taken;
}

void ChunkStore::EndSuspension(const std::map<Bytes, Chunk>& chunks) {
  mapped_ = chunks;
  for (const auto& [offset, chunk] : mapped_) held_ += chunk.bytes;
  suspended_ = false;
}

std::vector<ChunkStore::Run> ChunkStore::DetachIdle(Suballocator& blocks, const Wanted& wanted) const {
  std::vector<Suballocator::IdleRun> idle = blocks.IdleRuns(wanted.settled);
  std::sort(idle.begin(), idle.end(), [](const auto& a, const auto& b) {
    return a.stamp != b.stamp ? a.stamp < b.stamp : a.range.offset > b.range.offset;
  });
  const auto may_go = [&](Suballocator::Range chunk) {
    const bool inside = wanted.avoid.offset <= chunk.offset && chunk.end() <= wanted.avoid.end();
    return chunk.bytes <= wanted.largest_chunk && !inside &&
           (wanted.straddling || !Overlap(chunk, wanted.avoid));
  };
  std::vector<Run> taken;
  std::vector<Suballocator::IdleRun> sources;
  Bytes sum;
  for (const Suballocator::IdleRun& run : idle) {
    bool continues = false;
    for (auto chunk = mapped_.lower_bound(run.range.end());
         sum < wanted.amount && chunk != mapped_.begin() && std::prev(chunk)->first >= run.range.offset;) {
      --chunk;
      const Bytes bytes = chunk->second.bytes;
      if (!may_go({chunk->first, bytes}) || (wanted.bound == Bound::kAtMost && bytes > wanted.amount - sum)) {
        continues = false;
        continue;
      }
      if (!continues) {
        taken.push_back({.range = {chunk->first + bytes, Bytes()}});
        sources.push_back(run);
        continues = true;
      }
      taken.back().range = {chunk->first, taken.back().range.bytes + bytes};
      taken.back().chunks.push_back(chunk->second);
      sum += bytes;
    }
  }
  if (wanted.bound == Bound::kAtLeast && sum < wanted.amount) return {};
  for (std::size_t i = 0; i < taken.size(); ++i) {
    taken[i].detached = blocks.Detach(sources[i], taken[i].range);
  }
  return taken;
}

absl::Status ChunkStore::CheckInvariants(bool in_flight) const {
  Bytes mapped;
  Bytes reached;
  for (const auto& [offset, chunk] : mapped_) {
    if (offset < reached || RoundDown(offset, page_) != offset) {
      return absl::InternalError(absl::StrCat("pool: the chunk at ", offset.count(),
                                              " overlaps another one or starts inside a page"));
    }
    reached = offset + chunk.bytes;
    if (!suspended_) mapped += chunk.bytes;
  }
  Bytes spare;
  for (const Chunk& chunk : spare_) spare += chunk.bytes;
  if (spare != spare_bytes_) {
    return absl::InternalError(absl::StrCat("pool: spare chunks have ", spare.count(), " bytes, ",
                                            spare_bytes_.count(), " are counted"));
  }
  if (mapped + spare > held_ || (!in_flight && mapped + spare != held_)) {
    return absl::InternalError(
        absl::StrCat("pool: chunks have ", (mapped + spare).count(), " bytes, held says ", held_.count()));
  }
  return absl::OkStatus();
}

}  // namespace lgpu
