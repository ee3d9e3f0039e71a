#ifndef LGPU_CLIENT_DRIVER_VISIBLE_DEVICES_H_
#define LGPU_CLIENT_DRIVER_VISIBLE_DEVICES_H_

#include "client/driver/lease_session.h"

namespace lgpu::shim {

/// Makes CUDA_VISIBLE_DEVICES count the lease's cards, as it counts a container's: an index is a place in the
/// lease's list, a UUID or its beginning names a card of the lease, and without the variable all of them are
/// visible. The variable has the cards' UUIDs after that, which mean the same in child processes and when the
/// variable is read again. A UUID that is not the lease's is told to lgpud. To be called before the driver
/// reads the variable.
///
/// False: no card is visible, and the variable is as it was. While lgpud cannot be reached the lease's list
/// is not known: UUIDs are left to the driver then, and indices wait for lgpud as charges wait for memory,
/// and then show no card.
bool ShowCardsOfLease(LeaseSession& session);

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_VISIBLE_DEVICES_H_
