#ifndef LGPU_ALLOCATOR_BROKER_ROOM_TABLE_H_
#define LGPU_ALLOCATOR_BROKER_ROOM_TABLE_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "allocator/broker/broker_tables.h"

namespace lgpu {

/// A RoomTable sets guarantees aside for leases that are made or resized. A guarantee that the card has no
/// room for waits in the card's queue, beside the requests of sessions: as a Room on the stack of a thread
/// that waits, or as a Ticket, for which no thread waits.
///
/// Not thread-safe: the broker's lock guards it. The tables outlive it.
class RoomTable {
 public:
  explicit RoomTable(BrokerTables& tables) : tables_(tables) {}

  WaiterId Join(Room& room);
  /// Sets the guarantee aside if the card has it; returns whether the room is over.
  bool Try(WaiterId id);
  /// The room leaves the queue.
  void End(WaiterId id);

  struct Ticket {
    std::function<absl::Status()> attempt;
    std::optional<Room> room;
    LogicalId set_aside;  // a device that no lease has, with the bytes as its guarantee
    Broker::TimePoint next_look = {}, next_text = {};
  };
  WaiterId AddTicket(const Broker::RoomSpec& spec);
  Ticket& TicketOf(WaiterId id) { return *tickets_.at(id); }
  /// The ticket leaves the queue, and what it has set aside is free. Returns whether that may serve others.
  bool RemoveTicket(WaiterId id);
  /// Gives what a ticket has set aside to a device that is being made. False: that is less than the
  /// guarantee, and it is free.
  bool TakeFromTicket(const Broker::DeviceSpec& spec, Bytes guarantee);

 private:
  void ForgetSetAside(Ticket& ticket);

  BrokerTables& tables_;
  std::map<WaiterId, std::unique_ptr<Ticket>> tickets_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_ROOM_TABLE_H_
