#include "client/session/caller_memory.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "lgpu/refusal.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

constexpr std::size_t kMostOwners = 5;

std::string Hex(const void* address) {
  return absl::StrCat("0x", absl::Hex(reinterpret_cast<std::uintptr_t>(address)));
}

}  // namespace

absl::StatusOr<Block> CallerMemory::Allocate(Bytes bytes, const Request& request) {
  if (bytes.is_zero()) return Block();
  CallerStreams::Use stream;
  LGPU_RETURN_IF_ERROR(streams_.Find(request.stream, stream));
  absl::StatusOr<Block> block = pool_.Allocate(bytes, {.alignment = request.alignment,
                                                       .op = request.tag,
                                                       .stream = stream.id(),
                                                       .timeout = request.timeout,
                                                       .spare_only = request.only_if_ready});
  if (!block.ok()) return ExplainRefusal(block.status(), request.tag);
  if (use_ == PoolUse::kShared) {
    const MutexLock lock(mutex_);
    own_[block->address] = *block;
    own_bytes_ += block->bytes;
  }
  return block;
}

absl::Status CallerMemory::ExplainRefusal(const absl::Status& status, std::string_view tag) const {
  std::optional<Refusal> refusal = GetRefusal(status);
  if (!refusal) return status;
  if (!tag.empty()) refusal->what = absl::StrCat("block of ", std::string(tag));
  refusal->owners = pool_.LargestOwners(kMostOwners);
  return RefusalStatus(*refusal);
}

absl::Status CallerMemory::CheckOwn(const Block& block) const {
  if (use_ == PoolUse::kAlone) return absl::OkStatus();
  const MutexLock lock(mutex_);
  const auto found = own_.find(block.address);
  if (found != own_.end() && found->second == block) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the block of ", block.bytes.count(), " bytes at ", Hex(block.address),
                   " is not a live block of this memory: it was freed before, or belongs to a tensor or to "
                   "another memory"));
}

absl::Status CallerMemory::Free(const Block& block, void* stream) {
  if (block.address == nullptr && block.bytes.is_zero()) return absl::OkStatus();
  LGPU_RETURN_IF_ERROR(CheckOwn(block));
  if (exported_blocks_.load(std::memory_order_acquire) != 0) {
    const MutexLock lock(mutex_);
    if (exported_.contains(block.address)) {
      return absl::FailedPreconditionError(absl::StrCat("the block of ", block.bytes.count(), " bytes at ",
                                                        Hex(block.address),
                                                        " is exported: its last owner frees it"));
    }
  }
  return FreeLive(block, stream);
}

// Where the stream is the block's own, UseOn does nothing.
absl::Status CallerMemory::FreeLive(const Block& block, std::optional<void*> stream) {
  CallerStreams::Use use;
  if (stream) {
    const absl::Status found = streams_.Find(*stream, use);
    // Every number may be in use by a request that waits for just this block.
    LGPU_RETURN_IF_ERROR(absl::IsResourceExhausted(found) ? streams_.Drain(*stream) : found);
    if (found.ok()) LGPU_RETURN_IF_ERROR(pool_.UseOn(block, use.id()));
  }
  if (use_ == PoolUse::kAlone) return pool_.Free(block);
  {
    // Before the pool has it: its address may be another block's from then on.
    const MutexLock lock(mutex_);
    const auto own = own_.find(block.address);
    if (own == own_.end() || own->second != block) {
      return absl::InvalidArgumentError(
          absl::StrCat("the block at ", Hex(block.address), " was freed before"));
    }
    own_.erase(own);
    own_bytes_ -= block.bytes;
  }
  absl::Status freed = pool_.Free(block);
  if (!freed.ok()) {
    const MutexLock lock(mutex_);
    own_[block.address] = block;
    own_bytes_ += block.bytes;
  }
  return freed;
}

absl::StatusOr<Block> CallerMemory::Find(const void* address) {
  if (use_ == PoolUse::kAlone) return pool_.Find(address);
  const MutexLock lock(mutex_);
  if (const auto found = own_.find(address); found != own_.end()) return found->second;
  return absl::InvalidArgumentError(absl::StrCat("no live block of this memory starts at ", Hex(address)));
}

