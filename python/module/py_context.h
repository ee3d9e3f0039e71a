#ifndef LGPU_PYTHON_MODULE_PY_CONTEXT_H_
#define LGPU_PYTHON_MODULE_PY_CONTEXT_H_

#include <memory>

#include "lgpu/context.h"

namespace lgpu::python {

/// A PyContext is a Context that Python and its tensors own: the last of them ends it. The end waits without
/// the interpreter's lock: threads inside of the Context may need that lock to get out. The interpreter's
/// lock guards the PyContext.
class PyContext {
 public:
  explicit PyContext(Context context);
  PyContext(const PyContext&) = delete;
  PyContext& operator=(const PyContext&) = delete;

  /// The Context goes; calls find a closed one, also those of other threads that are under way.
  void Retire();
  Context& get() { return *context_; }

  /// The interpreter ends: every Context goes now, so that its memory is free before the process ends. Waits
  /// for that no longer than kEndPatience: a thread may stay inside of a Context for good, and a daemon may
  /// not answer. lgpud frees the rest when the process is gone.
  static void RetireAll();

 private:
  const std::shared_ptr<Context> context_;
};

}  // namespace lgpu::python

#endif  // LGPU_PYTHON_MODULE_PY_CONTEXT_H_
