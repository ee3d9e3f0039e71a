#include "allocator/broker/card_queue.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace lgpu {

void CardQueue::Join(WaiterId id, const std::string& user) {
  auto found = users_.find(user);
  if (found == users_.end()) {
    ring_.push_back({.name = user, .line = {}});
    found = users_.emplace(user, std::prev(ring_.end())).first;
  }
  found->second->line.push_back(id);
  LGPU_CHECK(entries_.emplace(id, Entry{.user = found->second}).second);
}

void CardQueue::NoteServed(WaiterId id) { ring_.splice(ring_.end(), ring_, entries_.at(id).user); }

void CardQueue::Leave(WaiterId id, TimePoint now) {
  if (turn_ && turn_->of == id) EndTurn(now);
  const auto entry = entries_.find(id);
  LGPU_CHECK(entry != entries_.end());
  const Ring::iterator user = entry->second.user;
  std::erase(user->line, id);
  if (user->line.empty()) {
    users_.erase(user->name);
    ring_.erase(user);
  }
  entries_.erase(entry);
}

std::vector<WaiterId> CardQueue::Order() const {
  std::vector<WaiterId> order;
  order.reserve(entries_.size());
  for (std::size_t place = 0; order.size() < entries_.size(); ++place) {
    for (const User& user : ring_) {
      if (place < user.line.size()) order.push_back(user.line[place]);
    }
  }
  return order;
}

void CardQueue::StartTurn(WaiterId id, TimePoint now) {
  LGPU_CHECK(MayStartTurn(now) && Contains(id));
  turn_ = Turn{.of = id, .began = now, .ends = now + max_turn_};
}

void CardQueue::EndTurn(TimePoint now) {
  LGPU_CHECK(turn_.has_value());
  // The owner may look later than the turn's end. It lasted no longer for that.
  const TimePoint ended = std::min(now, turn_->ends);
  rest_ends_ = ended + (ended - turn_->began);
  Entry& entry = entries_.at(turn_->of);
  ++entry.turns;
  std::deque<WaiterId>& line = entry.user->line;
  std::erase(line, turn_->of);
  line.push_back(turn_->of);
  ring_.splice(ring_.end(), ring_, entry.user);
  turn_.reset();
}

std::optional<CardQueue::TimePoint> CardQueue::NextChange(TimePoint now) const {
  if (turn_) return turn_->ends;
  return !empty() && now < rest_ends_ ? std::optional(rest_ends_) : std::nullopt;
}

}  // namespace lgpu
