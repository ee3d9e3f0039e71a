#include "client/driver/light_locks.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace lgpu::shim {
namespace {

// As long as a section takes, some times over; a thread in the section that does not run takes longer.
constexpr int kSpins = 100;
constexpr timespec kLongestSleep = {.tv_sec = 0, .tv_nsec = 1'000'000};

void Spin() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void LightMutex::LockLater() {
  for (int spin = 0; spin < kSpins; ++spin) {
    Spin();
    std::uint32_t found = state_.load(std::memory_order_relaxed);
    if (found == kFree && state_.compare_exchange_strong(found, kTaken, std::memory_order_acquire)) return;
  }
  // A woken thread stores kContended again, because other threads may sleep still.
  while (state_.exchange(kContended, std::memory_order_acquire) != kFree) {
    (void)::syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, kContended, &kLongestSleep, nullptr, 0);
  }
}

void LightMutex::WakeOne() {
  (void)::syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace lgpu::shim
