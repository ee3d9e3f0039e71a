#ifndef LGPU_CLIENT_SESSION_DEVICE_POOL_H_
#define LGPU_CLIENT_SESSION_DEVICE_POOL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/device/backend_fences.h"
#include "allocator/device/device_work.h"
#include "client/session/workspace.h"
#include "lgpu/pool.h"
#include "lgpu/refusal.h"
#include "proto/wire/pages.h"

namespace lgpu {

/// A DevicePool is the memory of one logical device inside this program: the pool over its source, the
/// streams that use it, the workspace of libraries, and its counters in the client page.
///
/// Thread-safe, except Close and Abandon: no other call runs then or comes later. Blocks die with it.
/// Stream order is the pool's: allocate with the stream that uses the block first (AllocateOptions::stream),
/// say UseOn for work on another stream, and free after the last work was queued.
class DevicePool {
 public:
  struct Options {
    std::string device = {};                 // said in refusals: "/device:GPU:0"
    std::string lease = {};                  // said in refusals
    ClientPage::Device* counters = nullptr;  // outlives it; null: nothing is counted for the daemon
    /// The bytes in use in all pools that have these counters; null: this is the only one.
    std::shared_ptr<std::atomic<std::uint64_t>> used = nullptr;
    std::function<void()> wake = {};  // PoolOptions::wake: calls Maintain soon
    /// Libraries of this program borrow the workspace. Allocate then takes its memory before it asks for any
    /// other program's.
    bool lends_workspace = false;
  };
  /// The backend, and the streams as long as they are not removed, outlive it.
  DevicePool(std::unique_ptr<RegionSource> source, DeviceWork& backend, Options options);
  /// As Close.
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  /// Numbers a stream of the device: 0 for the first, which most blocks should be for. RESOURCE_EXHAUSTED:
  /// kMaxStreams have a number.
  absl::StatusOr<StreamId> AddStream(StreamHandle stream) { return fences_->Add(stream); }
  /// Waits for the stream, which may then be destroyed. Its blocks stay, and are freed as any other.
  absl::Status RemoveStream(StreamId stream) { return fences_->Remove(stream); }

  /// Errors as Pool::Allocate, Free and UseOn.
  absl::StatusOr<Block> Allocate(Bytes bytes, const AllocateOptions& options = {});
  /// `requested`: as given to Allocate.
  absl::Status Free(const Block& block, Bytes requested);
  /// For callers that do not know the requested size.
  absl::Status Free(const Block& block);
  absl::StatusOr<Bytes> RequestedOf(const Block& block) const { return pool_->RequestedOf(block); }
  absl::StatusOr<Block> Find(const void* address) { return pool_->Find(address); }
  absl::Status UseOn(const Block& block, StreamId stream) { return pool_->UseOn(block, stream); }

  /// Waits for all streams and gives every chunk without live blocks back. Says how much it was.
  absl::StatusOr<Bytes> Trim();
  /// As Pool::TrimFor. The workspace goes too where nothing else is enough.
  absl::StatusOr<Pool::Trimmed> TrimFor(Bytes bytes);
  /// As Pool::Maintain.
  std::optional<std::chrono::steady_clock::time_point> Maintain(std::chrono::steady_clock::time_point now);

  /// As Pool::Suspend and Resume. Nothing happens where the pool is suspended, or is not.
  absl::Status Suspend() { return pool_->is_suspended() ? absl::OkStatus() : pool_->Suspend(); }
  absl::Status Resume(std::chrono::nanoseconds timeout) {
    return pool_->is_suspended() ? pool_->Resume(timeout) : absl::OkStatus();
  }

  Bytes limit() const { return pool_->limit(); }
  MemoryStats stats() const { return pool_->stats(); }
  MemorySnapshot Snapshot() const { return pool_->Snapshot(); }
  /// As Pool::Blocks.
  absl::StatusOr<PoolBlocks> Blocks(std::uint64_t at_most) const;
  /// The owners of most memory, at most `n`.
  std::vector<Refusal::Owner> LargestOwners(std::size_t n) const;
  /// Since the start or the last ResetStats.
  Bytes largest_allocation() const { return Bytes(largest_allocation_.load(std::memory_order_relaxed)); }
  std::uint64_t allocations() const;
  /// Peak, number and largest of allocations start again.
  void ResetStats();
  /// Writes the counters that cost too much to write at every allocation.
  void PublishStats();
  Workspace& workspace() { return *workspace_; }

  /// Gives all memory back. The streams are done with it.
  void Close();
  /// Forgets everything without touching it: in a forked child it belongs to the parent process.
  void Abandon();

 private:
  absl::StatusOr<Block> AllocateWithWorkspace(Bytes bytes, const AllocateOptions& options);
  void CountAllocated(const Block& block, Bytes requested);

  const Options options_;
  const std::shared_ptr<BackendFences> fences_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Workspace> workspace_;
  const std::shared_ptr<std::atomic<std::uint64_t>> used_;  // where there are counters
  std::atomic<std::uint64_t> largest_allocation_{0};
  std::atomic<std::uint64_t> allocations_before_reset_{0};
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_DEVICE_POOL_H_
