#include "allocator/broker/room_table.h"

#include <utility>

#include "base/check.h"

namespace lgpu {

WaiterId RoomTable::Join(Room& room) {
  const WaiterId id = tables_.NewWaiter();
  tables_.rooms.emplace(id, &room);
  tables_.queues.at(room.card).Join(id, room.user);
  return id;
}

bool RoomTable::Try(WaiterId id) {
  Room& room = *tables_.rooms.at(id);
  if (tables_.queues.at(room.card).HoldsBack(id) || room.bytes > tables_.ledger.View(room.card).free()) {
    return false;
  }
  room.status = room.attempt();
  if (absl::IsResourceExhausted(room.status)) return false;
  if (room.status.ok()) tables_.queues.at(room.card).NoteServed(id);
  End(id);
  return true;
}

void RoomTable::End(WaiterId id) {
  Room& room = *tables_.rooms.at(id);
  room.over = true;
  tables_.queues.at(room.card).Leave(id, tables_.now());
  tables_.rooms.erase(id);
}

WaiterId RoomTable::AddTicket(const Broker::RoomSpec& spec) {
  const Bytes bytes = RoundUp(spec.bytes, tables_.GranuleOf(spec.card));
  auto ticket = std::make_unique<Ticket>();
  ticket->attempt = [this, spec, bytes, raw = ticket.get()] {
    const absl::StatusOr<LogicalId> made =
        tables_.ledger.AddLogical(spec.card, {.limit = bytes, .guarantee = bytes});
    if (!made.ok()) return made.status();
    tables_.devices[*made].spec = {.card = spec.card,
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
                            .since = tables_.now(),
                            .attempt = ticket->attempt,
                            .lease_name = spec.lease_name,
                            .pid = spec.pid,
                            .patient = true});
  ticket->next_look = tables_.now();
  const WaiterId id = Join(*ticket->room);
  tickets_.emplace(id, std::move(ticket));
  return id;
}

bool RoomTable::RemoveTicket(WaiterId id) {
  Ticket& ticket = *tickets_.at(id);
  const std::optional<CardQueue::Turn>& turn = tables_.queues.at(ticket.room->card).turn();
  // A request that held nothing back stood in the way of none.
  const bool frees = ticket.set_aside || (turn && turn->of == id);
  if (!ticket.room->over) End(id);
  ForgetSetAside(ticket);
  tickets_.erase(id);
  return frees;
}

void RoomTable::ForgetSetAside(Ticket& ticket) {
  if (const LogicalId rest = std::exchange(ticket.set_aside, {})) {
    tables_.devices.at(rest).removed = true;
    tables_.ForgetIfEmpty(rest);
  }
}

bool RoomTable::TakeFromTicket(const Broker::DeviceSpec& spec, Bytes guarantee) {
  const auto found = tickets_.find(spec.room);
  if (found == tickets_.end() || !found->second->set_aside || found->second->room->card != spec.card) {
    return false;
  }
  Ticket& ticket = *found->second;
  const Bytes rounded = RoundUp(guarantee, tables_.GranuleOf(spec.card));
  const Bytes there = tables_.ledger.View(ticket.set_aside).guarantee;
  if (there <= rounded) {
    ForgetSetAside(ticket);
    return there == rounded;
  }
  const Bytes rest = there - rounded;
  LGPU_CHECK(tables_.ledger.Resize(ticket.set_aside, {.limit = rest, .guarantee = rest}).ok());
  return true;
}

}  // namespace lgpu
