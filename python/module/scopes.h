#ifndef LGPU_PYTHON_MODULE_SCOPES_H_
#define LGPU_PYTHON_MODULE_SCOPES_H_

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lgpu/context.h"
#include "lgpu/device_scope.h"
#include "python/module/interrupts.h"
#include "python/module/lock.h"
#include "python/module/py_context.h"
#include "python/module/sinks.h"

namespace lgpu::python {

/// A Scope is one `with context.device(...)`, and the scopes around it. The innermost one is in a context
/// variable of Python's, so each thread and each task has its own.
struct Scope {
  /// While there is none, no thread and no task has one open.
  class Count {
   public:
    Count() { ++count_; }
    ~Count() { --count_; }
    Count(const Count&) = delete;
    Count& operator=(const Count&) = delete;
    static bool is_zero() { return count_ == 0; }

   private:
    static inline std::atomic<int> count_{0};
  };

  nanobind::object keep;  // of `context`
  PyContext* context = nullptr;
  bool asks_for_device = false;
  std::optional<std::string> device;  // nothing: for none
  std::optional<DevicePolicy> policy;
  std::optional<nanobind::object> outer;
  Count count = {};
};

/// The scopes of the caller, opened on this thread for one call of liblgpu. It is made with the interpreter's
/// lock, and ended without needing it.
class OpenScopes {
 public:
  OpenScopes() {
    if (Scope::Count::is_zero()) return;
    const nanobind::object innermost = Innermost();
    if (!innermost.is_none()) Open(innermost);
  }
  ~OpenScopes();
  OpenScopes(const OpenScopes&) = delete;
  OpenScopes& operator=(const OpenScopes&) = delete;

 private:
  struct One {
    std::unique_ptr<DeviceScope> device;
    std::unique_ptr<DevicePolicyScope> policy;
  };
  static nanobind::object Innermost();
  void Open(const nanobind::object& innermost);
  std::vector<One> open_;  // the outermost first
};

/// Runs a call of liblgpu without the interpreter's lock: it may wait for memory that another thread of the
/// program gives back. On the main thread signals interrupt the wait, and what their handlers raise is
/// thrown.
template <typename Call>
auto Waiting(Call&& call) {
  InterruptibleCall interruptible;
  auto result = [&] {
    const WithoutLock without_lock;
    const OutermostCall outermost;
    auto made = std::forward<Call>(call)();
    if (interruptible.is_interrupted()) {
      [[maybe_unused]] const auto dropped = std::move(made);  // without the lock: it may be a Context
    }
    return made;
  }();
  interruptible.Rethrow();
  return result;
}
/// As Waiting, for a call that most often is short: the lock is given up only when it is not.
template <typename Call>
auto Briefly(Call&& call) {
  BriefCall brief;
  auto result = [&] {
    const OutermostCall outermost;
    return std::forward<Call>(call)();
  }();
  brief.End();
  return result;
}
/// As Waiting, in the scopes of the caller.
template <typename Call>
auto InScopes(Call&& call) {
  const OpenScopes scopes;
  return Waiting(std::forward<Call>(call));
}

void BindScopes(nanobind::module_& module);

}  // namespace lgpu::python

#endif  // LGPU_PYTHON_MODULE_SCOPES_H_
