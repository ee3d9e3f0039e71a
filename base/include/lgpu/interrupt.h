#ifndef LGPU_INTERRUPT_H_
#define LGPU_INTERRUPT_H_

#include <chrono>
#include <functional>

#include "lgpu/export.h"

namespace lgpu {

/// An InterruptHandler tells lgpu whether a waiting call ends: see InterruptScope. It outlives the scope.
class LGPU_API InterruptHandler {
 public:
  /// True: the call that waits ends.
  virtual bool IsInterrupted() = 0;
  /// The thread is about to wait, or to do what may take long.
  virtual void BeforeWait() {}

 protected:
  ~InterruptHandler() = default;
};

/// As long as an InterruptScope lives, the waits of its thread inside lgpu can be interrupted: waits for
/// memory, for memory that another thread frees, and for the daemon. A program with a user at its terminal
/// opens one around a call, and asks there whether the user wants the call to end:
///
///   const InterruptScope scope([] { return ctrl_c_was_pressed.load(); });
///   absl::StatusOr<Tensor> made = Fill(shape, value);  // CANCELLED: Ctrl-C was pressed
///
/// A wait calls `is_interrupted`, or the handler's IsInterrupted, about every 50 ms, on the scope's thread.
/// The function may use lgpu; it must not close a Context or a LogicalMemory. Once it has returned true it is
/// not called again: every wait of the thread ends at once until the scope ends. The call that waited fails
/// with CANCELLED, and leaves everything as it leaves it when its time is over. A call that could be
/// completed all the same returns its result.
///
/// A program whose threads share a lock, as an interpreter's, may keep it over short calls: the handler's
/// BeforeWait gives it up. lgpu calls it once in a scope, before a call of its thread waits, writes a line of
/// the log, uses a driver, or computes more than some thousand elements. It may be called while lgpu holds
/// locks of its own: it must neither wait nor call lgpu.
///
/// The driver, kernels and OpenBLAS are not interrupted. Of several scopes of a thread, waits ask
/// all, the innermost first. Without a scope waits ask nothing. A scope ends on the thread that made it,
/// before the scopes that it lies in.
class LGPU_API InterruptScope {
 public:
  explicit InterruptScope(std::function<bool()> is_interrupted);
  explicit InterruptScope(InterruptHandler& handler);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  friend class Interrupt;

  bool Ask() { return handler_ != nullptr ? handler_->IsInterrupted() : is_interrupted_(); }

  const std::function<bool()> is_interrupted_;  // empty: there is a handler
  InterruptHandler* const handler_ = nullptr;
  InterruptScope* const outer_;
  std::chrono::steady_clock::time_point next_question_{};  // of the first wait on
  bool interrupted_ = false;
  bool has_told_before_wait_ = false;
};

}  // namespace lgpu

#endif  // LGPU_INTERRUPT_H_
