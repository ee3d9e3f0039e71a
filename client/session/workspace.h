#ifndef LGPU_CLIENT_SESSION_WORKSPACE_H_
#define LGPU_CLIENT_SESSION_WORKSPACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "lgpu/pool.h"

namespace lgpu {

/// A Workspace is the scratch memory of one logical GPU for libraries: one block of its pool, taken when a
/// library first wants it, and given up when memory runs short. It is inside the limit, and not part of what
/// programs see as used. Thread-safe; the pool outlives it.
class Workspace {
 public:
  /// The block's owner in snapshots and lists of owners.
  static constexpr std::string_view kOwner = "workspace of libraries";
  /// So many calls of Take give nothing after it was given up or there was no room: others needed the memory.
  /// Twice as many every time that it was hardly used in between, up to kLongestPause.
  static constexpr int kPause = 64;
  static constexpr int kLongestPause = 8192;

  explicit Workspace(Pool& pool) : pool_(pool) {}
  /// Nobody has it any more.
  ~Workspace() { GiveUp(); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// How much Take would take now: an eighth of the limit, at most 32 MiB.
  Bytes Size() const;
  /// At least so much. Null where not so much lies ready (AllocateOptions::spare_only), while anybody is
  /// short, and in a pause. Whoever has it lets go when the work that uses it is queued on the device's
  /// stream and counted there; the memory is that stream's.
  std::shared_ptr<const Block> Take(Bytes at_least);
  /// The memory is free as soon as nobody has it any more. How much it is.
  Bytes GiveUp();

  /// While it lives the pool lacks memory for somebody: there is no workspace. The constructor waits for
  /// those who have it, which queue their work and need nothing else.
  class Shortage {
   public:
    explicit Shortage(Workspace& of);
    ~Shortage();
    Shortage(const Shortage&) = delete;
    Shortage& operator=(const Shortage&) = delete;

   private:
    Workspace& of_;
  };

 private:
  // Frees its block.
  struct Held {
    Held(Workspace& of, const Block& taken) : self(of), block(taken) {}
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    Workspace& self;
    const Block block;
  };

  static std::shared_ptr<const Block> Lend(const std::shared_ptr<Held>& held) { return {held, &held->block}; }
  void StartPause() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Pool& pool_;
  mutable Mutex mutex_;
  CondVar freed_;
  std::shared_ptr<Held> current_ ABSL_GUARDED_BY(mutex_);
  int blocks_ ABSL_GUARDED_BY(mutex_) = 0;  // current_, those that somebody still has, and those being taken
  int shortages_ ABSL_GUARDED_BY(mutex_) = 0;
  int pause_ ABSL_GUARDED_BY(mutex_) = 0;  // so many calls still give nothing
  int next_pause_ ABSL_GUARDED_BY(mutex_) = kPause;
  std::uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;  // of current_
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_WORKSPACE_H_
