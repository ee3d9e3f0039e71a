#ifndef LGPU_CLIENT_RUNTIME_GATE_H_
#define LGPU_CLIENT_RUNTIME_GATE_H_

#include <atomic>
#include <cstdint>

namespace lgpu::internal {

/// A Gate lets any number of threads through until it is closed; closing waits until all of them are out.
/// Passing it costs two atomic additions and no system call. Thread-safe.
class Gate {
 public:
  /// False: the gate is closed, stay out.
  bool Enter() {
    if ((inside_.fetch_add(1, std::memory_order_acquire) & kClosed) == 0) return true;
    Leave();
    return false;
  }
  void Leave() {
    if (inside_.fetch_sub(1, std::memory_order_release) == kClosed + 1) inside_.notify_all();
  }
  /// Callers are outside. Closing a closed gate waits too.
  void CloseAndWait() {
    inside_.fetch_or(kClosed, std::memory_order_acq_rel);
    for (std::uint64_t now = inside_.load(std::memory_order_acquire); now != kClosed;
         now = inside_.load(std::memory_order_acquire)) {
      inside_.wait(now, std::memory_order_acquire);
    }
  }
  /// After CloseAndWait, by the same thread: threads get through again.
  void Reopen() { inside_.fetch_and(~kClosed, std::memory_order_release); }
  bool is_closed() const { return (inside_.load(std::memory_order_acquire) & kClosed) != 0; }

 private:
  static constexpr std::uint64_t kClosed = std::uint64_t{1} << 63;
  std::atomic<std::uint64_t> inside_{0};
};

/// A GatePass is a thread's stay behind a gate, if it got in.
class GatePass {
 public:
  explicit GatePass(Gate& gate) : gate_(gate.Enter() ? &gate : nullptr) {}
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
