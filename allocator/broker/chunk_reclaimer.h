#ifndef LGPU_ALLOCATOR_BROKER_CHUNK_RECLAIMER_H_
#define LGPU_ALLOCATOR_BROKER_CHUNK_RECLAIMER_H_

#include <map>
#include <set>
#include <span>
#include <vector>

#include "allocator/broker/broker_core.h"
#include "allocator/broker/spare_chunks.h"

namespace lgpu {

/// A ChunkReclaimer frees chunks that are leaving, through the backend, and asks again about those that the
/// backend did not confirm. Preallocated devices get new chunks in place of those that sessions gave back.
///
/// Thread-safe: it takes the broker's lock, and calls the backend without it. The core and `spare` outlive
/// it.
class ChunkReclaimer {
 public:
  /// Chunks that are freed between two looks at the requests that wait.
  static constexpr std::size_t kBatch = 64;

  ChunkReclaimer(BrokerCore& core, SpareChunks& spare) : core_(core), spare_(spare) {}

  /// Frees chunks that are leaving. RetryUnconfirmed asks again about those that are not confirmed.
  void Reclaim(const std::vector<ChunkId>& chunks);
  /// As Broker::RetryUnconfirmed.
  bool RetryUnconfirmed();

 private:
  using Results = std::map<ChunkId, absl::Status>;
  /// The unconfirmed chunks to ask about now, and which of them an earlier daemon granted.
  struct Pending {
    std::vector<std::pair<ChunkId, ChunkEntry>> chunks;
    std::vector<ChunkId> lost;
  };
  void ReclaimBatch(std::span<const ChunkId> chunks, const Results& lost);
  /// Takes the backend's answers about chunks, and serves the requests that wait for their cards.
  void Settle(std::span<const ChunkId> chunks, std::span<const absl::Status> results,
              ChunkTable::Missing& missing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void MakeAgain(const ChunkTable::Missing& missing);
  Pending TakePending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Asks the backend about those of `chunks` that an earlier daemon granted: what it said of each.
  Results ReclaimLost(const std::vector<ChunkId>& chunks);
  bool LooksFree(const ChunkEntry& chunk);
  /// What the real cards of `chunks`, which are about to be released, report.
  std::map<CardId, CardReport> ReportBefore(const std::vector<ChunkId>& chunks);
  /// The doubted chunks that their cards have back.
  std::set<ChunkId> LookAtCards();

  BrokerCore& core_;
  SpareChunks& spare_;
  bool retrying_ ABSL_GUARDED_BY(core_.mutex) = false;  // a thread is in RetryUnconfirmed
  Broker::TimePoint lost_retry_at_ ABSL_GUARDED_BY(core_.mutex);
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_CHUNK_RECLAIMER_H_
