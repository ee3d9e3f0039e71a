#ifndef LGPU_ALLOCATOR_BROKER_UNRETURNED_MEMORY_H_
#define LGPU_ALLOCATOR_BROKER_UNRETURNED_MEMORY_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "allocator/broker/broker_tables.h"
#include "allocator/broker/card_watch.h"

namespace lgpu {

/// A UnreturnedMemory finds chunks of real cards that programs gave back and still keep: it compares what a
/// card reports before and after. Its caller takes the reports, without the lock.
///
/// Not thread-safe: the broker's lock guards it. The tables outlive it.
class UnreturnedMemory {
 public:
  explicit UnreturnedMemory(BrokerTables& tables) : tables_(tables) {}

  /// The real cards of `chunks`, with their numbers in the backend.
  std::map<CardId, int> RealCardsOf(const std::vector<ChunkId>& chunks) const;
  /// The backend is about to drop `chunks`. `reports`: of their cards, from before.
  void StartRelease(const std::vector<ChunkId>& chunks, const std::map<CardId, CardReport>& reports);
  /// Makes the results of dropped chunks UNAVAILABLE for which the card's memory has not risen.
  void Doubt(CardId card, const CardReport& before, const CardReport& after,
             const std::vector<ChunkId>& chunks, std::vector<absl::Status>& results);
  /// The backend said what became of the chunk.
  void EndRelease(ChunkId chunk) { releasing_.erase(chunk); }

  /// The cards to look at now, with their numbers in the backend.
  std::vector<std::pair<CardId, int>> CardsToLookAt();
  /// The doubted chunks that the card has back; null: the card has no report any more.
  std::set<ChunkId> Back(CardId card, const CardReport* report);
  bool Watches(CardId card) const { return watches_.contains(card); }
  bool is_idle() const { return watches_.empty(); }
  std::vector<Broker::Unreturned> TakeUnreturned();

 private:
  /// What the ledger and the table of chunks say of a card.
  struct Sums {
    Bytes chunks;  // all that exist, but for `coming`
    Bytes coming;  // chunks that the backend dropped and that are not confirmed
    std::set<std::int64_t> suspects;
  };
  Sums SumsOf(CardId card) const;
  bool IsComing(ChunkId id) const;
  void CountUnreturned(ChunkEntry& chunk);

  BrokerTables& tables_;
  std::map<CardId, CardWatch> watches_;  // of cards with memory coming back
  std::set<ChunkId> releasing_;          // the backend is dropping them
  std::map<CardId, Broker::TimePoint> late_looks_;
  std::map<SessionId, Broker::Unreturned> unreturned_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_UNRETURNED_MEMORY_H_
