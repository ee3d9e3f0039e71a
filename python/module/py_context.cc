#include "python/module/py_context.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "python/module/lock.h"
#include "python/module/sinks.h"

namespace lgpu::python {

namespace {

constexpr std::chrono::seconds kEndPatience{2};

std::atomic<bool> ended{false};

/// All that there are, and some that have gone. The interpreter's lock guards it. It is never destroyed:
/// Python's objects may outlive the objects of this file.
std::vector<std::weak_ptr<Context>>& All() {
  static auto* const all = new std::vector<std::weak_ptr<Context>>();
  return *all;
}

/// Any thread may let the last owner go, with the interpreter's lock or without it. At the end of the
/// interpreter the Context has ended already, or a thread inside of it would be waited for: then it stays.
void EndContext(Context* context) {
  if (!ended.load()) LetGo(std::shared_ptr<Context>(context));
}

}  // namespace

PyContext::PyContext(Context context) : context_(new Context(std::move(context)), &EndContext) {
  context_->LetTensorsKeep(context_);
  std::erase_if(All(), [](const std::weak_ptr<Context>& one) { return one.expired(); });
  All().push_back(context_);
}

void PyContext::Retire() {
  LetGo(std::shared_ptr<void>(nullptr, [context = context_](void*) { context->Retire(); }));
}

// A thread for each: one whose op does not end keeps no other Context open.
void PyContext::RetireAll() {
  ended.store(true);
  std::vector<std::shared_ptr<Context>> contexts;
  for (const std::weak_ptr<Context>& one : All()) {
    if (std::shared_ptr<Context> context = one.lock()) contexts.push_back(std::move(context));
  }
  if (contexts.empty()) return;
  const WithoutLock without_lock;
  std::vector<std::future<void>> retired;
  for (std::shared_ptr<Context>& context : contexts) {
    std::promise<void> done;
    std::future<void> result = done.get_future();
    try {
      std::thread([context = std::move(context), done = std::move(done)]() mutable {
        context->Retire();
        done.set_value();
      }).detach();
    } catch (const std::system_error&) {
      break;  // no thread can be started any more
    }
    retired.push_back(std::move(result));
  }
  const auto deadline = std::chrono::steady_clock::now() + kEndPatience;
  for (const std::future<void>& result : retired) result.wait_until(deadline);
}

}  // namespace lgpu::python
