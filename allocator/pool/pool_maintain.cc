// What may take its time: growing ahead of demand, decay, trimming.

#include <algorithm>
#include <utility>

#include "allocator/pool/pool_impl.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using TimePoint = std::chrono::steady_clock::time_point;

// Growth comes in steps of a sixteenth of what is used: a program that grows needs few of them, and one that
// stopped holds little that it does not use.
constexpr std::uint64_t kGrowthShare = 16;
constexpr Bytes kLargestStep = 256_MiB;
constexpr Bytes kLargeClass = 32_MiB;

// Idle memory: all is kept this long, then half of a reserve ten times as long, then nothing.
constexpr milliseconds kHold{1000};
constexpr int kLongHold = 10;
constexpr std::uint64_t kReserveShare = 50;  // of the peak
constexpr std::uint64_t kReservePages = 16;
// Memory that was given back and had to be fetched again within this time was given back too early.
constexpr seconds kRegret{30};
constexpr int kMostPatience = 64;
// What one call gives back at most: it is on the thread that answers the daemon.
constexpr Bytes kBudget = 256_MiB;
constexpr milliseconds kSoon{20};
constexpr milliseconds kTick{1000};

}  // namespace

// What to ask for where `missing` is needed. Small blocks live in chunks of one page, so for them the source
// must not see a step that it would fill with larger ones.
Bytes Pool::Impl::GrowthStep(Bytes missing, bool small) const {
  if (!options_.grow_ahead) {
    return RoundUp(std::max(options_.growth_step, missing), granularity_);
  }
  const Bytes share = std::min(blocks_.used() / kGrowthShare, kLargestStep);
  const Bytes step = RoundUp(std::max({options_.growth_step, share, missing}), granularity_);
  if (small) {
    return std::max(missing, std::min(step, kLargeClass - granularity_));
  }
  const Bytes unit = step >= kLargestStep ? kLargestStep : kLargeClass;
  return step >= kLargeClass && unit >= granularity_ ? RoundUp(step, unit) : step;
}

// Called where memory was taken or freed; the hook itself is called without the lock.
void Pool::Impl::NoteDemand() {
  if (!options_.wake || wake_sent_) {
    return;
  }
  const Bytes used = blocks_.used();
  const bool rises = used > grown_for_ && SaturatingSub(held_, used) < GrowthStep({}, false) / 2 &&
                     held_ < RoundDown(limit_seen_, granularity_);
  if (asleep_ || rises || grew_) {
    wake_sent_ = true;
    wake_due_.store(true, std::memory_order_relaxed);
  }
}

void Pool::Impl::WakeIfDue() {
  if (wake_due_.load(std::memory_order_relaxed) && wake_due_.exchange(false, std::memory_order_relaxed)) {
    options_.wake();
  }
}

// A step more than there is, where demand rises: what is granted and not mapped needs no daemon any more.
void Pool::Impl::GrowAhead() {
  GrowRequest request;
  std::uint64_t trims = 0;
  {
    MutexLock lock(mutex_);
    trims = trims_;
    const Bytes used = blocks_.used();
    const bool rises = std::exchange(grew_, false) || used > grown_for_;
    Bytes spare;
    for (const Chunk& chunk : spare_) {
      spare += chunk.bytes;
    }
    const Bytes step = GrowthStep({}, false);
    const Bytes free = SaturatingSub(held_, used);
    const Bytes room = SaturatingSub(RoundUp(source_->limit(), granularity_), held_);
    if (!options_.grow_ahead || !rises || spare >= step || free >= step * 2 || room.is_zero()) {
      return;
    }
    grown_for_ = used;
    request = {.at_least = granularity_,
               .wanted = std::min(step - spare, RoundDown(room, granularity_)),
               .ahead = true};
    ++calls_;
  }
  // A refusal is nobody's concern yet: whoever needs the memory will be told.
  std::vector<Chunk> chunks = source_->Grow(request).value_or(std::vector<Chunk>());
  {
    MutexLock lock(mutex_);
    ++source_round_trips_ahead_;
    if (trims == trims_) {
      for (const Chunk& chunk : std::exchange(chunks, {})) {
        spare_.push_back(chunk);
        held_ += chunk.bytes;
      }
    }
  }
  if (!chunks.empty()) {
    // Meanwhile somebody gave back what lies idle: this would.
    source_->Return(IdsOf(chunks)).IgnoreError();
  }
  MutexLock lock(mutex_);
  --calls_;
  NoteChange();
}

