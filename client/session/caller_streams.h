#ifndef LGPU_CLIENT_SESSION_CALLER_STREAMS_H_
#define LGPU_CLIENT_SESSION_CALLER_STREAMS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "allocator/device/device_work.h"
#include "base/mutex.h"
#include "client/session/device_pool.h"

namespace lgpu {

/// CallerStreams gives a program's streams the stream numbers of a DevicePool. There may be any number of
/// streams, and there are kMaxStreams numbers. Where all are taken, the stream that was unused for longest is
/// drained and loses its number; its next use gets another one.
///
/// A stream is a CUstream, or any pointer on a simulated device. Null and 1 are one stream, the legacy
/// default stream; 2 is another stream in each thread. The first stream of a pool that has none gets number
/// 0, which costs least, and keeps it until Forget.
///
/// Thread-safe, except RemoveAll. A use of a known stream takes no lock. Pool and backend outlive it.
class CallerStreams {
 public:
  CallerStreams(DevicePool& pool, DeviceWork& backend, int device)
      : pool_(pool), backend_(backend), device_(device) {}
  CallerStreams(const CallerStreams&) = delete;
  CallerStreams& operator=(const CallerStreams&) = delete;

  /// The legacy stream, or the calling thread's own default stream: streams that are never destroyed.
  static bool IsDefault(void* stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 2; }

  /// While a Use lives, its stream keeps its number.
  class Use {
   public:
    Use() = default;
    ~Use() {
      if (pins_ != nullptr) pins_->fetch_sub(1, std::memory_order_release);
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    StreamId id() const { return id_; }

   private:
    friend class CallerStreams;
    std::atomic<std::uint32_t>* pins_ = nullptr;
    StreamId id_ = 0;
  };
  /// Fills `use`, which is empty. Errors as DeviceWork::AdoptStream; RESOURCE_EXHAUSTED: kMaxStreams threads
  /// use a stream each at this moment.
  absl::Status Find(void* stream, Use& use);
  /// Waits for the stream, which needs no number for that.
  absl::Status Drain(void* stream);
  /// Waits for the stream, which may then be destroyed. Nothing happens for one that was never used. No other
  /// call with the stream runs.
  absl::Status Forget(void* stream);
  /// Waits for all of them. No other call runs or comes later.
  absl::Status RemoveAll();
  /// By their numbers; null for numbers that no stream of the program's has, and for the legacy stream.
  std::vector<void*> Streams() const;

 private:
  static constexpr std::uint64_t kNoKey = 0;
  struct Slot {
    std::atomic<std::uint64_t> key{kNoKey};
    std::atomic<std::uint32_t> pins{0};
    std::atomic<std::uint32_t> used_at{0};
    // Guarded by the mutex_ of CallerStreams.
    StreamHandle handle = {};
    void* stream = nullptr;
  };
  static std::uint64_t KeyOf(void* stream);
  bool FindKnown(std::uint64_t key, Use& use);
  /// Takes the number from its stream, whose key is cleared already; on an error of the drain it gets `key`
  /// back.
  absl::Status Remove(StreamId id, std::uint64_t key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// False: every stream is in use.
  absl::StatusOr<bool> RemoveOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  DevicePool& pool_;
  DeviceWork& backend_;
  const int device_;
  std::array<Slot, kMaxStreams> slots_;  // by number
  std::atomic<StreamId> end_{0};         // numbers from here on were never given
  std::atomic<std::uint32_t> tick_{1};   // rises whenever a stream gets a number
  mutable Mutex mutex_;  // orders the calls that give and take numbers, over calls of the backend
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_CALLER_STREAMS_H_
