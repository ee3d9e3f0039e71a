#ifndef LGPU_DAEMON_SERVER_EVENT_LOG_H_
#define LGPU_DAEMON_SERVER_EVENT_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "lgpu/refusal.h"
#include "lgpu/v1/events.pb.h"

namespace lgpu::daemon {

/// An EventLog keeps the last events, numbered by a sequence that rises by one. Where it is full, the oldest
/// event goes of the owner with the most, so that no user can push out other users' events. Watchers read
/// it by sequence, so a slow one costs nothing: missed events are counted and told. Thread-safe.
class EventLog {
 public:
  explicit EventLog(std::size_t kept) : kept_(kept == 0 ? 1 : kept) {}

  /// Adds an event; its sequence and time are filled in here. `owner` may see it besides root; nothing:
  /// every user may.
  void Append(v1::Event event, std::optional<std::uint32_t> owner);

  struct Batch {
    std::vector<v1::Event> events;    // that `uid` may see
    std::uint64_t last_sequence = 0;  // to ask from next time
    std::uint64_t lost = 0;           // no longer kept, of any owner
    bool closed = false;              // and nothing more will come
  };
  /// At most `max` events after `after`. A sequence from the future (of an earlier daemon) counts as the
  /// last one.
  Batch Read(std::uint64_t after, std::uint32_t uid, std::size_t max) const;

  std::uint64_t last_sequence() const;

  /// Over the log's life.
  struct Counts {
    std::map<RefusalReason, std::uint64_t> refusals;
  };
  Counts counts() const;
  /// No more events come: a reader of the last one is told so.
  void Close();

 private:
  using Owner = std::optional<std::uint32_t>;  // nothing: every user
  struct Entry {
    v1::Event event;
    Owner owner;
  };
  void DropOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::size_t kept_;
  mutable Mutex mutex_;
  std::map<std::uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);                // by sequence
  std::map<Owner, std::deque<std::uint64_t>> of_owners_ ABSL_GUARDED_BY(mutex_);  // no line is empty
  std::uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_EVENT_LOG_H_
