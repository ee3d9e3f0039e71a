#include "lgpu/device_scope.h"

#include <atomic>
#include <memory>
#include <utility>

#include "client/context_state.h"
#include "client/scope_stack.h"

namespace lgpu {

struct DeviceScope::Entry {
  std::shared_ptr<const internal::ContextState> state;
  internal::DeviceRequest request;
  Entry* outer = nullptr;
  std::atomic<bool> ended{false};  // on another thread than its own
};

namespace {

// The scopes of this thread, the innermost first.
thread_local constinit DeviceScope::Entry* innermost = nullptr;

}  // namespace

DeviceScope::DeviceScope(const Context& context, std::string_view device) {
  if (context.state_ == nullptr) return;
  entry_ = std::make_unique<Entry>();
  entry_->state = context.state_;
  entry_->request = context.state_->placer().Resolve(device);
  entry_->outer = std::exchange(innermost, entry_.get());
}

DeviceScope::~DeviceScope() {
  if (entry_ == nullptr) return;
  // The innermost one, if scopes end in reverse order.
  for (Entry** link = &innermost; *link != nullptr; link = &(*link)->outer) {
    if (*link != entry_.get()) continue;
    *link = entry_->outer;
    return;
  }
  // It was opened on another thread, whose list still holds it: it asks for nothing any more, and stays.
  entry_->ended.store(true, std::memory_order_relaxed);
  [[maybe_unused]] const Entry* leaked = entry_.release();
}

const internal::DeviceRequest* internal::CurrentRequest(const ContextState& state) {
  for (const DeviceScope::Entry* entry = innermost; entry != nullptr; entry = entry->outer) {
    if (entry->state.get() == &state && !entry->ended.load(std::memory_order_relaxed)) return &entry->request;
  }
  return nullptr;
}

}  // namespace lgpu
