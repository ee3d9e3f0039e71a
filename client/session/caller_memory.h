#ifndef LGPU_CLIENT_SESSION_CALLER_MEMORY_H_
#define LGPU_CLIENT_SESSION_CALLER_MEMORY_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/session/caller_streams.h"
#include "client/session/device_pool.h"

namespace lgpu {

/// A CallerMemory gives a program blocks of a DevicePool for its own kernels on its own streams, and counts
/// the live and the exported ones. An exported block belongs to owners that may outlive the program's handle
/// of the memory.
///
/// Thread-safe, except RemoveStreams. Pool and backend outlive it.
class CallerMemory {
 public:
  /// kShared: the pool has blocks of other owners too, which are not to be found or freed here.
  enum class PoolUse { kAlone, kShared };
  CallerMemory(DevicePool& pool, DeviceWork& backend, int device, PoolUse use)
      : pool_(pool), use_(use), streams_(pool, backend, device) {}
  CallerMemory(const CallerMemory&) = delete;
  CallerMemory& operator=(const CallerMemory&) = delete;

  struct Request {
    void* stream = nullptr;
    Bytes alignment = Bytes(256);
    std::string_view tag = {};
    std::chrono::nanoseconds timeout{0};
    bool only_if_ready = false;
  };
  /// A block of no bytes has no address and is no memory. Errors as Pool::Allocate; a Refusal has `what` and
  /// `owners`.
  absl::StatusOr<Block> Allocate(Bytes bytes, const Request& request);
  /// After the last work with the block was queued on `stream`. INVALID_ARGUMENT: it is not live;
  /// FAILED_PRECONDITION: it is exported.
  absl::Status Free(const Block& block, void* stream);
  absl::StatusOr<Block> Find(const void* address);
  absl::Status UseOn(const Block& block, void* stream);
  /// Work with a live block of the pool, which may be another owner's, was queued on the default streams of
  /// any threads.
  absl::Status UseOnDefaults(const Block& block);
  /// Exported blocks that were to be freed on the stream wait for it no more. When this returns, no thread
  /// that ends an export uses the stream any more.
  absl::Status ForgetStream(void* stream);

  /// From here on the block is freed by FreeExported alone, once, on `stream`.
  absl::Status Export(const Block& block, void* stream);
  void FreeExported(const Block& block);

  struct Live {
    std::uint64_t blocks = 0;
    Bytes bytes;
    std::uint64_t exported = 0;  // of these blocks
  };
  Live live() const;
  /// OK where no block is live; else FAILED_PRECONDITION with their number.
  absl::Status CheckNoneLive() const;
  std::vector<void*> Streams() const { return streams_.Streams(); }
  /// Waits for the streams and gives their numbers up.
  absl::Status RemoveStreams() { return streams_.RemoveAll(); }

 private:
  absl::Status CheckOwn(const Block& block) const;
  absl::Status FreeLive(const Block& block, std::optional<void*> stream);
  /// The block is exported no more; says the stream that it is freed on, which ForgetStream leaves alone
  /// until EndFree.
  std::optional<void*> BeginFree(const Block& block);
  void EndFree(void* stream);
  absl::Status ExplainRefusal(const absl::Status& status, std::string_view tag) const;

  DevicePool& pool_;
  const PoolUse use_;
  CallerStreams streams_;
  std::atomic<std::uint64_t> exported_blocks_{0};
  mutable Mutex mutex_;
  absl::flat_hash_map<const void*, Block> own_ ABSL_GUARDED_BY(mutex_);  // of a shared pool
  Bytes own_bytes_ ABSL_GUARDED_BY(mutex_);
  // The stream that each is freed on; nothing: it was forgotten, and all its work was done.
  absl::flat_hash_map<const void*, std::optional<void*>> exported_ ABSL_GUARDED_BY(mutex_);
  std::vector<void*> forgetting_ ABSL_GUARDED_BY(mutex_);  // of each ForgetStream that runs
  std::vector<void*> ending_ ABSL_GUARDED_BY(mutex_);      // of each FreeExported that runs
  CondVar streams_changed_;                                // one of these two became shorter
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_CALLER_MEMORY_H_
