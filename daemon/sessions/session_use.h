#ifndef LGPU_DAEMON_SESSIONS_SESSION_USE_H_
#define LGPU_DAEMON_SESSIONS_SESSION_USE_H_

#include <chrono>
#include <cstdint>
#include <optional>

namespace lgpu::daemon {

/// When programs used GPUs: submitted work, or waited for work. docs/statistics.md says what idle means.
///
/// Monotonic clock: time since the start of the machine, suspended or not.
using UseTime = std::chrono::nanoseconds;
UseTime UseTimeNow();

/// The tick of stats pages at a time: it rises by one each second, also over a restart of lgpud. 0 and 1 are
/// no ticks (proto/wire/pages.h).
std::uint64_t TickAt(UseTime time);
UseTime TimeOfTick(std::uint64_t tick);

/// That time on the machine's clock, which people read.
std::chrono::system_clock::time_point ToSystemTime(UseTime time);
UseTime FromSystemTime(std::chrono::system_clock::time_point time);

/// What is known of a session's uses.
struct SessionUse {
  bool is_known = false;
  std::optional<UseTime> last = {};  // never in the future; none: it never uses a GPU
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SESSIONS_SESSION_USE_H_
