#ifndef LGPU_DAEMON_LEASES_LEASE_TRIM_H_
#define LGPU_DAEMON_LEASES_LEASE_TRIM_H_

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/session_trims.h"
#include "daemon/leases/lease_table.h"
#include "daemon/sessions/session_state.h"
#include "lgpu/v1/control.pb.h"

namespace lgpu::daemon {

/// A LeaseTrim asks the sessions of leases for idle memory, and tells the result for each lease. Sessions
/// have until its deadline to answer. No thread waits. Not thread-safe.
class LeaseTrim {
 public:
  using Clock = std::chrono::steady_clock;
  struct Parts {
    const LeaseTable& leases;
    Broker& broker;
    const SessionDirectory& sessions;
  };
  /// Asks the sessions. The members of `parts` outlive the LeaseTrim. NOT_FOUND: the caller has no such
  /// lease; no session was asked.
  static absl::StatusOr<std::unique_ptr<LeaseTrim>> Start(const Parts& parts, const Caller& caller,
                                                          const v1::TrimLeasesRequest& request);

  /// The leases whose sessions have all answered since the last call; at the deadline all that are left. To
  /// be called often.
  std::vector<v1::LeaseTrim> Take();
  bool is_over() const { return open_.empty(); }

 private:
  struct Open {
    std::string id, name, owner;
    std::vector<LogicalId> devices;
    SessionTrims::Request request;
  };
  LeaseTrim(const Parts& parts, Clock::time_point deadline) : parts_(parts), deadline_(deadline) {}
  v1::LeaseTrim Describe(const Open& open) const;
  void AddSession(SessionId session, v1::LeaseTrim::Answer answer, Bytes returned, v1::LeaseTrim& out) const;

  const Parts parts_;
  const Clock::time_point deadline_;
  std::vector<Open> open_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_LEASE_TRIM_H_
