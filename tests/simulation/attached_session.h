#ifndef LGPU_TESTS_SIMULATION_ATTACHED_SESSION_H_
#define LGPU_TESTS_SIMULATION_ATTACHED_SESSION_H_

#include <functional>
#include <memory>
#include <string>

#include "client/session/daemon_connection.h"

namespace lgpu::simulation {

/// A session with the lgpud of `options.directory` that is attached to the lease, and looks for the next
/// lgpud where this one ends. Null: no lgpud serves now. Calls `fail`, which does not return, for other
/// errors.
std::unique_ptr<DaemonConnection> OpenAttached(const std::string& lease, DaemonConnection::Options options,
                                               const std::function<void(const std::string& what)>& fail);

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_ATTACHED_SESSION_H_
