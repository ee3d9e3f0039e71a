#ifndef LGPU_PYTHON_MODULE_SINKS_H_
#define LGPU_PYTHON_MODULE_SINKS_H_

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <string_view>

// A sink of lines is a function of the program's that liblgpu calls within an op, or while it makes a
// Context. The end of a Context waits until all calls are out of it. So an owner that a sink lets go, by
// itself or by garbage collection, ends after the call that runs the sink.

namespace lgpu::python {

/// A sink that calls `sink` with each line.
std::function<void(std::string_view)> SinkOf(nanobind::object sink);

/// A SinkCall is a thread's stay inside of a sink, or of a signal's handler that a waiting call of liblgpu
/// runs.
class SinkCall {
 public:
  SinkCall();
  ~SinkCall();
  SinkCall(const SinkCall&) = delete;
  SinkCall& operator=(const SinkCall&) = delete;
};
/// Whether this thread is inside of one.
bool InSink();
/// StatusError: this thread is inside of one, which cannot close a Context whose call it may be inside of.
void CheckNotInSink();

/// Lets an owner go without the interpreter's lock, which this thread may hold: at once, or, within a sink,
/// after the call of liblgpu that runs the sink.
void LetGo(std::shared_ptr<void> owner);

/// An OutermostCall is a thread's call of liblgpu without the interpreter's lock. Owners that sinks of the
/// call let go end with it; a call within a sink leaves them to the outermost one.
class OutermostCall {
 public:
  OutermostCall() = default;
  ~OutermostCall();
  OutermostCall(const OutermostCall&) = delete;
  OutermostCall& operator=(const OutermostCall&) = delete;
};

}  // namespace lgpu::python

#endif  // LGPU_PYTHON_MODULE_SINKS_H_
