#ifndef LGPU_ALLOCATOR_POOL_DECAY_H_
#define LGPU_ALLOCATOR_POOL_DECAY_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "allocator/suballocator.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// A Decay decides when idle memory of a pool goes back to its source. The pool keeps all of it for a second,
/// half of a reserve for ten seconds, and then none. Where returned memory had to be fetched again soon,
/// these times double, up to 64 times. Pure arithmetic; the caller passes the time, which never falls. Not
/// thread-safe.
class Decay {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Stamp = Suballocator::Stamp;
  static constexpr std::chrono::milliseconds kHold{1000};

  /// The pool's state at `now`; passed at every look.
  struct Look {
    Stamp newest;               // the last stamp that is closed to new frees
    Bytes spare;                // in chunks that are not mapped
    std::uint64_t round_trips;  // calls of the source on the path of an allocation, since the pool's start
  };
  void Note(TimePoint now, const Look& look);
  /// True once no allocation has happened for kHold: `operations` is their number since the pool's start.
  bool IsQuiet(TimePoint now, std::uint64_t operations);
  /// Some of the surplus was returned.
  void NoteReturned(TimePoint now) { returned_ = now; }
  /// The pool's stamps became smaller by this much.
  void Rebase(Stamp by);

  struct Surplus {
    Bytes bytes{};
    bool with_spare = false;
    Stamp settled = 0;  // mapped memory that was freed up to this stamp may go
  };
  /// The memory that has been idle for too long. `idle`: mapped idle bytes that were freed up to a stamp;
  /// `settled`: streams are done with memory up to this stamp; `page`: the granularity of chunks.
  Surplus FindSurplus(TimePoint now, const std::function<Bytes(Stamp)>& idle, Stamp settled, Bytes peak_used,
                      Bytes page) const;

 private:
  std::optional<Stamp> StampOfAge(TimePoint now, std::chrono::nanoseconds age) const;
  std::chrono::nanoseconds hold() const { return kHold * patience_; }

  // Memory that was freed up to the stamp was free by the time.
  struct Mark {
    Stamp stamp = 0;
    TimePoint time{};
  };
  std::deque<Mark> marks_;
  Bytes spare_;
  TimePoint spare_since_;
  std::uint64_t operations_ = 0;
  TimePoint operations_since_;
  std::uint64_t round_trips_ = 0;
  std::optional<TimePoint> returned_;
  int patience_ = 1;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_DECAY_H_
