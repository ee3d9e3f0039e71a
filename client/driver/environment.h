#ifndef LGPU_CLIENT_DRIVER_ENVIRONMENT_H_
#define LGPU_CLIENT_DRIVER_ENVIRONMENT_H_

#include <optional>

#include "client/driver/lease_session.h"

namespace lgpu::shim {

/// How the program's variables name the lease: LGPU_LEASE, LGPU_ENDPOINT, LGPU_MEMORY_WAIT_MS. Where the
/// program has no LGPU_LEASE, those of this library's PlaceNote count. Nothing: the shim changes nothing (no
/// lease, or LGPU_SHIM=off). A copy of the library always limits: where neither names a lease, the lease is
/// empty and the session refuses everything.
std::optional<LeaseSession::Options> OptionsFromEnvironment(const char* client);

/// In a program that lost the lease's variables: sets the CUDA_VISIBLE_DEVICES of the PlaceNote, unless the
/// program has one. To be called before the driver reads it.
void RestoreVisibleDevices();

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_ENVIRONMENT_H_
