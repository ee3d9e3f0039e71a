#include "allocator/broker/reservations.h"

#include <algorithm>

#include "allocator/broker/broker_core.h"

namespace lgpu {
namespace {

// How often a request that waits is told its place.
constexpr std::chrono::seconds kTextEvery{1};

// Gives the lock up meanwhile.
void Serve(BrokerCore& core, CardId card) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core.mutex) {
  core.scheduler.Serve(card);
  core.WakeSessions();
}

}  // namespace

absl::Status Reservations::Wait(const BrokerLock& /*lock*/, CardId card, const std::string& user,
                                Bytes guarantee, Broker::TimePoint deadline,
                                absl::FunctionRef<absl::Status()> attempt) {
  core_.mutex.AssertHeld();
  CardQueue& queue = core_.tables.queues.at(card);
  Room room{.card = card,
            .user = user,
            .bytes = RoundUp(guarantee, core_.tables.GranuleOf(card)),
            .since = core_.now(),
            .attempt = attempt};
  if (queue.IsTurnOver(core_.now())) Serve(core_, card);
  room.status = absl::ResourceExhaustedError("the card's free memory is held back for another request");
  if (!queue.turn() || guarantee.is_zero()) room.status = attempt();
  if (!absl::IsResourceExhausted(room.status) || core_.tables.stopping || core_.now() >= deadline) {
    return room.status;
  }
  const WaiterId id = core_.rooms.Join(room);
  while (!room.over && !core_.tables.stopping && core_.now() < deadline) {
    Serve(core_, card);
    // Every thread that changes the card tries `attempt`, so no change is missed here.
    if (!room.over) {
      const Broker::TimePoint next = std::min(deadline, queue.NextChange(core_.now()).value_or(deadline));
      const Broker::TimePoint ask = std::max(room.need.look_again, core_.now() + TrimTable::kPatience);
      core_.tables.freed.WaitUntil(core_.mutex, std::min(next, ask));
    }
  }
  if (!room.over) {
    core_.rooms.End(id);
    Serve(core_, card);
  }
  return room.status;
}

WaiterId Reservations::Queue(const Broker::RoomSpec& spec) {
  BrokerLock lock(core_);
  return core_.rooms.AddTicket(spec);
}

Broker::RoomView Reservations::Look(WaiterId id) {
  Broker::RoomView view;
  BrokerLock lock(core_);
  RoomTable::Ticket& ticket = core_.rooms.TicketOf(id);
  const Room& room = *ticket.room;
  const CardQueue& queue = core_.tables.queues.at(room.card);
  if (!room.over && core_.now() >= ticket.next_look) {
    // Of many requests whose time to look has come one moves the queue on.
    if (core_.scheduler.ServedAt(room.card) <= ticket.next_look) Serve(core_, room.card);
    const Broker::TimePoint now = core_.now();
    // As for requests of sessions: so that turns begin and end in time, whichever request looks.
    const Broker::TimePoint latest = now + core_.tables.max_drain;
    ticket.next_look = std::min(latest, queue.NextChange(now).value_or(latest));
    if (queue.turn() && queue.turn()->of == id) {
      ticket.next_look =
          std::min(ticket.next_look, std::max(room.need.look_again, now + TrimTable::kPatience));
    }
  }
  view.is_over = room.over;
  view.status = room.over ? room.status : absl::OkStatus();
  if (room.over || core_.now() < ticket.next_text) return view;
  ticket.next_text = core_.now() + kTextEvery;
  const std::vector<WaiterId> order = queue.Order();
  const auto place = static_cast<std::size_t>(std::find(order.begin(), order.end(), id) - order.begin());
  view.place = place + 1;
  view.waiting = order.size();
  view.text = core_.refusals.OfWaitingRoom(id, place == 0 ? WaiterId() : order[place - 1]);
  return view;
}

void Reservations::Leave(WaiterId id) {
  BrokerLock lock(core_);
  const CardId card = core_.rooms.TicketOf(id).room->card;
  if (core_.rooms.RemoveTicket(id)) core_.scheduler.Serve(card);
}

}  // namespace lgpu
