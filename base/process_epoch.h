#ifndef LGPU_BASE_PROCESS_EPOCH_H_
#define LGPU_BASE_PROCESS_EPOCH_H_

#include <atomic>
#include <cstdint>

namespace lgpu {

/// A ProcessEpoch remembers in which process it was made. Regions, threads and locks do not survive a
/// fork, so their owners ask it before they touch any of them. Asking costs one load.
class ProcessEpoch {
 public:
  ProcessEpoch();
  /// True in a child that was forked after this was made.
  bool IsForked() const { return Now() != made_in_; }
  /// How many forks lie between the process that first made an epoch and this one.
  static std::uint64_t Now() { return forks_survived_.load(std::memory_order_relaxed); }

 private:
  static void CountFork();

  static std::atomic<std::uint64_t> forks_survived_;
  std::uint64_t made_in_;
};

}  // namespace lgpu

#endif  // LGPU_BASE_PROCESS_EPOCH_H_
