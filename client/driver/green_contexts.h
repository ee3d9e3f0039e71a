#ifndef LGPU_CLIENT_DRIVER_GREEN_CONTEXTS_H_
#define LGPU_CLIENT_DRIVER_GREEN_CONTEXTS_H_

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "client/driver/cuda_abi.h"

namespace lgpu::shim {

/// GreenContexts knows the green contexts of the program. Each one is seen as a context of its own, and its
/// memory is that of the primary context of its device. Thread-safe.
class GreenContexts {
 public:
  struct Green {
    Device device = kNoDevice;
    Context seen = nullptr;     // as the driver names it where it is current
    Context primary = nullptr;  // of its device
  };
  void Made(GreenContext handle, const Green& green) {
    const std::lock_guard lock(mutex_);
    greens_.insert_or_assign(handle, green);
    is_any_.store(true, std::memory_order_release);
  }
  /// Before the driver destroys it. Nothing: none is known.
  std::optional<Green> Take(GreenContext handle) {
    const std::lock_guard lock(mutex_);
    auto known = greens_.extract(handle);
    return known ? std::optional(known.mapped()) : std::nullopt;
  }
  /// The context that memory which is made in `context` belongs to.
  Context OwnerOf(Context context) {
    if (!is_any_.load(std::memory_order_acquire)) return context;
    const std::lock_guard lock(mutex_);
    const auto green = std::find_if(greens_.begin(), greens_.end(),
                                    [&](const auto& known) { return known.second.seen == context; });
    return green == greens_.end() || green->second.primary == nullptr ? context : green->second.primary;
  }

 private:
  std::atomic<bool> is_any_{false};
  std::mutex mutex_;
  std::unordered_map<GreenContext, Green> greens_;
};

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_GREEN_CONTEXTS_H_
