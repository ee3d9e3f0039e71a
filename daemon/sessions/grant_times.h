#ifndef LGPU_DAEMON_SESSIONS_GRANT_TIMES_H_
#define LGPU_DAEMON_SESSIONS_GRANT_TIMES_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace lgpu::daemon {

/// GrantTimes is a histogram of how long clients waited for memory. Thread-safe, without a lock: every grant
/// adds to it.
class GrantTimes {
 public:
  static constexpr std::array<double, 12> kBounds = {1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 1e-3,
                                                     5e-3, 2.5e-2, 1e-1, 1e0,  1e1,    1e2};

  void Observe(std::chrono::nanoseconds time) {
    const double seconds = static_cast<double>(time.count()) / 1e9;
    std::size_t bucket = 0;
    while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_ns_.fetch_add(static_cast<std::uint64_t>(time.count()), std::memory_order_relaxed);
  }

  struct Snapshot {
    std::array<std::uint64_t, kBounds.size() + 1> counts{};  // the last one: above all bounds
    double sum_seconds = 0;
  };
  Snapshot Read() const {
    Snapshot snapshot;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      snapshot.counts[i] = counts_[i].load(std::memory_order_relaxed);
    }
    snapshot.sum_seconds = static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) / 1e9;
    return snapshot;
  }

 private:
  std::array<std::atomic<std::uint64_t>, kBounds.size() + 1> counts_{};
  std::atomic<std::uint64_t> sum_ns_ = 0;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SESSIONS_GRANT_TIMES_H_
