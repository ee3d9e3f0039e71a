// libc's clocks and sleeps, in front of the real ones.

#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "tests/simulation/machine/clock.h"
#include "tests/simulation/machine/real_calls.h"
#include "tests/simulation/machine/scheduler.h"

using lgpu::simulation::FromTimespec;
using lgpu::simulation::OffsetOf;
using lgpu::simulation::Scheduler;
using lgpu::simulation::Time;
using lgpu::simulation::ToTimespec;

namespace {

int Sleep(Scheduler& scheduler, Time until) {
  scheduler.Step("sleep");
  scheduler.Block("the time to pass", nullptr, {}, until);
  return 0;
}

}  // namespace

LGPU_IN_FRONT int clock_gettime(clockid_t clock, timespec* time) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  const bool is_cpu = clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID;
  if (scheduler == nullptr || is_cpu) {
    LGPU_REAL(clock_gettime);
    return real(clock, time);
  }
  // Code that looks at the clock until it has changed sees it change.
  scheduler->Step("clock");
  *time = ToTimespec(scheduler->now() + OffsetOf(clock));
  return 0;
}

LGPU_IN_FRONT int gettimeofday(timeval* time, void* zone) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(gettimeofday);
    return real(time, zone);
  }
  const timespec now = ToTimespec(scheduler->now() + OffsetOf(CLOCK_REALTIME));
  *time = {.tv_sec = now.tv_sec, .tv_usec = static_cast<suseconds_t>(now.tv_nsec / 1000)};
  return 0;
}

LGPU_IN_FRONT std::time_t time(std::time_t* time) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(time);
    return real(time);
  }
  const std::time_t now = ToTimespec(scheduler->now() + OffsetOf(CLOCK_REALTIME)).tv_sec;
  if (time != nullptr) *time = now;
  return now;
}

LGPU_IN_FRONT int nanosleep(const timespec* length, timespec* left) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(nanosleep);
    return real(length, left);
  }
  return Sleep(*scheduler, scheduler->now() + FromTimespec(*length));
}

LGPU_IN_FRONT int clock_nanosleep(clockid_t clock, int flags, const timespec* length, timespec* left) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(clock_nanosleep);
    return real(clock, flags, length, left);
  }
  return Sleep(*scheduler, (flags & TIMER_ABSTIME) != 0 ? FromTimespec(clock, *length)
                                                        : scheduler->now() + FromTimespec(*length));
}

LGPU_IN_FRONT int usleep(useconds_t length) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(usleep);
    return real(length);
  }
  return Sleep(*scheduler, scheduler->now() + std::chrono::microseconds(length));
}

LGPU_IN_FRONT int sched_yield() noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(sched_yield);
    return real();
  }
  return Sleep(*scheduler, scheduler->now() + std::chrono::microseconds(1));
}
