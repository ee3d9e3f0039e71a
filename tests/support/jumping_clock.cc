// A library to preload: the clock of the wall jumps two hours forth and back at each look. The one that
// deadlines are for goes on as ever.

#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

#include <atomic>

namespace {

constexpr time_t kJump = 2 * 60 * 60;

time_t Jump() {
  static std::atomic<unsigned> looks = 0;
  return looks.fetch_add(1) % 2 == 0 ? 0 : kJump;
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, struct timespec* time) {
  using Function = int (*)(clockid_t, struct timespec*);
  static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = real(clock, time);
  if (clock == CLOCK_REALTIME && result == 0) time->tv_sec += Jump();
  return result;
}

extern "C" int gettimeofday(struct timeval* __restrict time, void* __restrict) {
  struct timespec now = {};
  const int result = clock_gettime(CLOCK_REALTIME, &now);
  *time = {.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
  return result;
}
