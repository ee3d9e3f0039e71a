#include "allocator/trim_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lgpu {

TrimTable::Asked TrimTable::Ask(Need& need, std::vector<Holder> holders, Bytes missing, TimePoint now) {
  if (need.round != 0 && !IsHopeful(need, holders)) {
    if (!need.next_round) {
      need.next_round = now + kNextRound;
    }
    if (now < *need.next_round) {
      need.look_again = *need.next_round;
      return {};
    }
    need.round = 0;
  }
  if (need.round == 0) {
    need.round = ++last_round_;
    need.next_round.reset();
  }
  std::sort(holders.begin(), holders.end(),
            [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  Asked asked;
  const Holder* next = nullptr;
  for (const Holder& holder : holders) {
    const auto found = states_.find({holder.who, holder.device});
    if (found == states_.end()) {
      next = next == nullptr ? &holder : next;
    } else if (found->second.open) {
      asked.hope = true;
      if (now < found->second.asked_at + kPatience) {
        need.look_again = found->second.asked_at + kPatience;
        return asked;
      }
    } else if (found->second.tried_in < need.round) {
      asked.hope = true;
      next = next == nullptr && now >= found->second.not_before ? &holder : next;
    }
  }
  need.look_again = now + kPatience;
  if (next != nullptr) {
    AskAlso(*next, missing, now);
    asked.hope = true;
    asked.whom = next->who;
  }
  return asked;
}

bool TrimTable::AskAlso(const Holder& holder, Bytes missing, TimePoint now) {
  State& state = states_[{holder.who, holder.device}];
  if (state.open) {
    return false;
  }
  state.open = TrimId{++last_id_};
  state.asked_at = now;
  state.asked_in = last_round_;
  orders_[holder.who].push_back(
      {.id = state.open, .device = holder.device, .bytes = std::min(missing, holder.bytes)});
  return true;
}

bool TrimTable::IsHopeful(const Need& need, const std::vector<Holder>& holders) const {
  return std::any_of(holders.begin(), holders.end(), [&](const Holder& holder) {
    const auto found = states_.find({holder.who, holder.device});
    return found == states_.end() || found->second.open || found->second.tried_in < need.round;
  });
}

std::vector<TrimTable::Order> TrimTable::Take(HolderId who) {
  const auto found = orders_.find(who);
  if (found == orders_.end()) {
    return {};
  }
  std::vector<Order> orders = std::move(found->second);
  orders_.erase(found);
  return orders;
}

absl::StatusOr<LogicalId> TrimTable::Answer(HolderId who, TrimId id, bool pending, TimePoint now) {
  const auto from = states_.lower_bound({who, LogicalId()});
  const auto found = std::find_if(from, states_.end(), [&](const auto& entry) {
    return entry.first.first != who || entry.second.open == id;
  });
  if (!id || found == states_.end() || found->first.first != who) {
    return absl::InvalidArgumentError(
        absl::StrCat("Trimmed ", id.value, " answers nothing that this session was asked for"));
  }
  State& state = found->second;
  state.open = TrimId();
  if (pending) {
    state.not_before = now + kPatience;
  } else {
    state.tried_in = state.asked_in;
  }
  return found->first.second;
}

void TrimTable::Forget(HolderId who) {
  orders_.erase(who);
  states_.erase(states_.lower_bound({who, LogicalId()}),
                states_.lower_bound({HolderId{who.value + 1}, LogicalId()}));
}

}  // namespace lgpu
