#ifndef LGPU_ALLOCATOR_BROKER_CHUNK_RECLAIMER_H_
#define LGPU_ALLOCATOR_BROKER_CHUNK_RECLAIMER_H_

#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
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
  /// Frees spare chunks of one card. `settled` is called with the lock as soon as they are gone or not
  /// confirmed, before requests that wait are looked at. Waits while another thread has taken the card.
  void FreeSpare(const std::vector<ChunkId>& chunks, absl::FunctionRef<void()> settled);
  /// As Broker::RetryUnconfirmed.
  bool RetryUnconfirmed();

 private:
  using Results = std::map<ChunkId, absl::Status>;
  /// The unconfirmed chunks to ask about now, and which of them an earlier daemon granted.
  struct Pending {
    std::vector<std::pair<ChunkId, ChunkEntry>> chunks;
    std::vector<ChunkId> lost;
    std::vector<ChunkId> put_off;  // of real cards: the backend did not drop them yet
  };
  /// Chunks that this thread drops, and the real cards that it has taken for that.
  struct Batch {
    std::vector<ChunkId> chunks;
    std::vector<MemoryHandle> memories;
    std::map<CardId, int> cards;  // with their numbers in the backend
    std::set<CardId> doubted;     // of `cards`: programs had some of the chunks and may have kept them
  };
  /// Its card has to be taken before it is dropped.
  bool NeedsCard(const ChunkEntry& chunk) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Takes the real cards of `chunks`. Chunks of cards that another thread has are put off: RetryUnconfirmed
  /// drops them, so that no caller waits for another one's calls of the driver.
  Batch Take(std::span<const ChunkId> chunks, bool comes_first) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void Give(const Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void ReclaimBatch(std::span<const ChunkId> chunks, const Results& lost, bool is_retry = false);
  /// Takes the backend's answers about chunks. Returns their cards, whose waiting requests are to be served.
  std::set<CardId> Settle(std::span<const ChunkId> chunks, std::span<const absl::Status> results,
                          ChunkTable::Missing& missing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void Serve(const std::set<CardId>& cards) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// The session of a chunk may wait for it to be gone, to close.
  void WakeHolder(ChunkId chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  void MakeAgain(const ChunkTable::Missing& missing);
  Pending TakePending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Asks the backend about those of `chunks` that an earlier daemon granted: what it said of each.
  Results ReclaimLost(const std::vector<ChunkId>& chunks);
  bool LooksFree(const ChunkEntry& chunk);
  /// What the doubted cards of a batch that is about to be dropped report.
  std::map<CardId, CardReport> ReportBefore(const Batch& batch);
  /// The doubted chunks that their cards have back. Cards that another thread has taken are not asked.
  std::set<ChunkId> LookAtCards();

  BrokerCore& core_;
  SpareChunks& spare_;
  bool retrying_ ABSL_GUARDED_BY(core_.mutex) = false;  // a thread is in RetryUnconfirmed
  Broker::TimePoint lost_retry_at_ ABSL_GUARDED_BY(core_.mutex);
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_CHUNK_RECLAIMER_H_
