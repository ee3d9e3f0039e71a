#include "daemon/http/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/read_file.h"
#include "lgpu/refusal.h"
#include "proto/refusal_codec.h"

namespace lgpu::daemon {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::initializer_list<std::pair<const char*, std::string>>;

ClientMetric Labelled(Labels labels) {
  ClientMetric metric;
  for (const auto& [name, value] : labels) {
    if (!value.empty()) metric.label.push_back({name, value});
  }
  return metric;
}

// A family that is being filled.
class Family {
 public:
  Family(std::vector<MetricFamily>& families, const char* name, const char* help, MetricType type)
      : family_(families.emplace_back()) {
    family_.name = name;
    family_.help = help;
    family_.type = type;
  }
  void Add(Labels labels, double value) {
    ClientMetric metric = Labelled(labels);
    (family_.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    family_.metric.push_back(std::move(metric));
  }

 private:
  MetricFamily& family_;
};

// Logical devices of one series.
struct DeviceSums {
  std::uint64_t limit = 0, used = 0, held = 0, peak = 0, largest_free = 0, allocations = 0, refusals = 0,
                charged = 0;
  std::optional<double> idle_seconds = {};  // of the lease that was used last
};
using DeviceKey =
    std::tuple<std::string, std::string, std::string, std::string>;  // gpu, device, lease, owner

// The same for a user at every start and on no other machine: FNV-1a over the machine's id and the uid.
std::string WordFor(std::uint32_t uid) {
  static const std::string machine = ReadWholeFile("/etc/machine-id").value_or("");
  std::uint32_t hash = 2166136261;
  for (const char c : absl::StrCat(machine, "/", uid)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
  }
  return absl::StrFormat("u-%08x", hash);
}

std::string ShortDevice(const std::string& name) {
  const std::size_t at = name.rfind("device:");
  return at == std::string::npos ? name : name.substr(at + 7);
}

std::map<DeviceKey, DeviceSums> SumDevices(const v1::StatsSnapshot& snapshot, bool names_owners) {
  std::map<DeviceKey, DeviceSums> sums;
  for (const v1::LeaseStats& lease : snapshot.leases()) {
    std::string owner;
    if (!lease.anonymous()) owner = names_owners ? lease.owner() : WordFor(lease.owner_uid());
    for (const v1::LogicalDeviceStats& device : lease.devices()) {
      DeviceSums& sum = sums[{absl::StrCat(device.card_index()), ShortDevice(device.name()),
                              lease.anonymous() ? "anonymous" : lease.name(), owner}];
      if (lease.has_idle_since()) {
        const std::int64_t idle = snapshot.taken_at().seconds() - lease.idle_since().seconds();
        const double seconds = static_cast<double>(std::max<std::int64_t>(idle, 0));
        sum.idle_seconds = std::min(seconds, sum.idle_seconds.value_or(seconds));
      }
      sum.limit += device.limit_bytes();
      sum.used += device.used_bytes();
      sum.held += device.held_bytes();
      sum.charged += device.charged_bytes();
      sum.peak += device.peak_used_bytes();
      sum.largest_free = std::max(sum.largest_free, device.largest_free_block_bytes());
      sum.allocations += device.allocations_total();
      sum.refusals += device.refusals_total();
    }
  }
  return sums;
}

void AddDevices(const v1::StatsSnapshot& snapshot, bool names_owners, std::vector<MetricFamily>& families) {
  const std::map<DeviceKey, DeviceSums> sums = SumDevices(snapshot, names_owners);
  const auto gauge = [&](const char* name, const char* help, auto value) {
    Family family(families, name, help, MetricType::Gauge);
    for (const auto& [key, sum] : sums) {
      const auto& [gpu, device, lease, owner] = key;
      family.Add({{"gpu", gpu}, {"device", device}, {"lease", lease}, {"owner", owner}},
                 static_cast<double>(value(sum)));
    }
  };
  gauge("lgpu_logical_device_memory_limit_bytes", "What a logical device may use.",
        [](const DeviceSums& sum) { return sum.limit; });
  gauge("lgpu_logical_device_memory_used_bytes", "In live blocks, as its programs say, and charged.",
        [](const DeviceSums& sum) { return sum.used; });
  gauge("lgpu_logical_device_memory_mapped_bytes", "Held: in chunks, and charged.",
        [](const DeviceSums& sum) { return sum.held; });
  gauge("lgpu_logical_device_memory_charged_bytes",
        "Part of used: charged to programs that take memory from the driver themselves.",
        [](const DeviceSums& sum) { return sum.charged; });
  gauge("lgpu_logical_device_memory_peak_bytes", "The most that was in live blocks, as its programs say.",
        [](const DeviceSums& sum) { return sum.peak; });
  gauge("lgpu_logical_device_largest_free_block_bytes", "The largest request that held memory serves now.",
        [](const DeviceSums& sum) { return sum.largest_free; });
  Family idle(families, "lgpu_logical_device_idle_seconds",
              "For how long no program of its lease has used a GPU.", MetricType::Gauge);
  for (const auto& [key, sum] : sums) {
    const auto& [gpu, device, lease, owner] = key;
    if (!sum.idle_seconds) continue;
    idle.Add({{"gpu", gpu}, {"device", device}, {"lease", lease}, {"owner", owner}}, *sum.idle_seconds);
  }
  Family allocations(families, "lgpu_allocations_total",
                     "Allocations of the programs that are attached now, as they say.", MetricType::Counter);
  for (const auto& [key, sum] : sums) {
    const auto& [gpu, device, lease, owner] = key;
    allocations.Add({{"gpu", gpu}, {"device", device}, {"lease", lease}, {"owner", owner}, {"result", "ok"}},
                    static_cast<double>(sum.allocations));
    allocations.Add(
        {{"gpu", gpu}, {"device", device}, {"lease", lease}, {"owner", owner}, {"result", "refused"}},
        static_cast<double>(sum.refusals));
  }
}

void AddCards(const v1::StatsSnapshot& snapshot, std::vector<MetricFamily>& families) {
  Family info(families, "lgpu_physical_device_info", "A GPU of this machine.", MetricType::Gauge);
  for (const v1::CardStats& card : snapshot.cards()) {
    info.Add({{"gpu", absl::StrCat(card.index())},
              {"uuid", card.uuid()},
              {"name", card.name()},
              {"pci_bus_id", card.pci_bus_id()}},
             1);
  }
  const auto gauge = [&](const char* name, const char* help, auto value) {
    Family family(families, name, help, MetricType::Gauge);
    for (const v1::CardStats& card : snapshot.cards()) {
      if (!card.served()) continue;
      family.Add({{"gpu", absl::StrCat(card.index())}, {"uuid", card.uuid()}},
                 static_cast<double>(value(card)));
    }
  };
  gauge("lgpu_physical_device_memory_total_bytes", "All of its memory.",
        [](const v1::CardStats& card) { return card.total_bytes(); });
  gauge("lgpu_physical_device_memory_reserved_bytes",
        "Promised: the larger of guarantee and held, of all logical devices, with overhead and reserve.",
        [](const v1::CardStats& card) { return card.promised_bytes(); });
  gauge("lgpu_physical_device_memory_held_bytes", "Held: in chunks, and charged.",
        [](const v1::CardStats& card) { return card.held_bytes(); });
  gauge("lgpu_physical_device_memory_overhead_bytes",
        "What the programs of leases use beside chunks: measured, or their allowance.",
        [](const v1::CardStats& card) { return card.overhead_bytes(); });
  gauge("lgpu_physical_device_memory_free_bytes", "What can still be promised.",
        [](const v1::CardStats& card) { return card.free_bytes(); });
  gauge("lgpu_physical_device_memory_draining_bytes", "Given back, or of programs that died; not free yet.",
        [](const v1::CardStats& card) { return card.draining_bytes(); });
  gauge("lgpu_physical_device_waiting_requests", "Requests that wait for memory of it.",
        [](const v1::CardStats& card) { return card.waiting_requests(); });
  gauge("lgpu_physical_device_overcommitted", "1: promises and foreign memory exceed it; nothing is granted.",
        [](const v1::CardStats& card) { return card.overcommitted() ? 1 : 0; });
  Family foreign(families, "lgpu_physical_device_memory_foreign_bytes",
                 "Used by processes outside lgpu. Absent where it is not known.", MetricType::Gauge);
  for (const v1::CardStats& card : snapshot.cards()) {
    if (!card.served() || !card.has_foreign_bytes()) continue;
    foreign.Add({{"gpu", absl::StrCat(card.index())}, {"uuid", card.uuid()}},
                static_cast<double>(card.foreign_bytes()));
  }
}

/// Gauges of the cards whose driver tells.
void AddLoads(const v1::StatsSnapshot& snapshot, std::vector<MetricFamily>& families) {
  const auto gauge = [&](const char* name, const char* help, auto knows, auto value) {
    Family family(families, name, help, MetricType::Gauge);
    for (const v1::CardStats& card : snapshot.cards()) {
      if (!knows(card)) continue;
      family.Add({{"gpu", absl::StrCat(card.index())}, {"uuid", card.uuid()}}, value(card));
    }
  };
  using Card = const v1::CardStats&;
  gauge(
      "lgpu_physical_device_utilization_ratio",
      "Share of the time in which a kernel ran, as the driver says.",
      [](Card card) { return card.has_utilization_percent(); },
      [](Card card) { return 0.01 * card.utilization_percent(); });
  gauge(
      "lgpu_physical_device_temperature_celsius", "Its temperature, as the driver says.",
      [](Card card) { return card.has_temperature_celsius(); },
      [](Card card) { return static_cast<double>(card.temperature_celsius()); });
  gauge(
      "lgpu_physical_device_power_watts", "The power that it draws, as the driver says.",
      [](Card card) { return card.has_power_milliwatts(); },
      [](Card card) { return 0.001 * card.power_milliwatts(); });
  gauge(
      "lgpu_physical_device_power_limit_watts", "The most power that it may draw.",
      [](Card card) { return card.has_power_limit_milliwatts(); },
      [](Card card) { return 0.001 * card.power_limit_milliwatts(); });
}

void AddCountsOfNow(const v1::StatsSnapshot& snapshot, std::vector<MetricFamily>& families) {
  std::map<std::pair<std::string, std::string>, std::uint64_t> devices;
  std::map<std::string, std::uint64_t> sessions = {{"live", 0}, {"draining", 0}, {"absent", 0}};
  for (const v1::LeaseStats& lease : snapshot.leases()) {
    bool live = false;
    for (const v1::SessionStats& session : lease.sessions()) {
      live = live || session.state() == v1::SessionStats::STATE_LIVE;
      ++sessions[session.state() == v1::SessionStats::STATE_LIVE       ? "live"
                 : session.state() == v1::SessionStats::STATE_DRAINING ? "draining"
                                                                       : "absent"];
    }
    const char* const state = live ? "attached" : lease.sessions().empty() ? "idle" : "draining";
    for (const v1::LogicalDeviceStats& device : lease.devices()) {
      ++devices[{absl::StrCat(device.card_index()), state}];
    }
  }
  Family logical(families, "lgpu_logical_devices",
                 "Logical devices by GPU and by whether a program is attached.", MetricType::Gauge);
  for (const v1::CardStats& card : snapshot.cards()) {
    if (!card.served()) continue;
    for (const char* state : {"attached", "idle", "draining"}) {
      const std::string gpu = absl::StrCat(card.index());
      const auto found = devices.find({gpu, state});
      logical.Add({{"gpu", gpu}, {"state", state}},
                  found == devices.end() ? 0.0 : static_cast<double>(found->second));
    }
  }
  Family family(families, "lgpu_sessions", "Connected programs.", MetricType::Gauge);
  for (const auto& [state, count] : sessions) family.Add({{"state", state}}, static_cast<double>(count));
}

void AddTotals(const v1::StatsSnapshot& snapshot, const MetricTotals& totals,
               std::vector<MetricFamily>& families) {
  const auto counter = [&](const char* name, const char* help, std::uint64_t value) {
    Family(families, name, help, MetricType::Counter).Add({}, static_cast<double>(value));
  };
  counter("lgpu_grants_total", "Requests for memory that were granted.", snapshot.grants_total());
  counter("lgpu_charges_total", "Requests of programs to charge memory of the driver's that were granted.",
          snapshot.charges_total());
  counter("lgpu_returns_total", "Times that programs gave chunks back.", snapshot.returns_total());
  counter("lgpu_trims_total", "Requests to programs to give back idle memory.", snapshot.trims_total());
  counter("lgpu_trims_ignored_total", "Requests to give back idle memory that had no answer for a second.",
          snapshot.trims_ignored_total());
  counter("lgpu_sessions_lost_total", "Sessions that ended without closing.", snapshot.sessions_lost_total());
  counter("lgpu_placement_records_total", "Executed ops that were read.", snapshot.placements_total());
  counter("lgpu_placement_records_dropped_total", "Executed ops that were lost before they were read.",
          snapshot.placements_dropped_total());
  counter("lgpu_suspensions_total", "Leases whose programs were moved to host memory.",
          totals.suspensions.suspensions);
  counter("lgpu_resumptions_total", "Leases whose programs were moved back to their GPUs.",
          totals.suspensions.resumptions);
  counter("lgpu_suspension_failures_total", "Leases whose programs could not be moved.",
          totals.suspensions.failures);
  counter("lgpu_suspension_moved_bytes_total", "Memory that was moved, in both directions.",
          totals.suspensions.bytes);
  counter("lgpu_give_way_asks_total", "Leases that were asked to give memory up for a request.",
          totals.giving_way.asks);
  Family answers(families, "lgpu_give_way_answers_total", "Finished requests to give way, by result.",
                 MetricType::Counter);
  answers.Add({{"result", "memory"}}, static_cast<double>(totals.giving_way.gave));
  answers.Add({{"result", "nothing"}}, static_cast<double>(totals.giving_way.in_vain));
  counter("lgpu_give_way_given_bytes_total", "Memory that leases gave up when they were asked.",
          totals.giving_way.bytes.count());
  Family(families, "lgpu_give_way_wait_seconds_total",
         "Time that requests waited while leases gave way for them.", MetricType::Counter)
      .Add({}, std::chrono::duration<double>(totals.giving_way.waited).count());
  Family refusals(families, "lgpu_refusals_total", "Requests for memory that were refused.",
                  MetricType::Counter);
  for (const RefusalReason reason : {RefusalReason::kLimit, RefusalReason::kCard, RefusalReason::kDeadlock,
                                     RefusalReason::kBackend, RefusalReason::kDescriptors}) {
    const auto found = totals.events.refusals.find(reason);
    refusals.Add({{"reason", std::string(RefusalReasonName(reason))}},
                 found == totals.events.refusals.end() ? 0.0 : static_cast<double>(found->second));
  }
  Family reclaimed(families, "lgpu_leases_reclaimed_total", "Leases that ended.", MetricType::Counter);
  reclaimed.Add({{"reason", "client_exit"}}, static_cast<double>(totals.ended.by_exit));
  reclaimed.Add({{"reason", "admin"}}, static_cast<double>(totals.ended.by_request));
  Family ops(families, "lgpu_ops_executed_total", "Ops that ran, by the kind of device.",
             MetricType::Counter);
  for (const auto& [key, count] : totals.ops) {
    ops.Add({{"op", key.first}, {"device_type", key.second ? "GPU" : "CPU"}},
            static_cast<double>(count.executed));
  }
  Family fallbacks(families, "lgpu_op_placement_fallbacks_total", "Ops that ran elsewhere than asked for.",
                   MetricType::Counter);
  std::map<std::string, std::uint64_t> soft;
  for (const auto& [key, count] : totals.ops) soft[key.first] += count.soft_placed;
  for (const auto& [op, count] : soft) fallbacks.Add({{"op", op}}, static_cast<double>(count));
}

void AddGrantTimes(const GrantTimes::Snapshot& grants, std::vector<MetricFamily>& families) {
  MetricFamily& family = families.emplace_back();
  family.name = "lgpu_allocation_duration_seconds";
  family.help =
      "From a program's request for memory to its grant, waiting included; refused ones do not count.";
  family.type = MetricType::Histogram;
  ClientMetric metric;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < grants.counts.size(); ++i) {
    sum += grants.counts[i];
    if (i < GrantTimes::kBounds.size()) metric.histogram.bucket.push_back({sum, GrantTimes::kBounds[i]});
  }
  metric.histogram.sample_count = sum;
  metric.histogram.sample_sum = grants.sum_seconds;
  family.metric.push_back(std::move(metric));
}

}  // namespace

std::string MetricsText(const v1::StatsSnapshot& snapshot, const MetricTotals& totals) {
  std::vector<MetricFamily> families;
  families.reserve(64);  // a Family keeps a reference into it
  Family(families, "lgpu_build_info", "This daemon.", MetricType::Gauge)
      .Add({{"version", LGPU_VERSION}, {"revision", LGPU_REVISION}, {"backend", totals.backend}}, 1);
  Family(families, "lgpu_uptime_seconds", "Since the daemon started.", MetricType::Gauge)
      .Add({}, snapshot.uptime_seconds());
  Family(families, "lgpu_leases", "Leases there are.", MetricType::Gauge)
      .Add({}, static_cast<double>(snapshot.leases_size()));
  AddCards(snapshot, families);
  AddLoads(snapshot, families);
  AddDevices(snapshot, totals.names_owners, families);
  AddCountsOfNow(snapshot, families);
  AddTotals(snapshot, totals, families);
  AddGrantTimes(totals.grants, families);
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace lgpu::daemon
