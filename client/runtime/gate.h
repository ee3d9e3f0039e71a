#ifndef LGPU_CLIENT_RUNTIME_GATE_H_
#define LGPU_CLIENT_RUNTIME_GATE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

namespace lgpu::internal {

/// A Gate lets any number of threads through while it is open. It may be held, for some time, and closed,
/// which are independent of each other: it is open where it is neither. Both wait until all threads are out.
/// Passing it costs two atomic additions and no system call. Thread-safe.
class Gate {
 public:
  Gate() = default;
  /// `when_left` is called, with the gate closed, by the thread that leaves last after CloseForLast. It may
  /// be called more than once, and may end the gate.
  explicit Gate(std::function<void()> when_left) : when_left_(std::move(when_left)) {}
  /// False: the gate is closed or held, stay out.
  bool Enter() {
    if ((inside_.fetch_add(1, std::memory_order_acquire) & kShut) == 0) return true;
    Leave();
    return false;
  }
  /// Back inside, after Leave, of a thread whose GatePass goes on; as Enter. False: the gate is closed. The
  /// thread counts as inside all the same, and only leaves.
  bool EnterAgain() { return (inside_.fetch_add(1, std::memory_order_acquire) & kShut) == 0; }
  void Leave() {
    const std::uint64_t before = inside_.fetch_sub(1, std::memory_order_acq_rel);
    if ((before & kShut) == 0 || (before & kThreads) != 1) return;
    inside_.notify_all();
    if ((before & kCallsLast) != 0) when_left_();
  }
  /// Callers are outside. Closing a closed gate waits too.
  void CloseAndWait() { ShutAndWait(kClosed); }
  /// Callers are outside. The hold ends with EndHold.
  void HoldAndWait() { ShutAndWait(kHeld); }
  /// As HoldAndWait. False: threads are inside after the deadline, and the gate is not held.
  bool HoldUntil(std::chrono::steady_clock::time_point deadline) {
    constexpr std::chrono::milliseconds kLook{1};
    inside_.fetch_or(kHeld, std::memory_order_acq_rel);
    while ((inside_.load(std::memory_order_acquire) & kThreads) != 0) {
      if (std::chrono::steady_clock::now() >= deadline) {
        EndHold();
        return false;
      }
      std::this_thread::sleep_for(kLook);
    }
    return true;
  }
  void EndHold() { inside_.fetch_and(~kHeld, std::memory_order_release); }
  bool is_held() const { return (inside_.load(std::memory_order_acquire) & kHeld) != 0; }
  /// Closes the gate and does not wait, for callers that may be inside. False: some thread is, and the last
  /// of them calls `when_left`.
  bool CloseForLast() {
    return (inside_.fetch_or(kClosed | kCallsLast, std::memory_order_acq_rel) & kThreads) == 0;
  }
  /// After CloseAndWait, by the same thread: the gate is closed no more.
  void Reopen() { inside_.fetch_and(~kClosed, std::memory_order_release); }
  bool is_closed() const { return (inside_.load(std::memory_order_acquire) & kClosed) != 0; }

 private:
  static constexpr std::uint64_t kClosed = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kCallsLast = std::uint64_t{1} << 62;
  static constexpr std::uint64_t kHeld = std::uint64_t{1} << 61;
  static constexpr std::uint64_t kShut = kClosed | kHeld;
  static constexpr std::uint64_t kThreads = kHeld - 1;

  void ShutAndWait(std::uint64_t how) {
    inside_.fetch_or(how, std::memory_order_acq_rel);
    for (std::uint64_t now = inside_.load(std::memory_order_acquire); (now & kThreads) != 0;
         now = inside_.load(std::memory_order_acquire)) {
      inside_.wait(now, std::memory_order_acquire);
    }
  }

  std::atomic<std::uint64_t> inside_{0};
  const std::function<void()> when_left_;
};

/// A GatePass is a thread's stay behind a gate, if it got in.
class GatePass {
 public:
  explicit GatePass(Gate& gate) : gate_(gate.Enter() ? &gate : nullptr) {}
  /// The thread is behind `entered`; null: it did not get in.
  explicit GatePass(Gate* entered) : gate_(entered) {}
  ~GatePass() {
    if (gate_ != nullptr) gate_->Leave();
  }
  GatePass(const GatePass&) = delete;
  GatePass& operator=(const GatePass&) = delete;
  explicit operator bool() const { return gate_ != nullptr; }

 private:
  Gate* gate_;
};

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_RUNTIME_GATE_H_
