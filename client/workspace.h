#ifndef LGPU_CLIENT_WORKSPACE_H_
#define LGPU_CLIENT_WORKSPACE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "allocator/mutex.h"
#include "lgpu/pool.h"

namespace lgpu::internal {

/// A Workspace is the scratch memory of one logical GPU for libraries: one block of its pool, taken when a
/// library first wants it, and given up when memory runs short. It is inside the limit, and not part of what
/// programs see as used. Thread-safe; the pool outlives it.
class Workspace {
 public:
  /// The block's owner in snapshots and lists of owners.
  static constexpr std::string_view kOwner = "workspace of libraries";

  explicit Workspace(Pool& pool) : pool_(pool) {}
  ~Workspace() { GiveUp(); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// How much Take gives: an eighth of the limit, at most 32 MiB.
  Bytes Size() const;
  /// Null where there is no room without waiting, and for a while after it was given up. Whoever has it lets
  /// go when the work that uses it is queued on the device's stream; the memory is that stream's.
  std::shared_ptr<std::byte> Take();
  /// The memory is free as soon as nobody has it any more. How much it is.
  Bytes GiveUp();

  Bytes held() const { return Bytes(held_.load(std::memory_order_relaxed)); }
  /// The pool's numbers without the workspace.
  MemoryStats StatsWithout() const;
  /// The peak starts again.
  void ResetPeak();

 private:
  // Frees its block. `self` outlives it: GiveUp is called before the pool goes.
  struct Held {
    Held(Workspace& of, const Block& taken) : self(of), block(taken) {}
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    Workspace& self;
    const Block block;
  };

  std::shared_ptr<Held> Allocate(Bytes size);
  void RaisePeak(std::uint64_t peak);

  /// So many calls of Take give nothing after it was given up or there was no room: others needed the memory.
  static constexpr int kPause = 64;

  Pool& pool_;
  std::atomic<std::uint64_t> held_{0};
  std::atomic<std::uint64_t> peak_without_{0};  // of the time when there was none, since the last reset
  std::atomic<std::uint64_t> taken_{0};         // so often
  mutable Mutex mutex_;
  std::shared_ptr<Held> current_ ABSL_GUARDED_BY(mutex_);
  int pause_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_WORKSPACE_H_
