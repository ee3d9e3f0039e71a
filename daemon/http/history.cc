#include "daemon/http/history.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "google/protobuf/util/time_util.h"

namespace lgpu::daemon {
/// The columns of a window: column i is the time from `from_ms` + i * step_ms on.
struct History::Columns {
  std::int64_t from_ms = 0;
  double step_ms = 1000;
  std::size_t count = 0;

  Columns(std::int64_t now_ms, const Window& window) {
    constexpr double kShortest = 10, kLongest = 30.0 * 24 * 3600;
    const double seconds =
        std::isfinite(window.seconds) ? std::clamp(window.seconds, kShortest, kLongest) : kShortest;
    count = std::clamp<std::size_t>(window.width, 10, History::kMostWidth);
    // A column that is shorter than the time between two snapshots would be empty.
    count = std::min(count, static_cast<std::size_t>(seconds));
    step_ms = 1000 * seconds / static_cast<double>(count);
    // The last column ends behind the last snapshot.
    from_ms = now_ms + 1 - static_cast<std::int64_t>(1000 * seconds);
  }
  std::int64_t Begin(std::size_t i) const {
    return from_ms + static_cast<std::int64_t>(step_ms * static_cast<double>(i));
  }
};

namespace {

using nlohmann::json;

void TakeLargest(const Series::Numbers& from, Series::Numbers& to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], from[i]);
}

/// A series by columns: the largest value of each column, the last one where the column has no point of its
/// own, nothing before the first point and after the last.
template <typename Columns>
std::vector<std::optional<Series::Point>> Thin(const Series& series, const Columns& columns) {
  std::vector<std::optional<Series::Point>> thin(columns.count);
  const std::vector<Series::Point>& points = series.points();
  std::size_t at = 0;
  std::optional<Series::Point> last;
  for (std::size_t i = 0; i < columns.count; ++i) {
    const std::int64_t end = columns.Begin(i + 1);
    std::optional<Series::Point> column;
    for (; at < points.size() && points[at].from_ms < end; ++at) {
      const bool is_old = points[at].from_ms + series.span_ms() <= columns.from_ms;
      last = points[at];
      if (is_old) continue;
      if (!column) {
        column = points[at];
      } else {
        TakeLargest(points[at].most, column->most);
        column->refusals += points[at].refusals;
      }
    }
    if (!column && last && series.last_ms() >= columns.Begin(i)) {
      column = last;
      column->refusals = 0;
    }
    thin[i] = column;
  }
  return thin;
}

json NumbersOf(const std::vector<std::optional<Series::Point>>& thin, std::size_t number) {
  json values = json::array();
  for (const auto& point : thin) values.push_back(point ? json(point->most[number]) : json());
  return values;
}

template <typename Columns>
json Header(const Columns& columns) {
  return {{"schema", "lgpu.timeline/v1"},
          {"from_ms", columns.from_ms},
          {"step_ms", columns.step_ms},
          {"columns", columns.count}};
}

}  // namespace

void Series::Add(std::int64_t at_ms, const Numbers& numbers, std::uint32_t refusals) {
  last_ms_ = std::max(at_ms, last_ms_);
  const std::int64_t from_ms = last_ms_ - last_ms_ % span_ms_;
  if (!points_.empty() && points_.back().from_ms >= from_ms) {
    TakeLargest(numbers, points_.back().most);
    points_.back().refusals += refusals;
    return;
  }
  if (points_.size() == kMostPoints) {
    Halve();
    return Add(at_ms, numbers, refusals);
  }
  points_.push_back({.from_ms = from_ms, .most = numbers, .refusals = refusals});
}

void Series::Halve() {
  span_ms_ *= 2;
  std::vector<Point> halved;
  for (const Point& point : points_) {
    const std::int64_t from_ms = point.from_ms - point.from_ms % span_ms_;
    if (halved.empty() || halved.back().from_ms != from_ms) {
      halved.push_back(point);
      halved.back().from_ms = from_ms;
    } else {
      TakeLargest(point.most, halved.back().most);
      halved.back().refusals += point.refusals;
    }
  }
  points_ = std::move(halved);
}

void History::AddLease(const v1::LeaseStats& stats, std::int64_t now_ms) {
  for (const v1::LogicalDeviceStats& device : stats.devices()) {
    auto found = leases_.find(stats.id());
    const bool is_known = found != leases_.end() && found->second.devices.contains(device.id());
    // A lease has an entry from its first device on that has a place, so that a user's leases are bounded
    // too.
    if (!is_known && !shares_.TryTake(stats.owner_uid())) continue;
    Lease& lease = leases_[stats.id()];
    lease.name = stats.name();
    lease.owner = stats.owner_uid();
    lease.last_ms = now_ms;
    const auto known = lease.devices.try_emplace(device.id()).first;
    // Refusals of a lease that is older than this history are of no known time.
    if (!is_known && is_first_look_) known->second.refusals_total = device.refusals_total();
    Device& entry = known->second;
    entry.name = device.name();
    entry.card = device.card_index();
    // A session that ends takes its count along.
    const std::uint64_t more =
        device.refusals_total() > entry.refusals_total ? device.refusals_total() - entry.refusals_total : 0;
    entry.refusals_total = device.refusals_total();
    entry.series.Add(now_ms,
                     {device.used_bytes(), device.held_bytes(), device.charged_bytes(), device.limit_bytes()},
                     static_cast<std::uint32_t>(std::min<std::uint64_t>(more, 1'000'000)));
  }
  const auto lease = leases_.find(stats.id());
  if (lease == leases_.end()) return;
  const bool is_suspended = stats.suspension().in_host_memory();
  lease->second.suspended.Add(now_ms, {is_suspended ? stats.suspension().bytes() : 0}, 0);
}

