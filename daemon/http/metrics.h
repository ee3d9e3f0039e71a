#ifndef LGPU_DAEMON_HTTP_METRICS_H_
#define LGPU_DAEMON_HTTP_METRICS_H_

#include <cstdint>
#include <map>
#include <string>

#include "allocator/broker/release_order.h"
#include "daemon/leases/lease_suspender.h"
#include "daemon/leases/lease_table.h"
#include "daemon/server/event_log.h"
#include "daemon/sessions/grant_times.h"
#include "daemon/sessions/op_counts.h"
#include "lgpu/v1/stats.pb.h"

namespace lgpu::daemon {

/// What /metrics shows beside a snapshot: sums over the daemon's life.
struct MetricTotals {
  std::string backend;  // "simulated" or "cuda"
  EventLog::Counts events;
  LeaseTable::EndCounts ended;
  OpCounts ops;
  GrantTimes::Snapshot grants;
  LeaseSuspender::Counters suspensions = {};
  GivingWayCounters giving_way = {};
  bool names_owners = false;  // else the label `owner` is a word that stands for the user
};

/// The metrics in Prometheus' text format 0.0.4; docs/metrics.md lists them. They are made anew from the
/// snapshot each time, so a series is there as long as what it tells of. Labels have no pid, no user (but
/// with names_owners) and no number that changes; leases whose names the daemon made up are summed as
/// lease="anonymous".
std::string MetricsText(const v1::StatsSnapshot& snapshot, const MetricTotals& totals);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_HTTP_METRICS_H_
