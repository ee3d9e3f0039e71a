#ifndef LGPU_CLIENT_DRIVER_ENVIRONMENT_H_
#define LGPU_CLIENT_DRIVER_ENVIRONMENT_H_

#include <optional>

#include "client/driver/lease_session.h"

namespace lgpu::shim {

/// How the program's variables name the lease: LGPU_LEASE, LGPU_ENDPOINT, LGPU_MEMORY_WAIT_MS. Nothing: the
/// shim changes nothing (no lease, or LGPU_SHIM=off).
std::optional<LeaseSession::Options> OptionsFromEnvironment(const char* client);

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_ENVIRONMENT_H_
