#ifndef LGPU_DAEMON_SERVER_UNCHARGED_WATCH_H_
#define LGPU_DAEMON_SERVER_UNCHARGED_WATCH_H_

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "allocator/broker/broker.h"
#include "allocator/broker/card_observer.h"
#include "daemon/leases/lease_table.h"
#include "daemon/sessions/session_state.h"

namespace lgpu::daemon {

/// An UnchargedWatch enforces `memory.on_uncharged` on programs of leases that use more of a GPU than they
/// have charged or were granted: it reports them, stops grants to their lease while they do, or ends them.
/// Programs are a lease's if they are attached to it or descend from a process that is. It does nothing where
/// an MPS server is on the card, whose clients the driver does not tell apart. One thread.
class UnchargedWatch {
 public:
  /// All outlive it. `action`: "report", "stop" or "kill".
  UnchargedWatch(Broker& broker, LeaseTable& leases, const SessionDirectory& sessions, std::string action)
      : broker_(broker), leases_(leases), sessions_(sessions), action_(std::move(action)) {}
  /// After each reading of the cards.
  void Look();

 private:
  /// None: a stranger.
  LeaseKey LeaseOf(std::int64_t pid) const;
  /// The command of an attached program, else the kernel's name of the process.
  std::string ProgramOf(std::int64_t pid) const;
  /// What the memory is, as far as that is known, as a part of the report.
  std::string ReasonOf(const CardObserver::Uncharged& use) const;
  void Act(const CardObserver::Uncharged& use, LeaseKey lease);

  Broker& broker_;
  LeaseTable& leases_;
  const SessionDirectory& sessions_;
  const std::string action_;
  std::set<std::int64_t> told_;  // pids
  std::set<LeaseKey> stopped_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_UNCHARGED_WATCH_H_
