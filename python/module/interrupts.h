#ifndef LGPU_PYTHON_MODULE_INTERRUPTS_H_
#define LGPU_PYTHON_MODULE_INTERRUPTS_H_

#include <nanobind/nanobind.h>

#include <optional>

#include "lgpu/interrupt.h"
#include "python/module/lock.h"

namespace lgpu::python {

/// As long as an InterruptibleCall lives, a Python signal handler that raises (of Ctrl-C: KeyboardInterrupt)
/// interrupts this thread's waits inside liblgpu. Python runs the handlers on the main thread: on others this
/// does nothing. Made, ended and asked to Rethrow with the interpreter's lock.
class InterruptibleCall {
 public:
  InterruptibleCall();
  InterruptibleCall(const InterruptibleCall&) = delete;
  InterruptibleCall& operator=(const InterruptibleCall&) = delete;

  /// Whether a handler raised. The call's result is of no use then.
  bool is_interrupted() const { return raised_.has_value(); }
  /// Throws what the handler raised, if one did.
  void Rethrow();

 private:
  std::optional<nanobind::python_error> raised_;
  std::optional<InterruptScope> scope_;
};

/// As an InterruptibleCall, for a call that most often is short: the interpreter's lock is kept until the
/// call waits, or does what may take long. On every thread.
class BriefCall final : InterruptHandler {
 public:
  BriefCall() : scope_(*this) {}
  BriefCall(const BriefCall&) = delete;
  BriefCall& operator=(const BriefCall&) = delete;

  /// Takes the lock again, if it was given up, and throws what a signal's handler raised, if one did.
  void End();

 private:
  bool IsInterrupted() override;
  void BeforeWait() override { without_lock_.emplace(); }

  std::optional<nanobind::python_error> raised_;
  std::optional<WithoutLock> without_lock_;
  InterruptScope scope_;
};

}  // namespace lgpu::python

#endif  // LGPU_PYTHON_MODULE_INTERRUPTS_H_
