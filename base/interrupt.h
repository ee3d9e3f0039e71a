#ifndef LGPU_BASE_INTERRUPT_H_
#define LGPU_BASE_INTERRUPT_H_

#include <chrono>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "lgpu/interrupt.h"

namespace lgpu {

/// Interrupt is how a wait inside lgpu asks the InterruptScopes of its thread. The scope's function may take
/// locks of the program's, and may call lgpu: it is asked without a lock that another call of lgpu needs.
class Interrupt {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// The thread is about to wait, or to do what may take long: its scopes give up the program's lock. The
  /// waits below, and those that ask by themselves, need no call of it.
  static void BeforeWait();
  /// A wait until `deadline` that asks by itself ends here at the latest, to call Happened. Without a scope:
  /// `deadline`. After an interrupt: in the past.
  static TimePoint NextQuestion(TimePoint deadline);
  /// Whether the thread is interrupted; asks its scope, if it is time to.
  static bool Happened();
  /// As above, with the mutex given up meanwhile.
  static bool Happened(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  /// Whether an earlier question was answered with yes.
  static bool HasHappened();
  /// What an interrupted call fails with.
  static absl::Status Error();

  /// As CondVar::Wait and CondVar::WaitUntil, and false after an interrupt.
  static bool Wait(CondVar& condition, Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  static bool WaitUntil(CondVar& condition, Mutex& mutex, TimePoint deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  /// False after an interrupt, which ends the sleep.
  static bool SleepUntil(TimePoint deadline);

 private:
  static bool IsTimeToAsk();
};

}  // namespace lgpu

#endif  // LGPU_BASE_INTERRUPT_H_
