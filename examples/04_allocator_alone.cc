// The allocator without daemon, client and devices: a Pool over a RegionSource of this program's own, which
// maps plain memory into a reserved range of addresses.

#include <lgpu/bytes.h>
#include <lgpu/pool.h>
#include <lgpu/refusal.h>
#include <lgpu/region_source.h>
#include <lgpu/status.h>
#include <sys/mman.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

using namespace lgpu;

namespace {

// Chunks are numbers until they are mapped; then they are pages of this process.
class PlainMemory final : public RegionSource {
 public:
  static absl::StatusOr<std::unique_ptr<PlainMemory>> Make(Bytes limit) {
    const Bytes reserved = RoundUp(limit, kChunk) * 4;
    void* base = mmap(nullptr, (reserved + kChunk).count(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return absl::ResourceExhaustedError("no address range of that size");
    return std::unique_ptr<PlainMemory>(new PlainMemory(static_cast<std::byte*>(base), reserved, limit));
  }
  ~PlainMemory() override { munmap(mapping_, (reserved_ + kChunk).count()); }

  std::byte* base() const override {
    const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
    return mapping_ + (kChunk.count() - address % kChunk.count()) % kChunk.count();
  }
  Bytes reserved() const override { return reserved_; }
  Bytes granularity() const override { return kChunk; }
  Bytes limit() const override { return limit_; }

  absl::StatusOr<std::vector<Chunk>> Grow(const GrowRequest& request) override {
    const std::lock_guard lock(mutex_);
    if (held_ + request.at_least > RoundUp(limit_, kChunk)) {
      Refusal refusal;
      refusal.reason = RefusalReason::kLimit;
      refusal.asked = request.at_least;
      refusal.limit = limit_;
      refusal.held = held_;
      return RefusalStatus(refusal);
    }
    std::vector<Chunk> chunks;
    for (Bytes got; got < request.at_least; got += kChunk) chunks.push_back({ChunkId{next_++}, kChunk});
    held_ += request.at_least;
    return chunks;
  }
  absl::Status Map(std::span<const ChunkPlacement> placements) override {
    const std::lock_guard lock(mutex_);
    for (const ChunkPlacement& placement : placements) {
      if (mprotect(base() + placement.offset.count(), kChunk.count(), PROT_READ | PROT_WRITE) != 0) {
        return absl::InternalError("mprotect failed");
      }
      places_[placement.id] = placement.offset;
    }
    return absl::OkStatus();
  }
  absl::Status Unmap(std::span<const ChunkId> chunks) override {
    const std::lock_guard lock(mutex_);
    for (const ChunkId id : chunks) {
      std::byte* address = base() + places_[id].count();
      places_.erase(id);
      if (madvise(address, kChunk.count(), MADV_DONTNEED) != 0 ||
          mprotect(address, kChunk.count(), PROT_NONE) != 0) {
        return absl::InternalError("a page cannot be given back");
      }
    }
    return absl::OkStatus();
  }
  absl::Status Return(std::span<const ChunkId> chunks) override {
    const std::lock_guard lock(mutex_);
    held_ -= kChunk * chunks.size();
    return absl::OkStatus();
  }

 private:
  static constexpr Bytes kChunk = 2_MiB;
  PlainMemory(std::byte* mapping, Bytes reserved, Bytes limit)
      : mapping_(mapping), reserved_(reserved), limit_(limit) {}

  std::byte* const mapping_;
  const Bytes reserved_;
  const Bytes limit_;
  std::mutex mutex_;
  Bytes held_;
  std::uint64_t next_ = 1;
  std::map<ChunkId, Bytes> places_;
};

absl::Status Run() {
  LGPU_ASSIGN_OR_RETURN(std::unique_ptr<PlainMemory> source, PlainMemory::Make(16_MiB));
  Pool pool(std::move(source), {.device = "plain memory"});

  LGPU_ASSIGN_OR_RETURN(const Block small, pool.Allocate(1000_B));
  LGPU_ASSIGN_OR_RETURN(const Block large, pool.Allocate(5_MiB));
  small.address[0] = large.address[0] = std::byte{1};
  const MemoryStats stats = pool.stats();
  std::cout << stats.live_blocks << " blocks use " << stats.used << " of " << stats.held << " held, limit "
            << stats.limit << "\n";

  const absl::StatusOr<Block> refused = pool.Allocate(12_MiB, {.what = "one block too many"});
  if (refused.ok()) return absl::InternalError("more than the limit was given");
  std::cout << refused.status().message() << "\n";

  LGPU_RETURN_IF_ERROR(pool.Free(large));
  LGPU_ASSIGN_OR_RETURN(const Block fits, pool.Allocate(12_MiB));
  LGPU_RETURN_IF_ERROR(pool.Free(fits));
  LGPU_RETURN_IF_ERROR(pool.Free(small));
  LGPU_ASSIGN_OR_RETURN(const Bytes returned, pool.Trim(16_MiB));
  std::cout << "returned " << returned << ", held " << pool.stats().held << "\n";
  return pool.stats().held.is_zero() ? absl::OkStatus() : absl::InternalError("something is still held");
}

}  // namespace

int main() {
  if (const absl::Status status = Run(); !status.ok()) {
    std::cerr << "04_allocator_alone: " << status.message() << "\n";
    return 1;
  }
  return 0;
}
