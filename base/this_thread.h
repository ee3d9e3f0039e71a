#ifndef LGPU_BASE_THIS_THREAD_H_
#define LGPU_BASE_THIS_THREAD_H_

#include <cstdint>

#include "base/process_epoch.h"

namespace lgpu {

/// ThisThread numbers the calling thread, and counts the sinks that it is in. It is liblgpu's one
/// thread-local value beside the stacks of device scopes and interrupt scopes. A forked child's only thread
/// gets new numbers if a ProcessEpoch was made before the fork.
class ThisThread {
 public:
  /// Counts from 1: no other thread of this process has the same, earlier ones included.
  static std::uint64_t Number() { return Now().number; }

  /// A thread's stay inside a sink of the program's; one may begin inside another.
  class SinkCall {
   public:
    SinkCall() { ++numbers_.sinks_inside; }
    ~SinkCall() { --numbers_.sinks_inside; }
    SinkCall(const SinkCall&) = delete;
    SinkCall& operator=(const SinkCall&) = delete;
  };
  static bool IsInSink() { return numbers_.sinks_inside != 0; }

 private:
  struct Numbers {
    std::uint64_t epoch;
    std::uint64_t number;
    std::int32_t sinks_inside;
  };
  static const Numbers& Now() { return numbers_.epoch == ProcessEpoch::Now() ? numbers_ : Ask(); }
  static const Numbers& Ask();

  [[gnu::tls_model("initial-exec")]] static constinit thread_local Numbers numbers_;
};

}  // namespace lgpu

#endif  // LGPU_BASE_THIS_THREAD_H_
