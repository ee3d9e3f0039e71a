#ifndef LGPU_BASE_THIS_THREAD_H_
#define LGPU_BASE_THIS_THREAD_H_

#include <cstdint>

#include "base/process_epoch.h"

namespace lgpu {

/// ThisThread numbers the calling thread. It is liblgpu's one thread-local value beside the stack of device
/// scopes. A forked child's only thread gets new numbers if a ProcessEpoch was made before the fork.
class ThisThread {
 public:
  /// The kernel's number, asked for once: no other living thread has the same.
  static std::int32_t KernelNumber() { return Now().kernel_number; }
  /// Counts from 1: no other thread of this process has the same, earlier ones included.
  static std::uint64_t UniqueNumber() { return Now().unique_number; }

 private:
  struct Numbers {
    std::uint64_t epoch;
    std::uint64_t unique_number;
    std::int32_t kernel_number;
  };
  static const Numbers& Now() { return numbers_.epoch == ProcessEpoch::Now() ? numbers_ : Ask(); }
  static const Numbers& Ask();

  [[gnu::tls_model("initial-exec")]] static constinit thread_local Numbers numbers_;
};

}  // namespace lgpu

#endif  // LGPU_BASE_THIS_THREAD_H_
