#ifndef LGPU_DAEMON_SESSIONS_PLACEMENT_LOG_H_
#define LGPU_DAEMON_SESSIONS_PLACEMENT_LOG_H_

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "daemon/leases/ids.h"
#include "daemon/sessions/op_counts.h"
#include "lgpu/v1/control.pb.h"
#include "proto/wire/pages.h"
#include "proto/wire/placement_ring.h"

namespace lgpu::daemon {

/// A PlacementLog has the ops of one lease: totals by device, op and type, and the last records; and its
/// copies: totals by source and target, and the last records. Clients cannot make it grow beyond a fixed
/// size. Thread-safe.
class PlacementLog {
 public:
  static constexpr std::size_t kMaxTotals = 4096;  // distinct (device, op, type); more are counted as dropped

  explicit PlacementLog(std::size_t kept) : kept_(kept) {}

  /// A checked record, without its sequence.
  struct Record {
    SessionId session;
    std::int64_t pid = 0;
    std::string op;
    PlacementEntry entry;
  };
  void Add(const std::vector<Record>& records, std::uint64_t dropped);

  struct Counts {
    std::uint64_t records = 0;
    std::uint64_t dropped = 0;
  };
  Counts counts() const;
  /// When the last op was submitted, never in the future; nothing: no record has come.
  std::optional<std::chrono::system_clock::time_point> last_at() const;
  /// Adds the totals of the ops to `counts`.
  void AddTo(OpCounts& counts) const;
  /// Everything but the lease's names. `max_records` 0: all that are kept.
  v1::PlacementReport Report(std::size_t max_records) const;

  /// How far a reader has come: the sequences of the last op and the last copy that it has read.
  struct Position {
    std::uint64_t op = 0;
    std::uint64_t copy = 0;
  };
  struct Batch {
    std::vector<v1::PlacementRecord> records;
    Position last;
    bool closed = false;
  };
  /// At most `max` kept records after `after`, ops and copies in the order in which they came.
  Batch Read(const Position& after, std::size_t max) const;
  /// Before the last `max_records` ops and as many copies (0: before all that are kept).
  Position Before(std::size_t max_records) const;
  /// No more records come: a reader of the last one is told so.
  void Close();

 private:
  struct Key {
    std::uint16_t device;
    std::uint16_t dtype;
    std::string op;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Total {
    std::uint64_t count = 0;
    std::uint64_t output_bytes = 0;
    std::uint64_t host_ns = 0;
    std::uint64_t soft_placed = 0;
  };
  using CopyKey = std::pair<std::uint16_t, std::uint16_t>;  // source, target
  struct CopyTotal {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    std::uint64_t host_ns = 0;
  };
  struct Kept {
    Record record;
    std::uint64_t order = 0;  // among ops and copies
  };
  void AddCopy(const Record& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddOp(const Record& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReportCopies(std::size_t max_records, v1::PlacementReport& report) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::size_t kept_;
  mutable Mutex mutex_;
  std::map<Key, Total> totals_ ABSL_GUARDED_BY(mutex_);
  std::deque<Kept> records_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t total_ ABSL_GUARDED_BY(mutex_) = 0;                   // the sequence of the last record
  std::map<CopyKey, CopyTotal> copy_totals_ ABSL_GUARDED_BY(mutex_);  // at most one for each pair of devices
  std::deque<Kept> copies_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t copies_total_ ABSL_GUARDED_BY(mutex_) = 0;  // the sequence of the last copy
  std::uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<std::chrono::system_clock::time_point> last_at_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

/// A PlacementReader takes the records out of one session's ring. The page is the client's: every number is
/// checked, every step bounded. `page` outlives it. Thread-safe.
class PlacementReader {
 public:
  PlacementReader(const ClientPage* page, SessionId session, std::int64_t pid)
      : page_(page), session_(session), pid_(pid), ring_(&page->ring) {}

  /// Moves the ring's records, at most two laps of it, into `log`; `devices`: how many the lease has.
  void Drain(PlacementLog& log, int devices);
  /// When the last op or copy that was drained was submitted, never in the future; nothing: there was none.
  std::optional<std::chrono::system_clock::time_point> last_at() const;
  /// The client is gone: slots that were being written stay so. Call before the last Drain.
  void WriterIsGone();
  /// The ring is a copy of one that an earlier daemon read.
  void BeginWithLastLap();

 private:
  bool IsSensible(const PlacementEntry& entry, int devices) const;

  const ClientPage* const page_;
  const SessionId session_;
  const std::int64_t pid_;
  mutable Mutex mutex_;
  PlacementRingReader ring_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;  // as ring_ counts
  std::optional<std::chrono::system_clock::time_point> last_at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SESSIONS_PLACEMENT_LOG_H_
