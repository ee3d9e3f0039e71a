#ifndef LGPU_CLIENT_DRIVER_LIGHT_LOCKS_H_
#define LGPU_CLIENT_DRIVER_LIGHT_LOCKS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lgpu::shim {

/// A LightMutex is a mutex for sections of some instructions, which every allocation of the program goes
/// through several times. It costs one atomic exchange where no other thread is in the section; a std::mutex
/// costs four times as much.
///
/// kContended says that a thread may sleep. An unlock that reads it wakes one. The unlock reads and then
/// writes, and so may miss a thread that stores kContended between the two: no sleep is longer than a
/// millisecond.
class LightMutex {
 public:
  LightMutex() = default;
  LightMutex(const LightMutex&) = delete;
  LightMutex& operator=(const LightMutex&) = delete;

  void lock() {
    std::uint32_t found = kFree;
    if (state_.compare_exchange_strong(found, kTaken, std::memory_order_acquire)) return;
    LockLater();
  }
  void unlock() {
    const bool is_awaited = state_.load(std::memory_order_relaxed) == kContended;
    state_.store(kFree, std::memory_order_release);
    if (is_awaited) WakeOne();
  }

 private:
  void LockLater();
  void WakeOne();

  static constexpr std::uint32_t kFree = 0, kTaken = 1, kContended = 2;
  std::atomic<std::uint32_t> state_{kFree};
};

/// LightMutexes are mutexes of parts that are changed one by one mostly, and by one thread all together now
/// and then: lock() takes all of them. A thread that holds one takes no other.
template <std::size_t kParts>
class LightMutexes {
 public:
  LightMutex& Of(std::size_t part) { return parts_[part].mutex; }
  void lock() {
    for (Part& part : parts_) part.mutex.lock();
  }
  void unlock() {
    for (Part& part : parts_) part.mutex.unlock();
  }

 private:
  struct alignas(64) Part {
    LightMutex mutex;
  };
  std::array<Part, kParts> parts_;
};

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_LIGHT_LOCKS_H_
