// libc's threads, mutexes and condition variables, in front of the real ones. A mutex has its owner's number
// in the real one's field of that name, so that none has to be known before it is first locked.

#include <pthread.h>

#include <cerrno>
#include <ctime>
#include <functional>
#include <utility>

#include "tests/simulation/machine/clock.h"
#include "tests/simulation/machine/mutex_watch.h"
#include "tests/simulation/machine/processes.h"
#include "tests/simulation/machine/real_calls.h"
#include "tests/simulation/machine/scheduler.h"

namespace lgpu::simulation {
namespace {

// The mutex that WatchMutex has found.
struct MutexWatch {
  std::uint32_t looker = 0;  // the thread that looks for it; 0: none
  bool is_checking = false;
  const pthread_mutex_t* mutex = nullptr;
  std::function<void()> check;
};
MutexWatch watch;

bool IsRecursive(const pthread_mutex_t& mutex) {
  return (mutex.__data.__kind & 3) == PTHREAD_MUTEX_RECURSIVE;
}

// A mutex whose owner's process was killed is free: only objects that all processes of this program share
// have such ones.
bool IsFree(const Scheduler& scheduler, const pthread_mutex_t& mutex) {
  const int owner = mutex.__data.__owner;
  return owner == 0 || !scheduler.Lives(static_cast<std::uint32_t>(owner));
}

// In the real one's field for users. More than there are, where a process was killed in its wait.
unsigned& WaitersOf(pthread_mutex_t& mutex) { return mutex.__data.__nusers; }

bool TryLock(Scheduler& scheduler, pthread_mutex_t& mutex) {
  const auto own = static_cast<int>(Scheduler::Self().number);
  if (watch.looker == Scheduler::Self().number) {
    watch.looker = 0;
    watch.mutex = &mutex;
  }
  int& owner = mutex.__data.__owner;
  if (owner == own && IsRecursive(mutex)) {
    ++mutex.__data.__count;
    return true;
  }
  if (!IsFree(scheduler, mutex)) return false;
  owner = own;
  mutex.__data.__count = 1;
  return true;
}

void Lock(Scheduler& scheduler, pthread_mutex_t& mutex) {
  // It is also free, without a wake-up, when its owner's process is killed.
  while (!TryLock(scheduler, mutex)) {
    ++WaitersOf(mutex);
    scheduler.Block("a mutex", &mutex, [&] { return IsFree(scheduler, mutex); }, {});
    --WaitersOf(mutex);
  }
}

void Unlock(Scheduler& scheduler, pthread_mutex_t& mutex) {
  if (IsRecursive(mutex) && --mutex.__data.__count != 0) return;
  mutex.__data.__owner = 0;
  if (WaitersOf(mutex) != 0) scheduler.WakeAll(&mutex);
  if (&mutex != watch.mutex || !watch.check || watch.is_checking) return;
  watch.is_checking = true;
  scheduler.WithoutSteps(watch.check);
  watch.is_checking = false;
}

int Wait(Scheduler& scheduler, pthread_cond_t* condition, pthread_mutex_t* mutex,
         std::optional<Time> deadline) {
  scheduler.Step("wait");
  Unlock(scheduler, *mutex);
  // Waits may end early, and do so now and then.
  const bool is_early = scheduler.OneIn(64);
  const bool is_woken = is_early || scheduler.Block("a condition variable", condition, {}, deadline);
  Lock(scheduler, *mutex);
  return is_woken ? 0 : ETIMEDOUT;
}

}  // namespace

void WatchMutex(const std::function<void()>& look, std::function<void()> check) {
  watch = {.looker = Scheduler::Self().number, .is_checking = false, .mutex = nullptr, .check = {}};
  look();
  watch.check = std::move(check);
}

void StopWatchingMutex() { watch = {}; }

}  // namespace lgpu::simulation

using lgpu::simulation::Scheduler;

LGPU_IN_FRONT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                                 void* argument) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(pthread_create);
    return real(thread, attributes, body, argument);
  }
  const int error =
      scheduler->StartThread(*Scheduler::Self().process, "", body, argument, attributes, thread);
  scheduler->Step("thread");
  return error;
}

LGPU_IN_FRONT int pthread_join(pthread_t thread, void** result) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(pthread_join);
    return real(thread, result);
  }
  scheduler->Step("join");
  scheduler->Join(thread);
  if (result != nullptr) *result = nullptr;
  return 0;
}

LGPU_IN_FRONT int pthread_detach(pthread_t thread) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(pthread_detach);
    return real(thread);
  }
  scheduler->Detach(thread);
  return 0;
}

LGPU_IN_FRONT int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(pthread_mutex_lock);
    return real(mutex);
  }
  scheduler->Step("lock");
  lgpu::simulation::Lock(*scheduler, *mutex);
  return 0;
}

LGPU_IN_FRONT int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(pthread_mutex_trylock);
    return real(mutex);
  }
  scheduler->Step("trylock");
  return lgpu::simulation::TryLock(*scheduler, *mutex) ? 0 : EBUSY;
}

LGPU_IN_FRONT int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(pthread_mutex_unlock);
    return real(mutex);
  }
  lgpu::simulation::Unlock(*scheduler, *mutex);
  return 0;
}

LGPU_IN_FRONT int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(pthread_cond_wait);
    return real(condition, mutex);
  }
  return lgpu::simulation::Wait(*scheduler, condition, mutex, {});
}

LGPU_IN_FRONT int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                         const timespec* until) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(pthread_cond_timedwait);
    return real(condition, mutex, until);
  }
  // glibc keeps the clock of pthread_condattr_setclock there.
  constexpr unsigned kMonotonic = 2;
  const bool is_monotonic = (condition->__data.__wrefs & kMonotonic) != 0;
  const clockid_t clock = is_monotonic ? CLOCK_MONOTONIC : CLOCK_REALTIME;
  return lgpu::simulation::Wait(*scheduler, condition, mutex, lgpu::simulation::FromTimespec(clock, *until));
}

LGPU_IN_FRONT int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                         const timespec* until) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(pthread_cond_clockwait);
    return real(condition, mutex, clock, until);
  }
  return lgpu::simulation::Wait(*scheduler, condition, mutex, lgpu::simulation::FromTimespec(clock, *until));
}

LGPU_IN_FRONT int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(pthread_cond_signal);
    return real(condition);
  }
  scheduler->WakeOne(condition);
  scheduler->Step("signal");
  return 0;
}

LGPU_IN_FRONT int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(pthread_cond_broadcast);
    return real(condition);
  }
  scheduler->WakeAll(condition);
  scheduler->Step("broadcast");
  return 0;
}

// The real one would hold up all threads where the first caller loses the baton.
LGPU_IN_FRONT int pthread_once(pthread_once_t* control, void (*body)()) {
  Scheduler* const scheduler = Scheduler::Here();
  if (scheduler == nullptr) {
    LGPU_REAL(pthread_once);
    return real(control, body);
  }
  constexpr pthread_once_t kRunning = 1, kDone = 2;  // glibc's
  while (*control == kRunning) scheduler->Block("the first caller of pthread_once", control, {}, {});
  if (*control == kDone) return 0;
  *control = kRunning;
  body();
  *control = kDone;
  scheduler->WakeAll(control);
  return 0;
}
