#include "client/session/device_pool.h"

#include <algorithm>
#include <utility>

#include "allocator/pool/pool_blocks.h"
#include "lgpu/status.h"

namespace lgpu {

DevicePool::DevicePool(std::unique_ptr<RegionSource> source, DeviceWork& backend, Options options)
    : options_(std::move(options)),
      fences_(std::make_shared<BackendFences>(backend)),
      pool_(std::make_unique<Pool>(
          std::move(source),
          PoolOptions{
              .device = options_.device, .lease = options_.lease, .fences = fences_, .wake = options_.wake})),
      workspace_(std::make_unique<Workspace>(*pool_)),
      used_(options_.used != nullptr ? options_.used : std::make_shared<std::atomic<std::uint64_t>>(0)) {}

DevicePool::~DevicePool() { Close(); }

absl::StatusOr<Block> DevicePool::Allocate(Bytes bytes, const AllocateOptions& options) {
  absl::StatusOr<Block> block = options_.lends_workspace && !options.spare_only
                                    ? AllocateWithWorkspace(bytes, options)
                                    : pool_->Allocate(bytes, options);
  if (block.ok()) {
    CountAllocated(*block, bytes);
  } else if (!options.spare_only && absl::IsResourceExhausted(block.status()) &&
             options_.counters != nullptr) {
    options_.counters->refusals.fetch_add(1, std::memory_order_relaxed);
    PublishStats();
  }
  return block;
}

// Before it asks for any other program's memory, the device gives up its own workspace.
absl::StatusOr<Block> DevicePool::AllocateWithWorkspace(Bytes bytes, const AllocateOptions& options) {
  AllocateOptions spare = options;
  spare.spare_only = true;
  absl::StatusOr<Block> block = pool_->Allocate(bytes, spare);
  if (block.ok() || !absl::IsResourceExhausted(block.status())) return block;
  const Workspace::Shortage shortage(*workspace_);
  return pool_->Allocate(bytes, options);
}

void DevicePool::CountAllocated(const Block& block, Bytes requested) {
  const std::uint64_t size = block.bytes.count();
  std::uint64_t largest = largest_allocation_.load(std::memory_order_relaxed);
  while (largest < size &&
         !largest_allocation_.compare_exchange_weak(largest, size, std::memory_order_relaxed)) {
  }
  ClientPage::Device* counters = options_.counters;
  if (counters == nullptr) return;
  // The peak is that of used_: while the page moves to another daemon, the page's `used` may be behind.
  const std::uint64_t used = used_->fetch_add(size, std::memory_order_relaxed) + size;
  counters->used.fetch_add(size, std::memory_order_relaxed);
  std::uint64_t peak = counters->peak_used.load(std::memory_order_relaxed);
  while (peak < used && !counters->peak_used.compare_exchange_weak(peak, used, std::memory_order_relaxed)) {
  }
  counters->requested.fetch_add(requested.count(), std::memory_order_relaxed);
  counters->live_blocks.fetch_add(1, std::memory_order_relaxed);
  counters->allocations.fetch_add(1, std::memory_order_relaxed);
}

// Counted before the pool has the block: its next owner counts it too, and the sum of both could be seen as
// more than the limit.
absl::Status DevicePool::Free(const Block& block, Bytes requested) {
  ClientPage::Device* counters = options_.counters;
  if (counters == nullptr) return pool_->Free(block);
  used_->fetch_sub(block.bytes.count(), std::memory_order_relaxed);
  counters->used.fetch_sub(block.bytes.count(), std::memory_order_relaxed);
  counters->requested.fetch_sub(requested.count(), std::memory_order_relaxed);
  counters->live_blocks.fetch_sub(1, std::memory_order_relaxed);
  absl::Status freed = pool_->Free(block);
  if (freed.ok()) return freed;
  used_->fetch_add(block.bytes.count(), std::memory_order_relaxed);
  counters->used.fetch_add(block.bytes.count(), std::memory_order_relaxed);
  counters->requested.fetch_add(requested.count(), std::memory_order_relaxed);
  counters->live_blocks.fetch_add(1, std::memory_order_relaxed);
  return freed;
}

absl::Status DevicePool::Free(const Block& block) {
  LGPU_ASSIGN_OR_RETURN(const Bytes requested, pool_->RequestedOf(block));
  return Free(block, requested);
}

// The first trim records the fences of freed memory, the wait is for them, and the second trim finds it idle.
absl::StatusOr<Bytes> DevicePool::Trim() {
  constexpr Bytes kAll(~std::uint64_t{0});
  workspace_->GiveUp();
  LGPU_ASSIGN_OR_RETURN(const Bytes at_once, pool_->Trim(kAll));
  LGPU_RETURN_IF_ERROR(fences_->WaitForAll());
  LGPU_ASSIGN_OR_RETURN(const Bytes waited_for, pool_->Trim(kAll));
  PublishStats();
  return at_once + waited_for;
}

absl::StatusOr<Pool::Trimmed> DevicePool::TrimFor(Bytes bytes) {
  LGPU_ASSIGN_OR_RETURN(const Pool::Trimmed first, pool_->TrimFor(bytes));
  if (first.returned >= bytes || workspace_->GiveUp().is_zero()) return first;
  LGPU_ASSIGN_OR_RETURN(const Pool::Trimmed second, pool_->TrimFor(bytes - first.returned));
  return Pool::Trimmed{first.returned + second.returned, second.pending};
}

std::optional<std::chrono::steady_clock::time_point> DevicePool::Maintain(
    std::chrono::steady_clock::time_point now) {
  const auto next = pool_->Maintain(now);
  PublishStats();
  return next;
}

absl::StatusOr<PoolBlocks> DevicePool::Blocks(std::uint64_t at_most) const { return pool_->Blocks(at_most); }

std::vector<Refusal::Owner> DevicePool::LargestOwners(std::size_t n) const {
  std::vector<Refusal::Owner> owners;
  for (const MemoryOwner& owner : pool_->LargestOwners(n)) {
    owners.push_back({owner.op, owner.bytes, owner.blocks});
  }
  return owners;
}

std::uint64_t DevicePool::allocations() const {
  const std::uint64_t all = stats().num_allocs;
  return all - std::min(all, allocations_before_reset_.load(std::memory_order_relaxed));
}

void DevicePool::ResetStats() {
  pool_->ResetPeak();
  largest_allocation_.store(0, std::memory_order_relaxed);
  allocations_before_reset_.store(stats().num_allocs, std::memory_order_relaxed);
  if (options_.counters == nullptr) return;
  options_.counters->peak_used.store(used_->load(std::memory_order_relaxed), std::memory_order_relaxed);
}

void DevicePool::PublishStats() {
  if (options_.counters == nullptr) return;
  options_.counters->largest_free_block.store(stats().largest_free_block.count(), std::memory_order_relaxed);
}

void DevicePool::Close() {
  workspace_.reset();
  pool_.reset();
}

// Their destructors would unmap and return chunks that belong to the parent process.
void DevicePool::Abandon() {
  [[maybe_unused]] const Workspace* const workspace = workspace_.release();
  [[maybe_unused]] const Pool* const pool = pool_.release();
}

}  // namespace lgpu
