#ifndef LGPU_ALLOCATOR_BROKER_UNRETURNED_MEMORY_H_
#define LGPU_ALLOCATOR_BROKER_UNRETURNED_MEMORY_H_

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "allocator/broker/broker_tables.h"
#include "allocator/broker/card_observer.h"
#include "allocator/broker/card_watch.h"

namespace lgpu {

/// An UnreturnedMemory finds chunks of real cards that programs gave back and still keep: it compares what a
/// card reports before and after. Its caller takes the reports, without the lock. Meanwhile the caller has
/// taken the card: what a card has back can be told only of memory that one thread drops.
///
/// Not thread-safe: the broker's lock guards it. The tables outlive it.
class UnreturnedMemory {
 public:
  explicit UnreturnedMemory(BrokerTables& tables) : tables_(tables) {}

  /// The card is real, and this process has a reference to the chunk.
  bool IsReal(const ChunkEntry& chunk) const;
  /// Takes a card for one thread. False: another thread has it, and chunks of the card are put off.
  bool TakeCard(CardId card);
  bool IsTaken(CardId card) const { return taken_.contains(card); }
  /// Returns whether chunks of the card are put off.
  bool GiveCard(CardId card);
  bool IsPutOff(CardId card) const { return put_off_.contains(card); }
  /// The caller drops what was put off.
  void ForgetPutOff(CardId card) { put_off_.erase(card); }

  /// The backend is about to drop `chunks`. `reports`: of their cards, from before.
  void StartRelease(std::span<const ChunkId> chunks, const std::map<CardId, CardReport>& reports);
  /// Makes the results of dropped chunks UNAVAILABLE for which the card's memory has not risen. Chunks that
  /// no session ever had are free when they are dropped: no program can keep them.
  void Doubt(CardId card, const CardReport& before, const CardReport& after, std::span<const ChunkId> chunks,
             std::vector<absl::Status>& results);

  /// The cards to look at now, with their numbers in the backend: none that a thread has taken.
  std::vector<std::pair<CardId, int>> CardsToLookAt();
  /// The doubted chunks that the card has back; null: the card has no report any more.
  std::set<ChunkId> Back(CardId card, const CardReport* report);
  bool Watches(CardId card) const { return watches_.contains(card); }
  bool is_idle() const { return watches_.empty(); }
  std::vector<CardObserver::Unreturned> TakeUnreturned();

 private:
  /// What the ledger and the table of chunks say of a card.
  struct Sums {
    Bytes chunks;  // all that exist, but for `coming`
    Bytes coming;  // chunks that the backend dropped and did not confirm
    std::set<std::int64_t> suspects;
  };
  Sums SumsOf(CardId card) const;
  bool IsComing(ChunkId id) const;
  void CountUnreturned(ChunkEntry& chunk);

  BrokerTables& tables_;
  std::map<CardId, CardWatch> watches_;  // of cards with memory coming back
  std::set<CardId> taken_;
  std::set<CardId> put_off_;
  std::map<CardId, Broker::TimePoint> late_looks_;
  std::map<SessionId, CardObserver::Unreturned> unreturned_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_UNRETURNED_MEMORY_H_