void History::ForgetEnded(std::int64_t now_ms) {
  const std::int64_t kept_ms = std::chrono::milliseconds(kKept).count();
  for (auto lease = leases_.begin(); lease != leases_.end();) {
    if (now_ms - lease->second.last_ms <= kept_ms) {
      ++lease;
      continue;
    }
    shares_.GiveBack(lease->second.owner, lease->second.devices.size());
    lease = leases_.erase(lease);
  }
}

void History::Add(const v1::StatsSnapshot& snapshot) {
  const std::int64_t now_ms = google::protobuf::util::TimeUtil::TimestampToMilliseconds(snapshot.taken_at());
  const MutexLock lock(mutex_);
  now_ms_ = now_ms;
  for (const v1::CardStats& card : snapshot.cards()) {
    if (!card.served()) continue;
    cards_[card.index()].Add(
        now_ms, {card.held_bytes(), card.promised_bytes(), card.foreign_bytes(), card.total_bytes()}, 0);
  }
  for (const v1::LeaseStats& lease : snapshot.leases()) AddLease(lease, now_ms);
  is_first_look_ = false;
  ForgetEnded(now_ms);
}

std::vector<History::Stacked> History::StackOf(const Viewer& viewer, std::uint32_t card,
                                               const Columns& columns) const {
  std::vector<Stacked> stack;
  for (const auto& [id, lease] : leases_) {
    if (!viewer.caller.is_root() && lease.owner != viewer.caller.uid) continue;
    Stacked sum{.id = id, .name = lease.name, .used = {}};
    for (const auto& [key, device] : lease.devices) {
      if (device.card != card) continue;
      sum.used.resize(columns.count);
      const auto thin = Thin(device.series, columns);
      for (std::size_t i = 0; i < columns.count; ++i) {
        if (thin[i]) sum.used[i] = sum.used[i].value_or(0) + thin[i]->most[0];
        sum.peak = std::max(sum.peak, sum.used[i].value_or(0));
      }
    }
    const auto is_known = [](const auto& value) { return value.has_value(); };
    if (std::any_of(sum.used.begin(), sum.used.end(), is_known)) stack.push_back(std::move(sum));
  }
  std::stable_sort(stack.begin(), stack.end(),
                   [](const Stacked& a, const Stacked& b) { return a.peak > b.peak; });
  if (stack.size() <= kMostStacked) return stack;
  Stacked rest{.id = "", .name = std::to_string(stack.size() - kMostStacked) + " more", .used = {}};
  rest.used.resize(columns.count);
  for (std::size_t k = kMostStacked; k < stack.size(); ++k) {
    for (std::size_t i = 0; i < columns.count; ++i) {
      if (stack[k].used[i]) rest.used[i] = rest.used[i].value_or(0) + *stack[k].used[i];
    }
  }
  stack.resize(kMostStacked);
  stack.push_back(std::move(rest));
  return stack;
}

json History::OfCard(const Viewer& viewer, std::uint32_t card, const Window& window) const {
  const MutexLock lock(mutex_);
  const Columns columns(now_ms_, window);
  json result = Header(columns);
  result["gpu"] = card;
  result["leases"] = json::array();
  const auto found = cards_.find(card);
  if (found == cards_.end()) return result;
  const auto own = Thin(found->second, columns);
  const std::array<const char*, Series::kNumbers> names = {"held_bytes", "promised_bytes", "foreign_bytes",
                                                           "total_bytes"};
  for (std::size_t i = 0; i < names.size(); ++i) result["card"][names[i]] = NumbersOf(own, i);
  for (const Stacked& lease : StackOf(viewer, card, columns)) {
    json used = json::array();
    for (const auto& value : lease.used) used.push_back(value ? json(*value) : json());
    result["leases"].push_back({{"id", lease.id}, {"name", lease.name}, {"used_bytes", std::move(used)}});
  }
  return result;
}

json History::OfLease(const Viewer& viewer, const std::string& id, const Window& window) const {
  const MutexLock lock(mutex_);
  const Columns columns(now_ms_, window);
  json result = Header(columns);
  result["devices"] = json::array();
  const auto found = leases_.find(id);
  if (found == leases_.end() || (!viewer.caller.is_root() && found->second.owner != viewer.caller.uid)) {
    return result;
  }
  result["lease"] = {{"id", id}, {"name", found->second.name}};
  result["ended"] = found->second.last_ms != now_ms_;
  result["suspended_bytes"] = NumbersOf(Thin(found->second.suspended, columns), 0);
  const std::array<const char*, Series::kNumbers> names = {"used_bytes", "held_bytes", "charged_bytes",
                                                           "memory_limit_bytes"};
  for (const auto& [key, device] : found->second.devices) {
    const auto thin = Thin(device.series, columns);
    json entry = {{"name", device.name}, {"gpu", device.card}};
    for (std::size_t i = 0; i < names.size(); ++i) entry[names[i]] = NumbersOf(thin, i);
    entry["refusals"] = json::array();
    for (const auto& point : thin) entry["refusals"].push_back(point ? json(point->refusals) : json());
    result["devices"].push_back(std::move(entry));
  }
  return result;
}

}  // namespace lgpu::daemon
