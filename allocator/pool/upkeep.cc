#include "allocator/pool/upkeep.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "lgpu/status.h"

namespace lgpu {
namespace {

using TimePoint = PoolState::Clock::time_point;

// The most that one call gives back: it runs on the thread that answers the daemon.
constexpr Bytes kBudget = 256_MiB;
constexpr std::chrono::milliseconds kSoon{20};
constexpr std::chrono::milliseconds kTick{1000};

}  // namespace

std::optional<TimePoint> Upkeep::Maintain(TimePoint now) {
  if (state_.epoch.IsForked() || IsSuspended()) return std::nullopt;
  const bool quiet = FlushIdleCaches(now);
  fences_.Poll().IgnoreError();  // a request that needs the memory behind them reports the error
  GrowAhead();
  const bool more = GiveBackSurplus(now);
  MutexLock lock(state_.mutex);
  // A pool in use would be woken by its next block: a system call.
  const bool nothing_left = quiet && state_.chunks.spare().empty() && state_.cache.bytes() <= 0 &&
                            !state_.order.is_waiting() &&
                            state_.blocks.idle(Suballocator::kYoungest).is_zero();
  if (!nothing_left || !state_.options.wake || state_.grew) {
    state_.StayAwake();
    return now + (more ? kSoon : kTick);
  }
  // A thread may have found its cache open before FallAsleep and put a block there after this look at it: a
  // call one tick later looks again.
  if (!state_.asleep) asleep_since_ = now;
  state_.FallAsleep();
  if (now - asleep_since_ >= kTick) return std::nullopt;
  return asleep_since_ + kTick;
}

bool Upkeep::IsSuspended() const {
  MutexLock lock(state_.mutex);
  return state_.chunks.is_suspended();
}

// Caches of threads that do nothing keep pages from being idle. True: no thread has allocated of late.
bool Upkeep::FlushIdleCaches(TimePoint now) {
  MutexLock lock(state_.mutex);
  state_.Tick();
  state_.uses.NoteTime(state_.tick.load(std::memory_order_relaxed));
  if (std::exchange(state_.wake_sent, false)) state_.StayAwake();
  const bool quiet = state_.decay.IsQuiet(now, state_.counts.allocs + state_.cache.totals().hits);
  if (quiet) state_.FlushCaches();
  return quiet;
}

// Gets one step ahead of rising demand: spare chunks need no call of the daemon later.
void Upkeep::GrowAhead() {
  GrowRequest request;
  std::uint64_t trims = 0;
  const Bytes limit = state_.source->limit();
  {
    MutexLock lock(state_.mutex);
    trims = state_.trims;
    const Bytes used = state_.blocks.used();
    const Bytes held = state_.chunks.held();
    const Bytes spare = state_.chunks.spare_bytes();
    const bool rises = std::exchange(state_.grew, false) || used > state_.grown_for;
    const Bytes step = state_.StepAhead();
    const Bytes room = SaturatingSub(RoundUp(limit, state_.page), held);
    if (!state_.options.grow_ahead || !rises || spare >= step || SaturatingSub(held, used) >= step * 2 ||
        room.is_zero()) {
      return;
    }
    state_.grown_for = used;
    request = {.at_least = state_.page, .wanted = std::min(step - spare, room), .ahead = true};
    ++state_.calls;
  }
  // A refusal is not reported: a request that needs the memory will be refused itself.
  std::vector<Chunk> chunks = state_.source->Grow(request).value_or(std::vector<Chunk>());
  {
    MutexLock lock(state_.mutex);
    ++state_.counts.round_trips_ahead;
    if (trims == state_.trims) {
      for (const Chunk& chunk : std::exchange(chunks, {})) {
        state_.chunks.NoteGranted(chunk);
        state_.chunks.AddSpare(chunk);
      }
    }
  }
  if (!chunks.empty()) {
    // A trim ran meanwhile; return these chunks too.
    state_.source->Return(IdsOf(chunks)).IgnoreError();
  }
  MutexLock lock(state_.mutex);
  --state_.calls;
  state_.NoteChange();
}

// True: there is more to give back than one call may.
bool Upkeep::GiveBackSurplus(TimePoint now) {
  Offer offer;
  {
    MutexLock lock(state_.mutex);
    state_.decay.Note(now, {.newest = state_.order.stamp() - 1,
                            .spare = state_.chunks.spare_bytes(),
                            .round_trips = state_.counts.round_trips});
    const auto idle = [this](Suballocator::Stamp stamp) {
      state_.mutex.AssertHeld();
      return state_.blocks.idle(stamp);
    };
    offer.surplus =
        state_.decay.FindSurplus(now, idle, state_.SettledStamp(), state_.meter.peak_used(), state_.page);
  }
  if (offer.surplus.bytes.is_zero()) return false;
  const bool more = offer.surplus.bytes > kBudget;
  offer.surplus.bytes = std::min(offer.surplus.bytes, kBudget);
  const absl::StatusOr<Bytes> given = GiveBack(offer);
  if (!given.ok() || given->is_zero()) return false;
  MutexLock lock(state_.mutex);
  state_.decay.NoteReturned(now);
  state_.grown_for = std::max(state_.grown_for, state_.blocks.used());
  return more;
}

absl::StatusOr<Bytes> Upkeep::GiveBack(const Offer& offer) {
  std::vector<Chunk> chunks;
  std::vector<ChunkStore::Run> runs;
  Bytes left = offer.surplus.bytes;
  {
    MutexLock lock(state_.mutex);
    ++state_.calls;
    if (offer.surplus.with_spare) {
      chunks = state_.chunks.TakeSpareUpTo(left);
      for (const Chunk& chunk : chunks) left -= chunk.bytes;
    }
    const Suballocator::Stamp settled = std::min(offer.surplus.settled, state_.SettledStamp());
    runs = state_.chunks.DetachIdle(
        state_.blocks, {.amount = left, .bound = ChunkStore::Bound::kAtMost, .settled = settled});
    for (const ChunkStore::Run& run : runs) left -= run.range.bytes;
    if (offer.rather_more && !left.is_zero()) {
      const std::optional<Chunk> spare =
          offer.surplus.with_spare ? state_.chunks.TakeLastSpare() : std::nullopt;
      if (spare) {
        chunks.push_back(*spare);
      } else {
        auto one = state_.chunks.DetachIdle(state_.blocks, {.amount = state_.page, .settled = settled});
        std::move(one.begin(), one.end(), std::back_inserter(runs));
      }
    }
  }
  absl::Status status = state_.Unmap(runs);
  if (status.ok()) {
    for (const ChunkStore::Run& run : runs) chunks.insert(chunks.end(), run.chunks.begin(), run.chunks.end());
  }
  Bytes returned;
  for (const Chunk& chunk : chunks) returned += chunk.bytes;
  status.Update(state_.Return(chunks));  // returns spare chunks even when unmapping failed
  MutexLock lock(state_.mutex);
  --state_.calls;
  state_.NoteChange();
  if (!status.ok()) return status;
  return returned;
}

// Flushes the caches, polls the fences, and returns idle memory behind passed ones. After a trim the pool
// does not grow ahead for earlier use.
absl::StatusOr<Bytes> Upkeep::TrimSettled(Bytes bytes, bool rather_more) {
  LGPU_RETURN_IF_ERROR(state_.CheckAlive());
  if (IsSuspended()) return Bytes();
  {
    MutexLock lock(state_.mutex);
    state_.FlushCaches();
    ++state_.trims;
    state_.grew = false;
    state_.grown_for = std::max(state_.grown_for, state_.blocks.used());
  }
  LGPU_RETURN_IF_ERROR(fences_.Record());
  fences_.AwaitRecording();
  LGPU_RETURN_IF_ERROR(fences_.Poll());
  state_.WakeIfDue();
  return GiveBack({.surplus = {.bytes = bytes, .with_spare = true, .settled = Suballocator::kYoungest},
                   .rather_more = rather_more});
}

absl::StatusOr<Bytes> Upkeep::Trim(Bytes at_most) { return TrimSettled(at_most, false); }

absl::StatusOr<Pool::Trimmed> Upkeep::TrimFor(Bytes bytes) {
  Pool::Trimmed trimmed;
  LGPU_ASSIGN_OR_RETURN(trimmed.returned, TrimSettled(bytes, true));
  MutexLock lock(state_.mutex);
  if (state_.chunks.is_suspended()) return trimmed;
  trimmed.pending = state_.blocks.idle(Suballocator::kYoungest) - state_.blocks.idle(state_.SettledStamp());
  return trimmed;
}

}  // namespace lgpu
