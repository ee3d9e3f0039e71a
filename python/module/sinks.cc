#include "python/module/sinks.h"

#include <utility>
#include <vector>

#include "python/module/errors.h"
#include "python/module/lock.h"

namespace lgpu::python {

namespace nb = nanobind;

namespace {

[[gnu::tls_model("initial-exec")]] constinit thread_local int sinks_inside = 0;
// Whether `let_go`, which costs more to reach, has any.
[[gnu::tls_model("initial-exec")]] constinit thread_local bool has_let_go = false;
thread_local std::vector<std::shared_ptr<void>> let_go;  // within the sinks of this thread

}  // namespace

SinkCall::SinkCall() { ++sinks_inside; }
SinkCall::~SinkCall() { --sinks_inside; }

bool InSink() { return sinks_inside != 0; }

void CheckNotInSink() {
  if (!InSink()) return;
  throw StatusError(absl::FailedPreconditionError(
      "a log_sink, or a signal handler, runs within a call of liblgpu, which the "
      "end of a Context waits for, so it cannot close one; "
      "close the Context after that call"));
}

void LetGo(std::shared_ptr<void> owner) {
  if (InSink()) {
    let_go.push_back(std::move(owner));
    has_let_go = true;
    return;
  }
  const WithoutLockIfHeld without_lock;
  owner.reset();
}

OutermostCall::~OutermostCall() {
  if (!has_let_go || InSink()) return;
  has_let_go = false;
  while (!let_go.empty()) {
    const std::shared_ptr<void> owner = std::move(let_go.back());
    let_go.pop_back();
  }
}

std::function<void(std::string_view)> SinkOf(nb::object sink) {
  // The thread that lets the function go last does not have the interpreter's lock.
  const std::shared_ptr<PyObject> kept(sink.release().ptr(), [](PyObject* object) {
    const WithLock lock;
    if (lock) Py_DECREF(object);
  });
  return [kept](std::string_view line) {
    const WithLock lock;
    if (!lock) return;
    const SinkCall call;
    try {
      nb::handle(kept.get())(nb::str(line.data(), line.size()));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("a log_sink of lgpu");
    }
  };
}

}  // namespace lgpu::python