// The last stamp of memory that has been idle for `age`; nothing: nothing has, as far as is known.
std::optional<std::uint32_t> Pool::Impl::StampOfAge(TimePoint now, std::chrono::nanoseconds age) const {
  std::optional<std::uint32_t> stamp;
  for (const Mark& mark : marks_) {
    if (mark.time + age > now) {
      break;
    }
    stamp = mark.stamp;
  }
  return stamp;
}

void Pool::Impl::NoteTime(TimePoint now) {
  const std::chrono::nanoseconds hold = kHold * patience_;
  if (marks_.empty() || now - marks_.back().time >= hold / 8) {
    marks_.push_back({order_.stamp() - 1, now});
  }
  while (marks_.size() > 1 && marks_[1].time + hold * kLongHold <= now) {
    marks_.pop_front();
  }
  Bytes spare;
  for (const Chunk& chunk : spare_) {
    spare += chunk.bytes;
  }
  if (spare != spare_seen_) {
    spare_seen_ = spare;
    spare_since_ = now;
  }
  // Fetched on somebody's path soon after it was given back: keep things longer from now on.
  if (gave_back_ && source_round_trips_ != round_trips_seen_) {
    patience_ = std::min(patience_ * 2, kMostPatience);
    gave_back_.reset();
  }
  if (gave_back_ && now - *gave_back_ > kRegret * patience_) {
    gave_back_.reset();
  }
  round_trips_seen_ = source_round_trips_;
}

// How much of the idle memory has been idle for too long, and up to which stamp it may go.
Pool::Impl::Surplus Pool::Impl::FindSurplus(TimePoint now) const {
  const std::chrono::nanoseconds hold = kHold * patience_;
  const auto old = [&](std::chrono::nanoseconds age) {
    mutex_.AssertHeld();
    const std::optional<std::uint32_t> stamp = StampOfAge(now, age);
    const Bytes spare = now - spare_since_ >= age ? spare_seen_ : Bytes();
    return stamp ? blocks_.idle(std::min(*stamp, SettledStamp())) + spare : spare;
  };
  const Bytes very_old = old(hold * kLongHold);
  const Bytes reserve = std::max(Bytes(peak_used_.load(std::memory_order_relaxed)) / kReserveShare,
                                 granularity_ * kReservePages);
  Surplus surplus;
  surplus.bytes = very_old + SaturatingSub(SaturatingSub(old(hold), very_old), reserve / 2);
  surplus.with_spare = now - spare_since_ >= hold;
  surplus.settled = std::min(StampOfAge(now, hold).value_or(0), SettledStamp());
  return surplus;
}

std::optional<TimePoint> Pool::Impl::Maintain(TimePoint now) {
  if (epoch_.IsForked()) {
    return std::nullopt;
  }
  {
    MutexLock lock(mutex_);
    tick_.store(CoarseMilliseconds(), std::memory_order_relaxed);
    wake_sent_ = false;
    asleep_ = false;
    // Caches of threads that do nothing keep pages from being idle.
    const std::uint64_t operations = num_allocs_ + cache_.totals().hits;
    if (operations != operations_seen_ || now < operations_since_) {
      operations_seen_ = operations;
      operations_since_ = now;
    } else if (now - operations_since_ >= kHold) {
      FlushCaches();
    }
  }
  PollFences().IgnoreError();  // whoever needs what they guard will be told
  GrowAhead();
  Surplus surplus;
  {
    MutexLock lock(mutex_);
    NoteTime(now);
    surplus = FindSurplus(now);
  }
  bool more = false;
  if (!surplus.bytes.is_zero()) {
    more = surplus.bytes > kBudget;
    surplus.bytes = std::min(surplus.bytes, kBudget);
    const absl::StatusOr<Bytes> given = GiveBack(surplus);
    MutexLock lock(mutex_);
    if (given.ok() && !given->is_zero()) {
      gave_back_ = now;
      grown_for_ = std::max(grown_for_, blocks_.used());
    }
    more = more && given.ok() && !given->is_zero();
  }
  MutexLock lock(mutex_);
  const bool nothing_left = spare_.empty() && cache_.bytes() <= 0 && !order_.is_waiting() &&
                            blocks_.idle(Suballocator::kYoungest).is_zero();
  if (nothing_left && options_.wake && !grew_) {
    asleep_ = true;
    return std::nullopt;
  }
  return now + (more ? kSoon : kTick);
}

