#ifndef LGPU_TESTS_SIMULATION_MACHINE_CLOCK_H_
#define LGPU_TESTS_SIMULATION_MACHINE_CLOCK_H_

#include <ctime>
#include <optional>

#include "tests/simulation/machine/scheduler.h"

namespace lgpu::simulation {

/// The machine's monotonic clock at its start, and the time of day then.
constexpr Time kMonotonicStart = std::chrono::hours(1);
constexpr Time kDayStart = std::chrono::seconds(1'800'000'000);

inline Time OffsetOf(clockid_t clock) {
  const bool is_day = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
  return is_day ? kDayStart : kMonotonicStart;
}

inline Time FromTimespec(const timespec& value) {
  return std::chrono::seconds(value.tv_sec) + std::chrono::nanoseconds(value.tv_nsec);
}

/// The machine's time at which that clock shows `value`.
inline Time FromTimespec(clockid_t clock, const timespec& value) {
  // Times of the far future are not computed with.
  constexpr std::time_t kFar = std::time_t{1} << 33;
  if (value.tv_sec >= kFar) return std::chrono::seconds(kFar);
  return FromTimespec(value) - OffsetOf(clock);
}

inline timespec ToTimespec(Time time) {
  return {.tv_sec = static_cast<std::time_t>(time.count() / 1'000'000'000),
          .tv_nsec = static_cast<long>(time.count() % 1'000'000'000)};
}

/// The deadline of a call with a timeout in milliseconds; negative: none.
inline std::optional<Time> DeadlineIn(const Scheduler& scheduler, int milliseconds) {
  if (milliseconds < 0) return std::nullopt;
  return scheduler.now() + std::chrono::milliseconds(milliseconds);
}

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_MACHINE_CLOCK_H_
