#ifndef LGPU_DAEMON_HTTP_HISTORY_H_
#define LGPU_DAEMON_HTTP_HISTORY_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "daemon/http/viewer.h"
#include "daemon/server/user_shares.h"
#include "lgpu/v1/stats.pb.h"
#include "nlohmann/json.hpp"

namespace lgpu::daemon {

/// A Series is the course of a few numbers over time in fixed memory: at most kMostPoints points, each the
/// largest value of its span. When it is full, pairs of points become one and the span doubles. Not
/// thread-safe.
class Series {
 public:
  static constexpr std::size_t kNumbers = 4;
  static constexpr std::size_t kMostPoints = 360;
  using Numbers = std::array<std::uint64_t, kNumbers>;
  struct Point {
    std::int64_t from_ms = 0;  // Unix time
    Numbers most = {};
    std::uint32_t refusals = 0;  // in this span
  };

  /// `at_ms` rises from call to call; a time that does not counts as the last one.
  void Add(std::int64_t at_ms, const Numbers& numbers, std::uint32_t refusals);
  const std::vector<Point>& points() const { return points_; }
  std::int64_t span_ms() const { return span_ms_; }
  /// The time of the last Add.
  std::int64_t last_ms() const { return last_ms_; }

 private:
  void Halve();

  std::vector<Point> points_;
  std::int64_t span_ms_ = 1000;
  std::int64_t last_ms_ = 0;
};

/// A History remembers how much memory cards and logical devices had, from the snapshots that it is given.
/// Its memory is fixed: a Series for each, at most kMostDevices logical devices, of which each user has at
/// most their share (UserShares). A lease that has ended stays for kKept. Thread-safe.
class History {
 public:
  static constexpr std::size_t kMostDevices = 2048;
  static constexpr std::chrono::minutes kKept{10};
  static constexpr std::size_t kMostWidth = 2000;

  /// Adds what root sees at one moment.
  void Add(const v1::StatsSnapshot& snapshot);

  /// A question: the last `seconds`, thinned to `width` columns.
  struct Window {
    double seconds = 600;
    std::size_t width = 400;
  };
  /// "lgpu.timeline/v1" of a card: its own numbers, and `used` of the leases on it that the viewer sees, the
  /// kMostStacked largest by themselves and the others as a sum. A card that is unknown has no columns.
  nlohmann::json OfCard(const Viewer& viewer, std::uint32_t card, const Window& window) const;
  /// "lgpu.timeline/v1" of a lease, by its id: each logical device with limit, held, used, charged and
  /// refusals, and what of the lease is in host memory. No devices: the viewer does not see it, or it is not
  /// remembered.
  nlohmann::json OfLease(const Viewer& viewer, const std::string& id, const Window& window) const;

  static constexpr std::size_t kMostStacked = 12;

 private:
  struct Device {
    std::string name;
    std::uint32_t card = 0;
    std::uint64_t refusals_total = 0;
    Series series;  // used, held, charged, limit
  };
  struct Lease {
    std::string name;
    std::uint32_t owner = 0;
    std::int64_t last_ms = 0;
    std::map<std::uint64_t, Device> devices;
    Series suspended;  // in host memory
  };
  void AddLease(const v1::LeaseStats& stats, std::int64_t now_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  struct Columns;
  /// A lease on a card, by columns.
  struct Stacked {
    std::string id, name;
    std::uint64_t peak = 0;
    std::vector<std::optional<std::uint64_t>> used;
  };
  std::vector<Stacked> StackOf(const Viewer& viewer, std::uint32_t card, const Columns& columns) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetEnded(std::int64_t now_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  UserShares shares_{kMostDevices};
  std::map<std::string, Lease> leases_ ABSL_GUARDED_BY(mutex_);    // by id
  std::map<std::uint32_t, Series> cards_ ABSL_GUARDED_BY(mutex_);  // held, promised, foreign, total
  std::int64_t now_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_first_look_ ABSL_GUARDED_BY(mutex_) = true;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_HTTP_HISTORY_H_
