#include "allocator/broker/trim_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lgpu {

TrimTable::Asked TrimTable::Ask(Need& need, std::vector<Holder> holders, Bytes missing, TimePoint now) {
  if (need.round == 0 || (need.next_round && now >= *need.next_round)) {
    need.round = ++last_round_;
    need.next_round.reset();
  }
  std::sort(holders.begin(), holders.end(),
            [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  Asked asked;
  const Holder* next = nullptr;
  for (const Holder& holder : holders) {
    const auto found = states_.find({holder.session, holder.device});
    if (found == states_.end()) {
      next = next == nullptr ? &holder : next;
    } else if (found->second.open) {
      asked.hope = asked.hope || !found->second.overdue;
      if (now < found->second.asked_at + kPatience) {
        need.look_again = found->second.asked_at + kPatience;
        return asked;
      }
    } else if (!IsExhausted(found->second, holder, need)) {
      asked.hope = true;
      next = next == nullptr && now >= found->second.not_before ? &holder : next;
    }
  }
  if (next != nullptr) {
    Open(*next, missing, need.round, now);
    need.look_again = now + kPatience;
    asked.hope = true;
    asked.session = next->session;
    return asked;
  }
  // A session that is slow to answer does not put the next round off.
  if (!need.next_round) need.next_round = now + kNextRound;
  need.look_again = asked.hope ? std::min(*need.next_round, now + kPatience) : *need.next_round;
  return asked;
}

TrimId TrimTable::AskAlso(const Holder& holder, Bytes missing, TimePoint now) {
  constexpr std::uint64_t kNobodysRound = 0;
  const auto found = states_.find({holder.session, holder.device});
  if (found != states_.end() && found->second.open) return TrimId();
  Open(holder, missing, kNobodysRound, now);
  return TrimId{last_id_};
}

void TrimTable::Open(const Holder& holder, Bytes missing, std::uint64_t round, TimePoint now) {
  State& state = states_[{holder.session, holder.device}];
  state.open = TrimId{++last_id_};
  state.overdue = false;
  state.asked_at = now;
  state.asked_in = round;
  state.held = holder.bytes;
  state.asked = std::min(missing, holder.bytes);
  orders_[holder.session].push_back({.id = state.open, .device = holder.device, .bytes = state.asked});
}

// Who gave all that it was asked for may have more.
bool TrimTable::IsExhausted(const State& state, const Holder& holder, const Need& need) {
  return state.tried_in >= need.round && SaturatingSub(state.held, holder.bytes) < state.asked;
}

bool TrimTable::IsHopeful(const State& state, const Holder& holder, const Need& need) {
  return state.open ? !state.overdue : !IsExhausted(state, holder, need);
}

bool TrimTable::IsHopeful(const Need& need, const std::vector<Holder>& holders) const {
  return std::any_of(holders.begin(), holders.end(), [&](const Holder& holder) {
    const auto found = states_.find({holder.session, holder.device});
    return found == states_.end() || IsHopeful(found->second, holder, need);
  });
}

std::vector<TrimOrder> TrimTable::Take(SessionId session) {
  const auto found = orders_.find(session);
  if (found == orders_.end()) return {};
  std::vector<TrimOrder> orders = std::move(found->second);
  orders_.erase(found);
  return orders;
}

absl::StatusOr<LogicalId> TrimTable::Answer(SessionId session, TrimId id, bool pending, TimePoint now) {
  const auto from = states_.lower_bound({session, LogicalId()});
  const auto found = std::find_if(from, states_.end(), [&](const auto& entry) {
    return entry.first.first != session || entry.second.open == id;
  });
  if (!id || found == states_.end() || found->first.first != session) {
    return absl::InvalidArgumentError(
        absl::StrCat("Trimmed ", id.value, " answers nothing that this session was asked for"));
  }
  State& state = found->second;
  state.open = TrimId();
  state.overdue = false;
  state.pending = pending;
  if (pending) {
    state.not_before = now + kPatience;
  } else {
    state.tried_in = state.asked_in;
  }
  return found->first.second;
}

std::optional<TrimTable::Answered> TrimTable::AnswerTo(SessionId session, LogicalId device, TrimId id) const {
  const auto found = states_.find({session, device});
  if (found == states_.end()) return Answered();
  if (found->second.open == id) return std::nullopt;
  return Answered{.pending = found->second.pending};
}

std::vector<TrimTable::Overdue> TrimTable::TakeOverdue(TimePoint now) {
  std::vector<Overdue> found;
  for (auto& [key, state] : states_) {
    if (state.open && !state.overdue && now >= state.asked_at + kOverdue) {
      state.overdue = true;
      found.push_back({.session = key.first, .asked = state.asked});
    }
  }
  return found;
}

bool TrimTable::Ignores(SessionId session) const {
  const auto from = states_.lower_bound({session, LogicalId()});
  const auto to = states_.lower_bound({SessionId{session.value + 1}, LogicalId()});
  return std::any_of(from, to, [](const auto& entry) { return entry.second.overdue; });
}

void TrimTable::Forget(SessionId session) {
  orders_.erase(session);
  states_.erase(states_.lower_bound({session, LogicalId()}),
                states_.lower_bound({SessionId{session.value + 1}, LogicalId()}));
}

}  // namespace lgpu
