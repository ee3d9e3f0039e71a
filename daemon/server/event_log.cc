#include "daemon/server/event_log.h"

#include <algorithm>
#include <chrono>
#include <iterator>
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
  if (event.has_refusal()) ++counts_.refusals[RefusalFromProto(event.refusal()).reason];
  of_owners_[owner].push_back(last_);
  entries_.emplace(last_, Entry{std::move(event), owner});
  if (entries_.size() > kept_) DropOne();
}

void EventLog::DropOne() {
  const auto most = std::max_element(
      of_owners_.begin(), of_owners_.end(),
      [](const auto& one, const auto& other) { return one.second.size() < other.second.size(); });
  entries_.erase(most->second.front());
  most->second.pop_front();
  if (most->second.empty()) of_owners_.erase(most);
}

EventLog::Batch EventLog::Read(std::uint64_t after, std::uint32_t uid, std::size_t max) const {
  Batch batch;
  MutexLock lock(mutex_);
  after = std::min(after, last_);
  std::uint64_t seen = 0;
  auto entry = entries_.upper_bound(after);
  for (; entry != entries_.end() && batch.events.size() < max; ++entry, ++seen) {
    if (uid == 0 || !entry->second.owner || *entry->second.owner == uid) {
      batch.events.push_back(entry->second.event);
    }
  }
  batch.last_sequence = entry == entries_.end() ? last_ : std::prev(entry)->first;
  batch.lost = batch.last_sequence - after - seen;
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
