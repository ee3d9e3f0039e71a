#ifndef LGPU_PYTHON_MODULE_LOCK_H_
#define LGPU_PYTHON_MODULE_LOCK_H_

#include <nanobind/nanobind.h>

#include <optional>

namespace lgpu::python {

// The interpreter ends threads that ask for its lock while it ends, by unwinding them; that would pass
// through destructors of C++, and end the process. So threads of this module stop before they ask.

/// The lock is given up as long as this lives. Once the interpreter ends, the thread of a WithoutLock that
/// goes stops for good, as Python 3.14 does with its own.
class WithoutLock {
 public:
  WithoutLock() : state_(PyEval_SaveThread()) {}
  ~WithoutLock();
  WithoutLock(const WithoutLock&) = delete;
  WithoutLock& operator=(const WithoutLock&) = delete;

 private:
  PyThreadState* const state_;
};

/// As WithoutLock where this thread holds the lock; nothing where it does not. For functions that other
/// libraries call on any thread, with the lock or without it.
class WithoutLockIfHeld {
 public:
  WithoutLockIfHeld();
  WithoutLockIfHeld(const WithoutLockIfHeld&) = delete;
  WithoutLockIfHeld& operator=(const WithoutLockIfHeld&) = delete;

 private:
  std::optional<WithoutLock> without_lock_;
};

/// The lock is held as long as this lives, unless the interpreter ends.
class WithLock {
 public:
  WithLock();
  ~WithLock();
  WithLock(const WithLock&) = delete;
  WithLock& operator=(const WithLock&) = delete;
  explicit operator bool() const { return held_; }

 private:
  bool held_ = false;
  PyGILState_STATE state_{};
};

/// The interpreter ends. Threads that are asking for its lock get it; those that come later do not ask.
void StopOtherThreads();
/// A forked child has one thread: the others that were asking are not there.
void ForgetOtherThreadsInChildren();

}  // namespace lgpu::python

#endif  // LGPU_PYTHON_MODULE_LOCK_H_
