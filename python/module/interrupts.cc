#include "python/module/interrupts.h"

#include <pthread.h>
#include <unistd.h>

#include <utility>

#include "python/module/lock.h"
#include "python/module/sinks.h"

namespace lgpu::python {

namespace {

enum class Kind { kUnknown, kMain, kOther };
thread_local Kind this_thread = Kind::kUnknown;

/// The main thread has the number of its process. A thread that forks is the main thread of the child.
bool IsMainThread() {
  if (this_thread == Kind::kUnknown) {
    [[maybe_unused]] static const int registered =
        ::pthread_atfork(nullptr, nullptr, [] { this_thread = Kind::kMain; });
    this_thread = ::gettid() == ::getpid() ? Kind::kMain : Kind::kOther;
  }
  return this_thread == Kind::kMain;
}

/// Whether a handler raised. Handlers, and finalizers that run beside them, find the thread as a sink does:
/// inside of a call that waits.
bool RunHandlers(std::optional<nanobind::python_error>& raised) {
  const WithLock lock;
  if (!lock) return false;
  const SinkCall call;
  if (PyErr_CheckSignals() == 0) return false;
  raised.emplace();
  return true;
}

}  // namespace

InterruptibleCall::InterruptibleCall() {
  if (IsMainThread()) scope_.emplace([this] { return RunHandlers(raised_); });
}

void InterruptibleCall::Rethrow() {
  if (raised_) throw nanobind::python_error(std::move(*raised_));
}

bool BriefCall::IsInterrupted() { return IsMainThread() && RunHandlers(raised_); }

void BriefCall::End() {
  without_lock_.reset();
  if (raised_) throw nanobind::python_error(std::move(*raised_));
}

}  // namespace lgpu::python
