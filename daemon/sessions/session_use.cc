#include "daemon/sessions/session_use.h"

#include <time.h>

#include <algorithm>
#include <atomic>

#include "daemon/sessions/session_state.h"

namespace lgpu::daemon {
namespace {

constexpr std::uint64_t kFirstTick = ClientPage::kNoUse + 1;

/// How far the system's clock is ahead of UseTime's. lgpud reads the two clocks one after the other, so two
/// readings of their difference are never quite equal, and the same use would be shown at two times. lgpud
/// therefore keeps one reading, until the difference has changed by kDrift: somebody set the system's clock,
/// or the clocks have drifted apart.
std::chrono::nanoseconds SystemTimeOffset() {
  constexpr std::chrono::milliseconds kDrift{100};
  static std::atomic<std::int64_t> kept{0};
  const std::chrono::nanoseconds now = std::chrono::system_clock::now().time_since_epoch() - UseTimeNow();
  const std::chrono::nanoseconds before(kept.load(std::memory_order_relaxed));
  if (now - before < kDrift && before - now < kDrift) return before;
  kept.store(now.count(), std::memory_order_relaxed);
  return now;
}

}  // namespace

UseTime UseTimeNow() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

std::uint64_t TickAt(UseTime time) {
  return kFirstTick +
         static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(time).count());
}

UseTime TimeOfTick(std::uint64_t tick) {
  // A program may write any number.
  constexpr std::uint64_t kManySeconds = std::uint64_t{1} << 33;
  return std::chrono::seconds(std::min(tick - std::min(tick, kFirstTick), kManySeconds));
}

std::chrono::system_clock::time_point ToSystemTime(UseTime time) {
  const std::chrono::nanoseconds since_epoch = time + SystemTimeOffset();
  return std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(since_epoch));
}

UseTime FromSystemTime(std::chrono::system_clock::time_point time) {
  return time.time_since_epoch() - SystemTimeOffset();
}

SessionUse SessionState::use() const {
  if (phase() == Phase::kAbsent || !client_page_) return {};
  const std::uint64_t word = client_page_->last_use.load(std::memory_order_relaxed);
  const std::optional<std::chrono::system_clock::time_point> op = placements_.last_at();
  if (word == 0 && !op) return {};
  if (word == ClientPage::kNoUse) return {.is_known = true};
  UseTime last = TimeOfTick(word);
  if (op) last = std::max(last, FromSystemTime(*op));
  return {.is_known = true, .last = std::min(last, UseTimeNow())};
}

void SessionState::WriteTick(std::uint64_t tick) {
  if (stats_page_) stats_page_->tick.store(tick, std::memory_order_relaxed);
}

}  // namespace lgpu::daemon
