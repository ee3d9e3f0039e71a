#ifndef LGPU_ALLOCATOR_BROKER_OVERHEAD_TABLE_H_
#define LGPU_ALLOCATOR_BROKER_OVERHEAD_TABLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "allocator/broker/broker_tables.h"
#include "allocator/broker/card_observer.h"
#include "allocator/broker/card_watch.h"

namespace lgpu {

/// An OverheadTable accounts for memory of cards that lies in no chunk: a process's allowance from the start,
/// and what the card's report says of it as soon as there is one. A program takes its driver's memory whether
/// the card has room or not, so no session is refused for it: as much as there is room for is charged.
///
/// Not thread-safe: the broker's lock guards it. The tables outlive it.
class OverheadTable {
 public:
  explicit OverheadTable(BrokerTables& tables) : tables_(tables) {}

  /// Charges what the session's process takes on the cards of its lease.
  void Charge(SessionEntry& session);
  /// Returns the cards that have memory back.
  std::set<CardId> Refund(SessionEntry& session);
  /// What the process may have of the card, as Charge is to charge it after Refund.
  Bytes WantedBy(std::int64_t pid, CardId card) const;
  /// The process, which is charged, is expected to have as much again.
  void Expect(std::int64_t pid, CardId card, Bytes wanted);
  /// Takes a card's report. Returns what each process uses beside chunks and charges.
  std::map<std::int64_t, Bytes> Observe(CardId card, const CardReport& report);
  /// What each process has charged of the card, or was granted there.
  std::map<std::int64_t, Bytes> HeldOn(CardId card) const;
  /// Counts the readings in which a process uses more than it has charged, was granted, and its overhead may
  /// be. `beside`: as Observe returned it. `held`: as HeldOn returned it before the report was made. Memory
  /// that a process had charged since the reading before counts as charged: the report may have it still.
  void NoteUncharged(CardId card, const CardReport& report, std::map<std::int64_t, Bytes> beside,
                     std::map<std::int64_t, Bytes> held);

  /// What the sessions of a process that are not draining may use of a card: all that they hold, and one
  /// context if a session of them uses the card.
  Bytes AccountedTo(std::int64_t pid, CardId card) const;
  std::vector<CardObserver::Uncharged> Uncharged() const;
  CardObserver::Overheads Overheads() const;
  /// Processes without a session on the card; null: no report of the card was taken.
  const std::vector<DeviceMemory::ProcessMemory>* OutsidersOf(CardId card) const;

 private:
  // Of a process on a card: its sessions there share one context.
  struct Overhead {
    int sessions = 0;
    Bytes wanted;   // the allowance, and what was measured as soon as it is
    Bytes charged;  // as far as there was room
  };
  struct Beyond {
    int readings = 0;
    Bytes beside;
  };
  void Charge(CardId card, Overhead& overhead);
  /// What is set aside for a process that the report does not list.
  Bytes UnlistedOf(CardId card, std::int64_t pid) const;
  std::map<std::int64_t, Bytes> BesideChunksOf(CardId card, const CardReport& report) const;

  BrokerTables& tables_;
  std::map<std::pair<std::int64_t, CardId>, Overhead> overheads_;
  std::map<CardId, std::vector<DeviceMemory::ProcessMemory>> outsiders_;
  std::map<std::pair<CardId, std::int64_t>, Beyond> uncharged_;
  std::map<CardId, std::map<std::int64_t, Bytes>> charged_before_;  // by pid, at the reading before
  std::map<CardId, std::set<std::int64_t>> listed_;                 // of cards with processes in uncharged_
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_OVERHEAD_TABLE_H_
