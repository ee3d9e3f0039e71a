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
/// library first wants it, and given up when memory runs short. It is inside the limit, and not part of the
/// used bytes that programs see. Thread-safe; the pool outlives it.
class Workspace {
 public:
  /// The block's owner in snapshots and lists of owners.
  static constexpr std::string_view kOwner = "workspace of libraries";
  /// Pause: this many calls of Take give nothing after the workspace was given up or there was no room,
  /// because tensors or other programs needed the memory. It doubles when the workspace was hardly used in
  /// between, up to kLongestPause.
  static constexpr int kPause = 64;
  static constexpr int kLongestPause = 8192;

  explicit Workspace(Pool& pool) : pool_(pool) {}
  /// No caller has the workspace any more.
  ~Workspace() { GiveUp(); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// How much Take would take now: an eighth of the limit, at most 32 MiB.
  Bytes Size() const;
  /// A workspace of at least `at_least`. Null when less is spare (AllocateOptions::spare_only), during a
  /// Shortage, and in a pause. The caller lets go when the work that uses it is queued on the device's
  /// stream and counted there; the memory belongs to that stream.
  std::shared_ptr<const Block> Take(Bytes at_least);
  /// Frees the workspace when its last user lets go. Gives its size.
  Bytes GiveUp();

  /// While a Shortage lives an allocation lacks memory, and there is no workspace. The constructor waits for
  /// the workspace's users, which queue their work and wait for nothing else.
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
  int blocks_ ABSL_GUARDED_BY(mutex_) = 0;  // current_, earlier ones in use, and those being taken
  int shortages_ ABSL_GUARDED_BY(mutex_) = 0;
  int pause_ ABSL_GUARDED_BY(mutex_) = 0;  // so many calls still give nothing
  int next_pause_ ABSL_GUARDED_BY(mutex_) = kPause;
  std::uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;  // of current_
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_WORKSPACE_H_
