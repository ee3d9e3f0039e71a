#ifndef LGPU_DAEMON_SERVER_STATS_H_
#define LGPU_DAEMON_SERVER_STATS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/card_observer.h"
#include "allocator/broker/release_order.h"
#include "base/mutex.h"
#include "daemon/leases/lease_table.h"
#include "daemon/leases/user_names.h"
#include "daemon/server/card_loads.h"
#include "daemon/sessions/session_state.h"
#include "lgpu/v1/stats.pb.h"

namespace lgpu::daemon {

/// A card of this machine as the registry lists it, served or not.
struct ListedCard {
  int index = 0;
  PhysicalDevice device;
  bool served = false;
  std::string not_served_because;
  bool exact = false;  // its memory in use can be read, and is not estimated
};

/// A StatsReporter gives the daemon's statistics at one moment. Thread-safe.
class StatsReporter {
 public:
  /// All outlive the reporter.
  StatsReporter(std::vector<ListedCard> cards, const Broker& broker, const LeaseTable& leases,
                const SessionDirectory& sessions, const CardLoads& loads)
      : cards_(std::move(cards)), broker_(broker), leases_(leases), sessions_(sessions), loads_(loads) {}

  /// With the leases that the caller may see.
  v1::StatsSnapshot Snapshot(const Caller& caller) const;
  /// Without the processes outside lgpu, which are looked up.
  std::vector<v1::CardStats> Cards() const;
  /// The cards that the caller may see.
  std::vector<v1::CardStats> CardsFor(const Caller& caller) const;
  const UserNames& user_names() const { return user_names_; }

 private:
  struct Known {
    std::uint64_t started = 0;
    std::uint32_t uid = 0;
    std::string user;
    std::string command;
  };
  v1::LeaseStats LeaseToProto(const Lease& lease, const CardObserver::Overheads& overheads) const;
  /// `lent`: for charges, by each logical device of the lease.
  void AddCharges(const SessionState& session, const std::vector<Bytes>& lent, v1::LeaseStats& lease,
                  v1::SessionStats& out) const;
  void AddSessions(const Lease& lease, const std::vector<Bytes>& lent,
                   const CardObserver::Overheads& overheads, v1::LeaseStats& out) const;
  void AddForeignProcesses(const Caller& caller, v1::StatsSnapshot& snapshot) const;
  void AddQueues(const Caller& caller, v1::StatsSnapshot& snapshot) const;
  /// What the caller may know of the request that a lease gives way for.
  std::string AskerFor(const Caller& caller, const GivingWayView& view) const;
  /// Names of users may come over a network: they are asked for once.
  Known LookUp(std::int64_t pid) const;

  const std::vector<ListedCard> cards_;
  const Broker& broker_;
  const LeaseTable& leases_;
  const SessionDirectory& sessions_;
  const CardLoads& loads_;
  const UserNames user_names_;
  mutable Mutex known_mutex_;
  mutable std::map<std::int64_t, Known> known_ ABSL_GUARDED_BY(known_mutex_);
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_STATS_H_
