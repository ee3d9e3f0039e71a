#ifndef LGPU_ALLOCATOR_POOL_STREAM_ORDER_H_
#define LGPU_ALLOCATOR_POOL_STREAM_ORDER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lgpu/stream_fences.h"

namespace lgpu {

/// A StreamOrder knows in what order freed memory becomes safe. Pure bookkeeping: its owner calls the fences,
/// without its lock, and passes the results on.
///
/// Frees belong to a stamp, a number that grows. Close ends a stamp: one fence is recorded on each stream
/// that the frees of it were used on. A stamp has passed when its fences and those of all earlier stamps
/// have; then any stream may use memory that was freed under it. Before that
///
///   memory of the home stream, 0, lies in the sub-allocator; the home stream may have it again at once
///   blocks that other streams used wait here (parked); one of a single stream is that stream's at once
///
/// Not thread-safe.
class StreamOrder {
 public:
  explicit StreamOrder(std::uint32_t first_stamp = 1) : stamp_(first_stamp), passed_(first_stamp - 1) {}

  static constexpr StreamId kHome = 0;
  using Streams = std::uint64_t;  // a bit for each
  static Streams Only(StreamId stream) { return Streams{1} << stream; }
  struct Fence {
    StreamId stream = 0;
    std::uint64_t value = 0;
  };

  /// Memory that is freed now belongs to this stamp.
  std::uint32_t stamp() const { return stamp_; }
  /// All stamps up to this one have passed.
  std::uint32_t passed() const { return passed_; }
  /// Streams may still use some freed memory.
  bool is_waiting() const { return used_on_ != 0 || !batches_.empty(); }
  /// A thread is about to record fences of some stamp.
  bool is_recording() const;
  /// There are stamps that are closed and have not passed.
  bool has_batches() const { return !batches_.empty(); }

  /// Memory that `streams` used was freed.
  void NoteFree(Streams streams);
  /// Ends the stamp, if there is anything in it; the owner records a fence on each of the streams, and calls
  /// Recorded, or Unrecorded where that failed: then the next Close names it again.
  struct Closing {
    std::uint32_t stamp = 0;
    Streams streams = 0;
  };
  std::optional<Closing> Close();
  void Recorded(std::uint32_t stamp, std::vector<Fence> fences);
  void Unrecorded(std::uint32_t stamp);
  /// The fences to query next: those of the first stamp that has not passed. Nothing: there is none, or a
  /// thread is recording them.
  struct Waiting {
    std::uint32_t stamp = 0;
    std::uint64_t rebases = 0;
    std::vector<Fence> fences = {};
  };
  std::optional<Waiting> Oldest() const;
  void Passed(const Waiting& waiting);
  /// True while a thread records the fences of the oldest stamp.
  bool IsRecordingOldest() const {
    return !batches_.empty() && !batches_.front().recorded && !batches_.front().failed;
  }

  // Parked blocks, known by their index and generation.
  struct Parked {
    std::uint32_t index = 0;
    std::uint32_t generation = 0;
    std::uint32_t stamp = 0;
    std::uint64_t key = 0;  // its stream and size; zero: several streams used it
  };
  /// TakeParked finds the block by `size` and `streams`.
  void Park(std::uint32_t index, std::uint32_t generation, Streams streams, std::uint32_t size);
  /// A block of exactly `size` that only `stream` used.
  std::optional<Parked> TakeParked(StreamId stream, std::uint32_t size);
  /// The next block whose stamp has passed.
  std::optional<Parked> NextReady();

  // The order between the home stream and other streams.
  /// True if `stream` may use memory that the home stream freed under `stamp`.
  bool IsOrdered(StreamId stream, std::uint32_t stamp) const {
    return stream == kHome || stamp <= passed_ || stamp <= ordered_[stream];
  }
  /// `rebases`: when the stamp was looked at.
  void NoteOrdered(StreamId stream, std::uint32_t stamp, std::uint64_t rebases) {
    if (rebases == rebases_) ordered_[stream] = std::max(ordered_[stream], stamp);
  }
  /// The youngest recorded fence of the home stream that has not passed, and its stamp.
  struct HomeFence {
    std::uint32_t stamp = 0;
    std::uint64_t value = 0;
  };
  std::optional<HomeFence> LastHomeFence() const;

  // Numbers of stamps run out after 2^32, which is days where every upload closes one.
  static constexpr std::uint32_t kManyStamps = std::uint32_t{1} << 31;
  /// The amount by which all stamps, here and wherever its owner keeps them (smaller ones become 0), may be
  /// lowered now; 0: there is no need, or a thread is about to record a stamp.
  std::uint32_t SmallerBy() const { return stamp_ < kManyStamps || is_recording() ? 0 : passed_; }
  void Rebase(std::uint32_t by);
  /// The number of rebases. A stamp that is kept without the owner's lock is kept with this number.
  std::uint64_t rebases() const { return rebases_; }

 private:
  struct Batch {
    std::uint32_t stamp = 0;
    Streams streams = 0;
    bool recorded = false;
    bool failed = false;
    std::vector<Fence> fences = {};
  };
  Batch* FindBatch(std::uint32_t stamp);

  std::uint32_t stamp_;
  std::uint64_t rebases_ = 0;
  std::uint32_t passed_;
  Streams used_on_ = 0;
  std::deque<Batch> batches_;  // by stamp
  std::deque<Parked> parked_;  // by stamp
  absl::flat_hash_map<std::uint64_t, std::deque<Parked>> by_size_;
  std::array<std::uint32_t, kMaxStreams> ordered_{};
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_STREAM_ORDER_H_
