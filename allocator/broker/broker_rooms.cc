// Guarantees that are set aside for leases which are made or resized. They wait in the queue of their card,
// beside the requests of sessions.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker.h"
#include "base/check.h"

namespace lgpu {

bool Broker::TryRoom(WaiterId id, CardQueue& queue) {
  Room& room = *rooms_.at(id);
  if (queue.HoldsBack(id) || room.bytes > ledger_.View(room.card).free()) {
    return false;
  }
  room.status = room.attempt();
  if (absl::IsResourceExhausted(room.status)) {
    return false;
  }
  EndRoom(id, room);
  return true;
}

void Broker::EndRoom(WaiterId id, Room& room) {
  room.over = true;
  queues_.at(room.card).Leave(id, now_());
  rooms_.erase(id);
}

absl::Status Broker::MakeRoom(CardId card, const std::string& user, Bytes guarantee, TimePoint deadline,
                              absl::FunctionRef<absl::Status()> attempt) {
  CardQueue& queue = queues_.at(card);
  Room room{.card = card,
            .user = user,
            .bytes = RoundUp(guarantee, cards_.at(card).device.granularity),
            .since = now_(),
            .attempt = attempt};
  if (queue.IsTurnOver(now_())) {
    ServeUnlocked(card);
  }
  room.status = absl::ResourceExhaustedError("the card's free memory is held back for another request");
  if (!queue.turn() || guarantee.is_zero()) {
    room.status = attempt();
  }
  if (!absl::IsResourceExhausted(room.status) || stopping_ || now_() >= deadline) {
    return room.status;
  }
  const WaiterId id{++last_waiter_};
  rooms_.emplace(id, &room);
  queue.Join(id, user);
  while (!room.over && !stopping_ && now_() < deadline) {
    ServeUnlocked(card);
    // Every thread that changes the card tries `attempt`, so no change is missed here.
    if (!room.over) {
      const TimePoint next = std::min(deadline, queue.NextChange(now_()).value_or(deadline));
      freed_.WaitUntil(mutex_, std::min(next, std::max(room.need.look_again, now_() + TrimTable::kPatience)));
    }
  }
  if (!room.over) {
    EndRoom(id, room);
    ServeUnlocked(card);
  }
  return room.status;
}

void Broker::ServeUnlocked(CardId card) {
  Wakes wakes;
  Serve(card, wakes);
  mutex_.Unlock();
  WakeAll(wakes);
  mutex_.Lock();
}

WaiterId Broker::QueueRoom(const RoomSpec& spec) {
  MutexLock lock(mutex_);
  const WaiterId id{++last_waiter_};
  const Bytes bytes = RoundUp(spec.bytes, cards_.at(spec.card).device.granularity);
  auto ticket = std::make_unique<Ticket>();
  ticket->attempt = [this, spec, bytes, raw = ticket.get()] {
    mutex_.AssertHeld();
    const absl::StatusOr<LogicalId> made =
        ledger_.AddLogical(spec.card, {.limit = bytes, .guarantee = bytes});
    if (!made.ok()) {
      return made.status();
    }
    devices_[*made].spec = {.card = spec.card,
                            .limit = bytes,
                            .guarantee = bytes,
                            .lease = {},
                            .lease_name = spec.lease_name,
                            .owner = spec.owner};
    raw->set_aside = *made;
    return absl::OkStatus();
  };
  ticket->room.emplace(Room{.card = spec.card,
                            .user = spec.owner,
                            .bytes = bytes,
                            .since = now_(),
                            .attempt = ticket->attempt,
                            .lease_name = spec.lease_name,
                            .pid = spec.pid,
                            .patient = true});
  rooms_.emplace(id, &*ticket->room);
  queues_.at(spec.card).Join(id, spec.owner);
  ticket->next_look = now_();
  tickets_.emplace(id, std::move(ticket));
  return id;
}

Broker::RoomView Broker::LookAtRoom(WaiterId id) {
  RoomView view;
  MutexLock lock(mutex_);
  Ticket& ticket = *tickets_.at(id);
  Room& room = *ticket.room;
  CardQueue& queue = queues_.at(room.card);
  if (!room.over && now_() >= ticket.next_look) {
    // Of many requests whose time to look has come one moves the queue on.
    if (served_at_[room.card] <= ticket.next_look) {
      ServeUnlocked(room.card);
    }
    const TimePoint now = now_();
    // As for requests of sessions: so that turns begin and end in time, whichever request looks.
    ticket.next_look = std::min(now + max_drain_, queue.NextChange(now).value_or(now + max_drain_));
    if (queue.turn() && queue.turn()->of == id) {
      ticket.next_look =
          std::min(ticket.next_look, std::max(room.need.look_again, now + TrimTable::kPatience));
    }
  }
  view.is_over = room.over;
  view.status = room.over ? room.status : absl::OkStatus();
  if (room.over || now_() < ticket.next_text) {
    return view;
  }
  ticket.next_text = now_() + kTextEvery;
  const std::vector<WaiterId> order = queue.Order();
  const auto place = static_cast<std::size_t>(std::find(order.begin(), order.end(), id) - order.begin());
  view.place = place + 1;
  view.waiting = order.size();
  view.text = DescribeRoom(room, id, place == 0 ? WaiterId() : order[place - 1]);
  return view;
}

// Names of leases are their owner's business.
std::string Broker::DescribeRoom(const Room& room, WaiterId id, WaiterId before) const {
  const auto request_of = [&](WaiterId other) {
    mutex_.AssertHeld();
    if (const auto found = rooms_.find(other); found != rooms_.end()) {
      return absl::StrCat("user ", found->second->user, "'s request for ", FormatBytes(found->second->bytes));
    }
    const GrowSpec& spec = waiters_.at(other).spec;
    return absl::StrCat("user ", devices_.at(spec.device).spec.owner, "'s request for ",
                        FormatBytes(spec.at_least));
  };
  const CardQueue& queue = queues_.at(room.card);
  const Ledger::CardView card = ledger_.View(room.card);
  std::string text = absl::StrCat(FormatBytes(room.bytes), " on GPU ", cards_.at(room.card).index, ": ");
  if (before) {
    absl::StrAppend(&text, "behind ", request_of(before), "; ");
  }
  if (queue.turn() && queue.turn()->of != id) {
    absl::StrAppend(&text, "what is free is held back for ", request_of(queue.turn()->of), "; ");
  } else if (queue.turn()) {
    absl::StrAppend(&text, "what becomes free is held back for it; ");
  }
  absl::StrAppend(&text, FormatBytesCut(card.free()), " can be promised");
  Refusal holders;
  AddHolders(holders, room.card, LogicalId());
  if (!holders.holders.empty()) {
    const Refusal::Holder& most = holders.holders.front();
    absl::StrAppend(&text, ", user ", most.owner,
                    " has most: ", FormatBytes(std::max(most.held, most.guarantee)));
  }
  return text;
}

void Broker::LeaveRoom(WaiterId id) {
  MutexLock lock(mutex_);
  Ticket& ticket = *tickets_.at(id);
  const CardId card = ticket.room->card;
  const std::optional<CardQueue::Turn>& turn = queues_.at(card).turn();
  // A request that held nothing back stood in the way of none.
  const bool frees = ticket.set_aside || (turn && turn->of == id);
  if (!ticket.room->over) {
    EndRoom(id, *ticket.room);
  }
  ForgetSetAside(ticket);
  tickets_.erase(id);
  if (frees) {
    ServeUnlocked(card);
  }
}

void Broker::ForgetSetAside(Ticket& ticket) {
  if (const LogicalId rest = std::exchange(ticket.set_aside, {})) {
    devices_.at(rest).removed = true;
    ForgetIfEmpty(rest);
  }
}

bool Broker::TakeFromRoom(const DeviceSpec& spec, Bytes guarantee) {
  const auto found = tickets_.find(spec.room);
  if (found == tickets_.end() || !found->second->set_aside || found->second->room->card != spec.card) {
    return false;
  }
  Ticket& ticket = *found->second;
  const Bytes rounded = RoundUp(guarantee, cards_.at(spec.card).device.granularity);
  const Bytes there = ledger_.View(ticket.set_aside).guarantee;
  if (there <= rounded) {
    ForgetSetAside(ticket);
    return there == rounded;
  }
  const absl::Status less =
      ledger_.Resize(ticket.set_aside, {.limit = there - rounded, .guarantee = there - rounded});
  LGPU_CHECK(less.ok());
  return true;
}

}  // namespace lgpu