absl::Status CallerMemory::UseOn(const Block& block, void* stream) {
  if (block.address == nullptr && block.bytes.is_zero()) return absl::OkStatus();
  LGPU_RETURN_IF_ERROR(CheckOwn(block));
  CallerStreams::Use use;
  LGPU_RETURN_IF_ERROR(streams_.Find(stream, use));
  return pool_.UseOn(block, use.id());
}

// The legacy stream waits for the default streams of all threads.
absl::Status CallerMemory::UseOnDefaults(const Block& block) {
  CallerStreams::Use use;
  LGPU_RETURN_IF_ERROR(streams_.Find(nullptr, use));
  return pool_.UseOn(block, use.id());
}

// Null is the legacy stream. The block may be freed by another thread, whose own default stream is another
// one than this thread's: the legacy stream waits for both.
absl::Status CallerMemory::Export(const Block& block, void* stream) {
  LGPU_RETURN_IF_ERROR(CheckOwn(block));
  LGPU_RETURN_IF_ERROR(pool_.RequestedOf(block).status());  // it is live
  if (CallerStreams::IsDefault(stream)) stream = nullptr;
  const MutexLock lock(mutex_);
  if (!exported_.emplace(block.address, stream).second) {
    return absl::FailedPreconditionError(absl::StrCat("the block of ", block.bytes.count(), " bytes at ",
                                                      Hex(block.address),
                                                      " is exported already: copy its owner instead"));
  }
  exported_blocks_.fetch_add(1, std::memory_order_release);
  return absl::OkStatus();
}

void CallerMemory::FreeExported(const Block& block) {
  const std::optional<void*> stream = BeginFree(block);
  // Where the device has a fault, the block stays charged until the memory closes.
  FreeLive(block, stream).IgnoreError();
  if (stream) EndFree(*stream);
  // Last, for a Close that sees no exported block takes the memory away.
  exported_blocks_.fetch_sub(1);
}

std::optional<void*> CallerMemory::BeginFree(const Block& block) {
  const MutexLock lock(mutex_);
  std::optional<void*> stream = exported_.at(block.address);
  while (stream && std::find(forgetting_.begin(), forgetting_.end(), *stream) != forgetting_.end()) {
    streams_changed_.Wait(mutex_);
    stream = exported_.at(block.address);
  }
  exported_.erase(block.address);
  if (stream) ending_.push_back(*stream);
  return stream;
}

void CallerMemory::EndFree(void* stream) {
  const MutexLock lock(mutex_);
  ending_.erase(std::find(ending_.begin(), ending_.end(), stream));
  streams_changed_.NotifyAll();
}

absl::Status CallerMemory::ForgetStream(void* stream) {
  if (CallerStreams::IsDefault(stream)) return streams_.Forget(stream);
  {
    const MutexLock lock(mutex_);
    forgetting_.push_back(stream);
    while (std::find(ending_.begin(), ending_.end(), stream) != ending_.end()) streams_changed_.Wait(mutex_);
  }
  absl::Status forgotten = streams_.Forget(stream);
  const MutexLock lock(mutex_);
  forgetting_.erase(std::find(forgetting_.begin(), forgetting_.end(), stream));
  for (auto& [address, freed_on] : exported_) {
    if (forgotten.ok() && freed_on == stream) freed_on.reset();
  }
  streams_changed_.NotifyAll();
  return forgotten;
}

CallerMemory::Live CallerMemory::live() const {
  Live live{.blocks = 0, .bytes = {}, .exported = exported_blocks_.load()};
  if (use_ == PoolUse::kAlone) {
    const MemoryStats stats = pool_.stats();
    live.blocks = stats.live_blocks;
    live.bytes = stats.used;
  } else {
    const MutexLock lock(mutex_);
    live.blocks = own_.size();
    live.bytes = own_bytes_;
  }
  return live;
}

absl::Status CallerMemory::CheckNoneLive() const {
  const Live now = live();
  if (now.blocks == 0 && now.exported == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(now.blocks, now.blocks == 1 ? " block (" : " blocks (", FormatBytes(now.bytes),
                   ") of this memory ", now.blocks == 1 ? "is" : "are", " still in use, ", now.exported,
                   " of them exported\n  try: free them, let their owners go, and try again"));
}

}  // namespace lgpu
