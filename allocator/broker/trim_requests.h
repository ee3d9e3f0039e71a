#ifndef LGPU_ALLOCATOR_BROKER_TRIM_REQUESTS_H_
#define LGPU_ALLOCATOR_BROKER_TRIM_REQUESTS_H_

#include <span>
#include <vector>

#include "allocator/broker/broker_tables.h"
#include "allocator/broker/session_trims.h"
#include "allocator/broker/trim_table.h"
#include "allocator/broker/waiter.h"

namespace lgpu {

/// A TrimRequests asks sessions to return idle chunks, for requests that are short of memory, for limits that
/// were lowered, and for people. TrimTable decides which session is next.
///
/// Not thread-safe: the broker's lock guards it. The tables outlive it.
class TrimRequests {
 public:
  explicit TrimRequests(BrokerTables& tables) : tables_(tables) {}

  // For requests.
  /// Asks the next session for what is missing under the limit; true while an answer may help.
  bool AskUnderLimit(Waiter& waiter, Bytes missing);
  /// Asks the next session whose idle memory the card would get back; not for what `session` holds of
  /// `device`.
  void AskOnCard(TrimTable::Need& need, CardId card, LogicalId device, SessionId session, Bytes missing);
  bool IsHopeful(const TrimTable::Need& need, CardId card, LogicalId device, SessionId session) const;
  /// Sessions other than the request's may have idle memory of its card.
  bool HasHolders(const Waiter& waiter) const;
  /// Asks all sessions that hold memory of a device that is over its limit.
  void AskForExcess(LogicalId device);

  // For people: as Start and Continue of SessionTrims, but without allowances.
  void Start(std::span<const LogicalId> devices, SessionTrims::Request& request);
  void Continue(SessionTrims::Request& request);

  // Orders and answers.
  std::vector<TrimOrder> TakeOrders(SessionId session) { return orders_.Take(session); }
  absl::StatusOr<LogicalId> Answer(SessionId session, TrimId trim, bool pending) {
    return orders_.Answer(session, trim, pending, tables_.now());
  }
  std::vector<SessionTrims::Ignored> TakeIgnored();
  bool Ignores(SessionId session) const { return orders_.Ignores(session); }
  std::uint64_t orders() const { return orders_.orders(); }
  /// The session is not asked any more, also not to run a release hook.
  void Stop(SessionId session);

 private:
  std::vector<TrimTable::Holder> LimitHolders(LogicalId device, SessionId except) const;
  std::vector<TrimTable::Holder> CardHolders(CardId card, LogicalId device, SessionId session) const;
  bool Ask(TrimTable::Need& need, std::vector<TrimTable::Holder> holders, Bytes missing);
  void AskPart(SessionTrims::Request::Asked& asked, SessionTrims::Request::Part& part);

  BrokerTables& tables_;
  TrimTable orders_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_TRIM_REQUESTS_H_
