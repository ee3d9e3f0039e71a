#ifndef LGPU_CLIENT_DRIVER_KERNEL_HEAPS_H_
#define LGPU_CLIENT_DRIVER_KERNEL_HEAPS_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "client/driver/allocations.h"

namespace lgpu::shim {

/// KernelHeaps has the size that the program has set for the heap of malloc in kernels, by context. The
/// driver takes this memory beside all allocations, so it is not charged; lgpud names it where a program has
/// more memory than it has charged. Thread-safe.
class KernelHeaps {
 public:
  /// `tell` gets the sum of all contexts after each change.
  explicit KernelHeaps(std::function<void(std::uint64_t)> tell) : tell_(std::move(tell)) {}

  void Set(const void* context, Era era, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    heaps_[context] = {.bytes = bytes, .era = era};
    Tell();
  }
  /// The context ended after the era `last`.
  void Forget(const void* context, Era last) {
    const std::lock_guard lock(mutex_);
    const auto found = heaps_.find(context);
    if (found == heaps_.end() || found->second.era > last) return;
    heaps_.erase(found);
    Tell();
  }

 private:
  struct Heap {
    std::uint64_t bytes = 0;
    Era era = 0;
  };
  void Tell() {
    std::uint64_t sum = 0;
    for (const auto& [context, heap] : heaps_) sum += heap.bytes;
    tell_(sum);
  }

  const std::function<void(std::uint64_t)> tell_;
  std::mutex mutex_;
  std::unordered_map<const void*, Heap> heaps_;
};

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_KERNEL_HEAPS_H_
