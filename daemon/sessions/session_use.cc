#include "daemon/sessions/session_use.h"

#include <time.h>

#include <algorithm>

#include "daemon/sessions/session_state.h"

namespace lgpu::daemon {
namespace {

constexpr std::uint64_t kFirstTick = ClientPage::kNoUse + 1;

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
  return std::chrono::system_clock::now() -
         std::chrono::duration_cast<std::chrono::system_clock::duration>(UseTimeNow() - time);
}

UseTime FromSystemTime(std::chrono::system_clock::time_point time) {
  return UseTimeNow() - (std::chrono::system_clock::now() - time);
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
