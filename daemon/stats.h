#ifndef LGPU_DAEMON_STATS_H_
#define LGPU_DAEMON_STATS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "daemon/broker.h"
#include "daemon/lease_table.h"
#include "daemon/session_state.h"
#include "lgpu/v1/stats.pb.h"

namespace lgpu::daemon {

/// A card of this machine as the registry lists it, served or not.
struct ListedCard {
  int index = 0;
  PhysicalDevice device;
  bool served = false;
  std::string not_served_because;
  bool exact = false;  // what is used of it can be asked for
};

/// A StatsReporter tells what the daemon knows at one moment. Thread-safe.
class StatsReporter {
 public:
  /// All outlive the reporter.
  StatsReporter(std::vector<ListedCard> cards, const Broker& broker, const LeaseTable& leases,
                const SessionDirectory& sessions, const std::atomic<std::uint64_t>& lost)
      : cards_(std::move(cards)), broker_(broker), leases_(leases), sessions_(sessions), lost_(lost) {}

  /// With the leases that the caller may see.
  v1::StatsSnapshot Snapshot(const Caller& caller) const;
  std::vector<v1::CardStats> Cards() const;

 private:
  v1::LeaseStats LeaseToProto(const Lease& lease) const;
  void AddSessions(const Lease& lease, v1::LeaseStats& out) const;

  const std::vector<ListedCard> cards_;
  const Broker& broker_;
  const LeaseTable& leases_;
  const SessionDirectory& sessions_;
  const std::atomic<std::uint64_t>& lost_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_STATS_H_
