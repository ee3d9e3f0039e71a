#include "python/module/py_context.h"

#include <chrono>
#include <future>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "python/module/lock.h"
#include "python/module/sinks.h"

namespace lgpu::python {

namespace {

constexpr std::chrono::seconds kEndPatience{2};

bool ended = false;

/// All that there are. The set is never destroyed: Python's objects may outlive the objects of this file.
std::set<PyContext*>& All() {
  static auto* const all = new std::set<PyContext*>();
  return *all;
}

}  // namespace

PyContext::PyContext(Context context) : context_(std::make_shared<Context>(std::move(context))) {
  All().insert(this);
}

PyContext::~PyContext() {
  All().erase(this);
  if (ended) {
    // It has gone already, or a thread inside of it would be waited for.
    static auto* const kept = new std::vector<std::shared_ptr<Context>>();
    kept->push_back(std::move(context_));
  } else {
    LetGo(std::move(context_));
  }
}

void PyContext::Retire() {
  LetGo(std::shared_ptr<void>(nullptr, [context = context_](void*) { context->Retire(); }));
}

// A thread for each: one whose op does not end keeps no other Context open.
void PyContext::RetireAll() {
  ended = true;
  std::vector<std::shared_ptr<Context>> contexts;
  for (const PyContext* const one : All()) contexts.push_back(one->context_);
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
