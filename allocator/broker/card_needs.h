#ifndef LGPU_ALLOCATOR_BROKER_CARD_NEEDS_H_
#define LGPU_ALLOCATOR_BROKER_CARD_NEEDS_H_

#include <map>
#include <vector>

#include "allocator/broker/broker_tables.h"

namespace lgpu {

/// The sessions of a lease's suspension that are still there. One that has given all of its memory back since
/// then is among them: its process is moved all the same. The broker's lock guards the tables.
std::vector<SessionId> MovedSessions(const BrokerTables& tables, LeaseKey lease);

/// What the parked lease needs of each card's free memory to come back; no entry is zero. The broker's lock
/// guards the tables.
std::map<CardId, Bytes> CardNeeds(const BrokerTables& tables, LeaseKey lease);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_CARD_NEEDS_H_
