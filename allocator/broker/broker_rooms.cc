// Guarantees that are set aside for leases which are made or resized. They wait
// in the queue of their card, beside the requests of sessions.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker_impl.h"
#include "base/check.h"

namespace lgpu {

bool BrokerImpl::TryRoom(WaiterId id, CardQueue& queue) {
  Room& room = *core_.tables.rooms.at(id);
  if (queue.HoldsBack(id) || room.bytes > core_.tables.ledger.View(room.card).free()) {
    return false;
  }
  room.status = room.attempt();
  if (absl::IsResourceExhausted(room.status)) {
    return false;
  }
  EndRoom(id, room);
  return true;
}

void BrokerImpl::EndRoom(WaiterId id, Room& room) {
  room.over = true;
  core_.tables.queues.at(room.card).Leave(id, core_.now());
  core_.tables.rooms.erase(id);
}

absl::Status BrokerImpl::MakeRoom(CardId card, const std::string& user, Bytes guarantee, TimePoint deadline,
                                  absl::FunctionRef<absl::Status()> attempt) {
  CardQueue& queue = core_.tables.queues.at(card);
  Room room{.card = card,
            .user = user,
            .bytes = RoundUp(guarantee, core_.tables.cards.at(card).device.granularity),
            .since = core_.now(),
            .attempt = attempt};
  if (queue.IsTurnOver(core_.now())) {
    ServeUnlocked(card);
  }
  room.status = absl::ResourceExhaustedError("the card's free memory is held back for another request");
  if (!queue.turn() || guarantee.is_zero()) {
    room.status = attempt();
  }
  if (!absl::IsResourceExhausted(room.status) || core_.tables.stopping || core_.now() >= deadline) {
    return room.status;
  }
  const WaiterId id{++core_.tables.last_waiter};
  core_.tables.rooms.emplace(id, &room);
  queue.Join(id, user);
  while (!room.over && !core_.tables.stopping && core_.now() < deadline) {
    ServeUnlocked(card);
    // Every thread that changes the card tries `attempt`, so no change is
    // missed here.
    if (!room.over) {
      const TimePoint next = std::min(deadline, queue.NextChange(core_.now()).value_or(deadline));
      core_.tables.freed.WaitUntil(
          core_.mutex, std::min(next, std::max(room.need.look_again, core_.now() + TrimTable::kPatience)));
    }
  }
  if (!room.over) {
    EndRoom(id, room);
    ServeUnlocked(card);
  }
  return room.status;
}

void BrokerImpl::ServeUnlocked(CardId card) {
  Serve(card);
  core_.WakeSessions();
}

WaiterId BrokerImpl::QueueRoom(const RoomSpec& spec) {
  BrokerLock lock(core_);
  const WaiterId id{++core_.tables.last_waiter};
  const Bytes bytes = RoundUp(spec.bytes, core_.tables.cards.at(spec.card).device.granularity);
  auto ticket = std::make_unique<Ticket>();
  ticket->attempt = [this, spec, bytes, raw = ticket.get()] {
    core_.mutex.AssertHeld();
    const absl::StatusOr<LogicalId> made =
        core_.tables.ledger.AddLogical(spec.card, {.limit = bytes, .guarantee = bytes});
    if (!made.ok()) {
      return made.status();
    }
    core_.tables.devices[*made].spec = {.card = spec.card,
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
                            .since = core_.now(),
                            .attempt = ticket->attempt,
                            .lease_name = spec.lease_name,
                            .pid = spec.pid,
                            .patient = true});
  core_.tables.rooms.emplace(id, &*ticket->room);
  core_.tables.queues.at(spec.card).Join(id, spec.owner);
  ticket->next_look = core_.now();
  tickets_.emplace(id, std::move(ticket));
  return id;
}

BrokerImpl::RoomView BrokerImpl::LookAtRoom(WaiterId id) {
  RoomView view;
  BrokerLock lock(core_);
  Ticket& ticket = *tickets_.at(id);
  Room& room = *ticket.room;
  CardQueue& queue = core_.tables.queues.at(room.card);
  if (!room.over && core_.now() >= ticket.next_look) {
    // Of many requests whose time to look has come one moves the queue on.
    if (served_at_[room.card] <= ticket.next_look) {
      ServeUnlocked(room.card);
    }
    const TimePoint now = core_.now();
    // As for requests of sessions: so that turns begin and end in time,
    // whichever request looks.
    ticket.next_look =
        std::min(now + core_.tables.max_drain, queue.NextChange(now).value_or(now + core_.tables.max_drain));
    if (queue.turn() && queue.turn()->of == id) {
      ticket.next_look =
          std::min(ticket.next_look, std::max(room.need.look_again, now + TrimTable::kPatience));
    }
  }
  view.is_over = room.over;
  view.status = room.over ? room.status : absl::OkStatus();
  if (room.over || core_.now() < ticket.next_text) {
    return view;
  }
  ticket.next_text = core_.now() + kTextEvery;
  const std::vector<WaiterId> order = queue.Order();
  const auto place = static_cast<std::size_t>(std::find(order.begin(), order.end(), id) - order.begin());
  view.place = place + 1;
  view.waiting = order.size();
  view.text = DescribeRoom(room, id, place == 0 ? WaiterId() : order[place - 1]);
  return view;
}

// Names of leases are their owner's business.
std::string BrokerImpl::DescribeRoom(const Room& room, WaiterId id, WaiterId before) const {
  const auto request_of = [&](WaiterId other) {
    core_.mutex.AssertHeld();
    if (const auto found = core_.tables.rooms.find(other); found != core_.tables.rooms.end()) {
      return absl::StrCat("user ", found->second->user, "'s request for ", FormatBytes(found->second->bytes));
    }
    const GrowSpec& spec = core_.tables.waiters.at(other).spec;
    return absl::StrCat("user ", core_.tables.devices.at(spec.device).spec.owner, "'s request for ",
                        FormatBytes(spec.at_least));
  };
  const CardQueue& queue = core_.tables.queues.at(room.card);
  const Ledger::CardView card = core_.tables.ledger.View(room.card);
  std::string text =
      absl::StrCat(FormatBytes(room.bytes), " on GPU ", core_.tables.cards.at(room.card).index, ": ");
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

void BrokerImpl::LeaveRoom(WaiterId id) {
  BrokerLock lock(core_);
  Ticket& ticket = *tickets_.at(id);
  const CardId card = ticket.room->card;
  const std::optional<CardQueue::Turn>& turn = core_.tables.queues.at(card).turn();
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

void BrokerImpl::ForgetSetAside(Ticket& ticket) {
  if (const LogicalId rest = std::exchange(ticket.set_aside, {})) {
    core_.tables.devices.at(rest).removed = true;
    ForgetIfEmpty(rest);
  }
}

bool BrokerImpl::TakeFromRoom(const DeviceSpec& spec, Bytes guarantee) {
  const auto found = tickets_.find(spec.room);
  if (found == tickets_.end() || !found->second->set_aside || found->second->room->card != spec.card) {
    return false;
  }
  Ticket& ticket = *found->second;
  const Bytes rounded = RoundUp(guarantee, core_.tables.cards.at(spec.card).device.granularity);
  const Bytes there = core_.tables.ledger.View(ticket.set_aside).guarantee;
  if (there <= rounded) {
    ForgetSetAside(ticket);
    return there == rounded;
  }
  const absl::Status less =
      core_.tables.ledger.Resize(ticket.set_aside, {.limit = there - rounded, .guarantee = there - rounded});
  LGPU_CHECK(less.ok());
  return true;
}

}  // namespace lgpu
