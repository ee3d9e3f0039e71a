#ifndef LGPU_CLIENT_DRIVER_LIGHT_LOCKS_H_
#define LGPU_CLIENT_DRIVER_LIGHT_LOCKS_H_

#include <atomic>
#include <cstdint>

namespace lgpu::shim {

/// A LightMutex is a mutex for sections of some instructions, which every allocation of the program goes
/// through several times. It costs two atomic operations where no other thread is in the section; a
/// std::mutex takes twice as long.
///
/// kContended says that a thread may sleep: only a thread that is about to sleep stores it, and the unlock
/// that takes it away wakes one. A woken thread stores it again, because others may sleep still.
class LightMutex {
 public:
  LightMutex() = default;
  LightMutex(const LightMutex&) = delete;
  LightMutex& operator=(const LightMutex&) = delete;

  void lock() {
    std::uint32_t found = kFree;
    if (state_.compare_exchange_strong(found, kTaken, std::memory_order_acquire)) return;
    while (state_.exchange(kContended, std::memory_order_acquire) != kFree) {
      state_.wait(kContended, std::memory_order_relaxed);
    }
  }
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kContended) state_.notify_one();
  }

 private:
  static constexpr std::uint32_t kFree = 0, kTaken = 1, kContended = 2;
  std::atomic<std::uint32_t> state_{kFree};
};

/// A LightGate is a shared mutex that is nearly always taken shared, for sections of some instructions. At
/// most one thread at a time takes it alone; a thread that has it shared does not take it again.
///
/// The state counts the threads inside, and kClosed keeps further ones out. A thread enters by counting
/// itself, and leaves at once where it finds the gate closed; so the thread that closed it is alone as soon
/// as it sees a count of 0, and all that the earlier ones wrote is visible to it.
class LightGate {
 public:
  LightGate() = default;
  LightGate(const LightGate&) = delete;
  LightGate& operator=(const LightGate&) = delete;

  void lock_shared() {
    for (;;) {
      const std::uint32_t before = state_.fetch_add(1, std::memory_order_acquire);
      if ((before & kClosed) == 0) return;
      unlock_shared();
      for (std::uint32_t now = state_.load(); (now & kClosed) != 0; now = state_.load()) state_.wait(now);
    }
  }
  void unlock_shared() {
    if (state_.fetch_sub(1, std::memory_order_release) == (kClosed | 1)) state_.notify_all();
  }
  void lock() {
    state_.fetch_or(kClosed);
    for (std::uint32_t now = state_.load(); now != kClosed; now = state_.load()) state_.wait(now);
  }
  void unlock() {
    state_.fetch_and(~kClosed);
    state_.notify_all();
  }

 private:
  static constexpr std::uint32_t kClosed = std::uint32_t{1} << 31;
  std::atomic<std::uint32_t> state_{0};
};

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_LIGHT_LOCKS_H_
