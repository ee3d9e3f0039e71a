#ifndef LGPU_ALLOCATOR_BROKER_ASKER_ACCOUNTS_H_
#define LGPU_ALLOCATOR_BROKER_ASKER_ACCOUNTS_H_

#include <map>
#include <optional>

#include "allocator/broker/broker_tables.h"
#include "allocator/broker/waiting_requests.h"

namespace lgpu {

/// AskerAccounts say for how long leases gave way for which request.
///
/// Not thread-safe: the broker's lock guards them. The tables outlive them.
class AskerAccounts {
 public:
  AskerAccounts(const BrokerTables& tables, const WaitingRequests& waiting)
      : tables_(tables), waiting_(waiting) {}

  /// Leases are asked for the request.
  void Begin(WaiterId id);
  /// No lease gives way for it any more.
  void End(WaiterId id);
  /// Closes the accounts of requests that wait for their card no more. To be called after each that left.
  void Settle();
  /// For how long the requests of closed accounts waited while leases gave way for them.
  Broker::TimePoint::duration waited() const { return waited_; }

 private:
  struct Account {
    Broker::TimePoint began;
    std::optional<Broker::TimePoint> ended = {};
  };

  const BrokerTables& tables_;
  const WaitingRequests& waiting_;
  std::map<WaiterId, Account> accounts_;
  Broker::TimePoint::duration waited_{};
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_ASKER_ACCOUNTS_H_
