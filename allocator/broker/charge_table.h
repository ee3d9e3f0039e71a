#ifndef LGPU_ALLOCATOR_BROKER_CHARGE_TABLE_H_
#define LGPU_ALLOCATOR_BROKER_CHARGE_TABLE_H_

#include <set>
#include <utility>
#include <vector>

#include "allocator/broker/broker_tables.h"
#include "allocator/broker/waiter.h"

namespace lgpu {

/// A ChargeTable counts memory that programs take from the driver themselves. A charge is a number: what is
/// lent to a session on a card counts as held on the logical devices that its lease has there, in whole
/// granules.
///
/// Not thread-safe: the broker's lock guards it. The tables outlive it.
class ChargeTable {
 public:
  static constexpr Bytes kMostAllowance{std::uint64_t{64} << 20};  // of one session on a card

  explicit ChargeTable(BrokerTables& tables) : tables_(tables) {}

  /// How a charge that waits or is asked for would be taken from the devices of its lease: the granules that
  /// it needs beside the rest of those that its session holds on the card. No parts: that rest is enough.
  Ledger::Split SplitOf(const Waiter& waiter) const;
  /// The session may be lent memory of the card.
  CardCharge& Open(SessionId session, CardId card);
  /// The session has the bytes from here on, in `parts`.
  void Book(SessionId session, CardId card, Bytes bytes,
            const std::vector<std::pair<LogicalId, Bytes>>& parts);
  /// A granted charge: what is to be added to the program's words.
  Broker::Lent Lend(const Waiter& waiter, bool card_is_waited_for);

  // Each returns whether the ledger has granules back, which the card's queue is to be served for.
  bool Uncharge(SessionId session, CardId card, Bytes bytes);
  /// Of what was lent to the session `lent` is left.
  bool Lower(SessionId session, CardId card, Bytes lent);
  /// Takes what programs have not used of what was lent to them, on a card, of one lease or (none) of all.
  bool TakeAllowances(CardId card, LeaseKey lease);
  /// What a session was lent on a card and does not use.
  Bytes UnusedOf(SessionId session, CardId card) const;

  // Suspended leases.
  /// What the session has charged of the card is in no account from here on.
  void Park(SessionId session, CardId card);
  /// It is charged again, whatever the card has left.
  void Unpark(SessionId session, CardId card);
  /// What an earlier broker parked.
  void RestoreParked(SessionId session, LogicalId device, Bytes bytes);

  // Draining sessions.
  /// All charges of the session are leaving from here on. Returns their cards.
  std::set<CardId> StartLeaving(SessionEntry& session);
  /// Ends what is beyond `rest` of a charge that is leaving.
  void EndBeyond(SessionId session, CardId card, Bytes rest);

  /// A charge that an earlier broker granted.
  void Restore(SessionId session, LogicalId device, Bytes bytes);
  /// Tells the log what programs gave back since the last call: the next broker need not charge it.
  void LogLess();

 private:
  bool Fit(SessionId session, CardId card);
  bool TakeAllowance(SessionId session, CardId card);
  void LogMore(SessionId session, CardCharge& charge);
  Bytes AllowanceOf(LeaseKey lease, CardId card) const;
  void Hold(SessionId session, LogicalId device, Bytes bytes);
  /// Gives what is held beyond `lent` to `give_back`, device by device, from the last one on.
  template <typename GiveBack>
  bool DropExcess(SessionId session, CardId card, GiveBack give_back);

  BrokerTables& tables_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_CHARGE_TABLE_H_
