#ifndef LGPU_PYTHON_MODULE_MEMORY_H_
#define LGPU_PYTHON_MODULE_MEMORY_H_

#include <memory>
#include <utility>

#include "lgpu/memory.h"
#include "python/module/errors.h"
#include "python/module/sinks.h"

namespace lgpu::python {

/// A PyMemory is a LogicalMemory that Python owns; adaptors share it. Its end waits without the interpreter's
/// lock, which callers of all members hold.
class PyMemory {
 public:
  explicit PyMemory(LogicalMemory memory) : memory_(std::make_shared<LogicalMemory>(std::move(memory))) {}
  ~PyMemory() { Retire(); }
  PyMemory(const PyMemory&) = delete;
  PyMemory& operator=(const PyMemory&) = delete;

  /// Lets the memory go; calls of other threads that are under way still have it.
  void Retire() { LetGo(std::move(memory_)); }
  /// StatusError: it was let go.
  std::shared_ptr<const LogicalMemory> get() const {
    if (memory_ != nullptr) return memory_;
    throw StatusError(absl::FailedPreconditionError(
        "this LogicalMemory ended with its `with` block: its memory went back; open another one"));
  }

 private:
  std::shared_ptr<LogicalMemory> memory_;
};

}  // namespace lgpu::python

#endif  // LGPU_PYTHON_MODULE_MEMORY_H_
