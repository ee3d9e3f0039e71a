#include "lgpu/device_scope.h"

#include <atomic>
#include <memory>
#include <utility>

#include "client/runtime/context_state.h"
#include "client/runtime/scope_stack.h"

namespace lgpu {

struct DeviceScope::Entry {
  std::shared_ptr<const internal::ContextState> state;
  std::optional<internal::DeviceRequest> request;
  std::optional<DevicePolicy> policy;
  Entry* outer = nullptr;
  std::atomic<bool> ended{false};  // on another thread than its own
};

namespace {

// The scopes of this thread, the innermost first.
[[gnu::tls_model("initial-exec")]] thread_local constinit DeviceScope::Entry* innermost = nullptr;

std::unique_ptr<DeviceScope::Entry> Open(std::shared_ptr<internal::ContextState> state,
                                         std::optional<internal::DeviceRequest> request,
                                         std::optional<DevicePolicy> policy) {
  auto entry = std::make_unique<DeviceScope::Entry>();
  entry->state = std::move(state);
  entry->request = std::move(request);
  entry->policy = policy;
  entry->outer = std::exchange(innermost, entry.get());
  return entry;
}

void End(std::unique_ptr<DeviceScope::Entry> entry) {
  if (entry == nullptr) return;
  // The innermost one, if scopes end in reverse order.
  for (DeviceScope::Entry** link = &innermost; *link != nullptr; link = &(*link)->outer) {
    if (*link != entry.get()) continue;
    *link = entry->outer;
    return;
  }
  // The scope was opened on another thread, whose list still holds the entry: it stays, without effect.
  entry->ended.store(true, std::memory_order_relaxed);
  [[maybe_unused]] const DeviceScope::Entry* leaked = entry.release();
}

bool Counts(const DeviceScope::Entry& entry, const internal::ContextState& state) {
  return entry.state.get() == &state && !entry.ended.load(std::memory_order_relaxed);
}

}  // namespace

DeviceScope::DeviceScope(const Context& context, std::string_view device) {
  if (context.state_ == nullptr) return;
  entry_ = Open(context.state_,
                context.state_->ResolveScope(device, internal::CurrentRequest(*context.state_)), {});
}

DeviceScope::DeviceScope(const Context& context, std::nullopt_t) {
  if (context.state_ == nullptr) return;
  entry_ = Open(context.state_, context.state_->ResolveScope({}, nullptr), {});
}

DeviceScope::~DeviceScope() { End(std::move(entry_)); }

DevicePolicyScope::DevicePolicyScope(const Context& context, DevicePolicy policy) {
  if (context.state_ != nullptr) entry_ = Open(context.state_, {}, policy);
}

DevicePolicyScope::~DevicePolicyScope() { End(std::move(entry_)); }

const internal::DeviceRequest* internal::CurrentRequest(const ContextState& state) {
  for (const DeviceScope::Entry* entry = innermost; entry != nullptr; entry = entry->outer) {
    if (entry->request && Counts(*entry, state)) return &*entry->request;
  }
  return nullptr;
}

DevicePolicy internal::CurrentPolicy(const ContextState& state) {
  for (const DeviceScope::Entry* entry = innermost; entry != nullptr; entry = entry->outer) {
    if (entry->policy && Counts(*entry, state)) return *entry->policy;
  }
  return state.policy();
}

}  // namespace lgpu
