#ifndef LGPU_ALLOCATOR_POOL_THREAD_USES_H_
#define LGPU_ALLOCATOR_POOL_THREAD_USES_H_

#include <cstdint>
#include <optional>

namespace lgpu {

/// A ThreadUses knows when another thread than the one that asks last took or freed a block of a pool. Times
/// are in milliseconds of a clock that the caller reads.
///
/// A free passes no time, because a look at the clock would slow it down. The next call with a time dates the
/// free: a little late, never early. Pure arithmetic, not thread-safe.
class ThreadUses {
 public:
  /// `thread` took a block.
  void NoteTaken(std::uint64_t thread, std::uint32_t now) {
    NoteThread(thread);
    last_ = {.state = State::kTimed, .at = now};
    if (other_.state == State::kUntimed) [[unlikely]] {
      other_ = last_;
    }
  }
  /// `thread` freed a block.
  void NoteFreed(std::uint64_t thread) {
    NoteThread(thread);
    last_.state = State::kUntimed;
  }
  /// Frees that have no time yet get this one.
  void NoteTime(std::uint32_t now) {
    for (Use* const use : {&last_, &other_}) {
      if (use->state == State::kUntimed) *use = {.state = State::kTimed, .at = now};
    }
  }
  /// The last use by another thread than `thread`; nothing: there was none.
  std::optional<std::uint32_t> LastOfOthers(std::uint64_t thread, std::uint32_t now) {
    NoteTime(now);
    const Use& use = thread == last_thread_ ? other_ : last_;
    return use.state == State::kNone ? std::nullopt : std::optional(use.at);
  }

 private:
  enum class State : std::uint32_t { kNone, kUntimed, kTimed };
  struct Use {
    State state = State::kNone;
    std::uint32_t at = 0;
  };
  void NoteThread(std::uint64_t thread) {
    if (last_thread_ != thread) [[unlikely]] {
      other_ = last_;
      last_thread_ = thread;
    }
  }

  std::uint64_t last_thread_ = 0;
  Use last_;   // by last_thread_
  Use other_;  // the last one by any other thread
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_THREAD_USES_H_
