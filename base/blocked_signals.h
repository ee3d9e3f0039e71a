#ifndef LGPU_BASE_BLOCKED_SIGNALS_H_
#define LGPU_BASE_BLOCKED_SIGNALS_H_

#include <pthread.h>
#include <signal.h>

namespace lgpu {

/// While a BlockedSignals lives, threads that this thread starts do not take the program's signals, which are
/// for the program's own threads. They still take faults.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&blocked, fault);
    pthread_sigmask(SIG_SETMASK, &blocked, &previous_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t previous_;
};

}  // namespace lgpu

#endif  // LGPU_BASE_BLOCKED_SIGNALS_H_