absl::StatusOr<Bytes> Pool::Impl::GiveBack(const Surplus& surplus) {
  std::vector<Chunk> chunks;
  std::vector<Run> runs;
  Bytes taken;
  {
    MutexLock lock(mutex_);
    ++calls_;
    for (std::size_t i = surplus.with_spare ? spare_.size() : 0; i-- > 0;) {
      if (spare_[i].bytes <= surplus.bytes - taken) {
        taken += spare_[i].bytes;
        chunks.push_back(spare_[i]);
        spare_.erase(spare_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    runs = DetachIdle({.amount = surplus.bytes - taken,
                       .bound = Bound::kAtMost,
                       .settled = std::min(surplus.settled, SettledStamp())});
    Bytes idle;
    for (const Run& run : runs) {
      idle += run.range.bytes;
    }
    if (surplus.rather_more && taken + idle < surplus.bytes) {
      if (surplus.with_spare && !spare_.empty()) {
        taken += spare_.back().bytes;
        chunks.push_back(spare_.back());
        spare_.pop_back();
      } else {
        const std::vector<Run> one =
            DetachIdle({.amount = granularity_, .settled = std::min(surplus.settled, SettledStamp())});
        runs.insert(runs.end(), one.begin(), one.end());
      }
    }
  }
  absl::Status status = UnmapRuns(runs);
  if (status.ok()) {
    for (const Run& run : runs) {
      chunks.insert(chunks.end(), run.chunks.begin(), run.chunks.end());
      taken += run.range.bytes;
    }
  }
  // Spare chunks go whatever became of the others.
  status.Update(ReturnChunks(chunks));
  MutexLock lock(mutex_);
  --calls_;
  NoteChange();
  if (!status.ok()) {
    return status;
  }
  return taken;
}

// Whatever can be idle is, and what fences guard is as far as it is known. Who trims wants no growing ahead
// for what was used before.
absl::Status Pool::Impl::SettleForTrim() {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  {
    MutexLock lock(mutex_);
    FlushCaches();
    ++trims_;
    grew_ = false;
    grown_for_ = std::max(grown_for_, blocks_.used());
  }
  LGPU_RETURN_IF_ERROR(RecordFences());
  {
    MutexLock lock(mutex_);
    while (order_.is_recording()) {
      fence_recorded_.Wait(mutex_);  // by another thread, which waits for nothing
    }
  }
  return PollFences();
}

absl::StatusOr<Bytes> Pool::Impl::Trim(Bytes at_most) {
  LGPU_RETURN_IF_ERROR(SettleForTrim());
  Surplus surplus{.bytes = at_most, .with_spare = true};
  {
    MutexLock lock(mutex_);
    surplus.settled = SettledStamp();
  }
  return GiveBack(surplus);
}

absl::StatusOr<Pool::Trimmed> Pool::Impl::TrimFor(Bytes bytes) {
  LGPU_RETURN_IF_ERROR(SettleForTrim());
  Surplus surplus{.bytes = bytes, .with_spare = true, .rather_more = true};
  {
    MutexLock lock(mutex_);
    surplus.settled = SettledStamp();
  }
  Trimmed trimmed;
  LGPU_ASSIGN_OR_RETURN(trimmed.returned, GiveBack(surplus));
  MutexLock lock(mutex_);
  trimmed.pending = blocks_.idle(Suballocator::kYoungest) - blocks_.idle(SettledStamp());
  return trimmed;
}

}  // namespace lgpu
