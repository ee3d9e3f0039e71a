#ifndef LGPU_ALLOCATOR_BROKER_ASKER_ACCOUNTS_H_
#define LGPU_ALLOCATOR_BROKER_ASKER_ACCOUNTS_H_

#include <chrono>
#include <compare>
#include <map>
#include <optional>
#include <string>

#include "allocator/broker/broker_tables.h"
#include "allocator/broker/waiting_requests.h"

namespace lgpu {

/// AskerAccounts say for how long leases gave way for which request, and which users pay for that.
///
/// A request that its program gives up before it is served makes its user pay: for as long as leases gave way
/// for it, and for kLeastPaid at least, no request of that user makes a lease give way. So does a program
/// that ends while it waits. A request whose user is not known is paid for by its lease. One that is served,
/// or that lgpud refuses, costs nothing.
///
/// Not thread-safe: the broker's lock guards them. The tables outlive them.
class AskerAccounts {
 public:
  static constexpr std::chrono::seconds kLeastPaid{1};

  AskerAccounts(const BrokerTables& tables, const WaitingRequests& waiting)
      : tables_(tables), waiting_(waiting) {}

  /// Leases are asked for the request.
  void Begin(WaiterId id, const Waiter& waiter);
  /// No lease gives way for it any more.
  void End(WaiterId id);
  /// The request has what it asked for by other means: its user does not pay.
  void Forgive(WaiterId id);
  /// Closes the accounts of requests that wait for their card no more. To be called after each that left.
  void Settle();
  /// Whether leases may be asked for the request: its user does not pay for another one now.
  bool MayAsk(const Waiter& waiter) const;
  /// For how long the requests of closed accounts waited while leases gave way for them.
  Broker::TimePoint::duration waited() const { return waited_; }

 private:
  struct Payer {
    std::string user;
    LeaseKey lease;  // where the user is not known
    friend auto operator<=>(const Payer&, const Payer&) = default;
  };
  struct Account {
    Payer payer;
    Broker::TimePoint began;
    std::optional<Broker::TimePoint> ended = {};
    bool is_forgiven = false;
  };

  Payer PayerOf(const Waiter& waiter) const;
  bool WasGivenUp(WaiterId id) const;
  bool WaitsForCard(WaiterId id) const;

  const BrokerTables& tables_;
  const WaitingRequests& waiting_;
  std::map<WaiterId, Account> accounts_;
  std::map<Payer, Broker::TimePoint> pays_until_;
  Broker::TimePoint::duration waited_{};
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_ASKER_ACCOUNTS_H_
