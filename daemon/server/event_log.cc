#include "daemon/server/event_log.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "google/protobuf/util/time_util.h"
#include "proto/refusal_messages.h"

namespace lgpu::daemon {

void EventLog::Append(v1::Event event, std::optional<std::uint32_t> owner) {
  // TimeUtil::GetCurrentTime has whole seconds only.
  *event.mutable_at() = google::protobuf::util::TimeUtil::NanosecondsToTimestamp(
      std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::system_clock::now().time_since_epoch())
          .count());
  MutexLock lock(mutex_);
  event.set_sequence(++last_);
  if (event.has_refusal()) {
    ++counts_.refusals[RefusalFromProto(event.refusal()).reason];
  }
  entries_.push_back({std::move(event), owner});
  if (entries_.size() > kept_) {
    entries_.pop_front();
  }
}

EventLog::Batch EventLog::Read(std::uint64_t after, std::uint32_t uid, std::size_t max) const {
  Batch batch;
  MutexLock lock(mutex_);
  after = std::min(after, last_);
  const std::uint64_t first = last_ + 1 - entries_.size();
  if (after + 1 < first) {
    batch.lost = first - 1 - after;
    after = first - 1;
  }
  batch.last_sequence = after;
  while (batch.last_sequence < last_ && batch.events.size() < max) {
    const Entry& entry = entries_[batch.last_sequence + 1 - first];
    ++batch.last_sequence;
    if (uid == 0 || !entry.owner || *entry.owner == uid) {
      batch.events.push_back(entry.event);
    }
  }
  batch.closed = closed_ && batch.last_sequence == last_;
  return batch;
}

std::uint64_t EventLog::last_sequence() const {
  MutexLock lock(mutex_);
  return last_;
}

EventLog::Counts EventLog::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

void EventLog::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
}

}  // namespace lgpu::daemon
