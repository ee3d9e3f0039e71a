#ifndef LGPU_CLIENT_SESSION_ENDPOINT_H_
#define LGPU_CLIENT_SESSION_ENDPOINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// The variables that say where a daemon is; a value of its own so that tests need no environment.
struct EndpointEnvironment {
  std::optional<std::string> endpoint;     // LGPU_ENDPOINT
  std::optional<std::string> runtime_dir;  // XDG_RUNTIME_DIR
  std::uint32_t uid = 0;
  std::string system_dir = "/run/lgpu";

  static EndpointEnvironment OfThisProcess();
};

/// An Endpoint is the source of leases: a daemon, known by its runtime directory, or this process alone.
struct Endpoint {
  bool local = false;
  /// Local: the simulated GPUs; none: the machine's own.
  std::vector<Bytes> simulated = {};
  /// Not local: the runtime directories to try, in this order.
  std::vector<std::string> directories = {};
  /// The directories are the defaults, and were not named by the user. A default directory that another
  /// ordinary user may have made is not used.
  bool is_default = false;
  /// False: a daemon is needed, `local` would not do (the command lgpu).
  bool may_be_local = true;
};

/// The endpoint that `option` names (a directory, `local` or `local:2x1GiB`); else LGPU_ENDPOINT; else the
/// system's daemon and then the user's. INVALID_ARGUMENT for a list of simulated GPUs that cannot be read.
absl::StatusOr<Endpoint> ResolveEndpoint(const std::string& option, const EndpointEnvironment& environment);

/// The two sockets in a runtime directory.
std::string SessionSocketPath(const std::string& directory);
std::string ControlSocketPath(const std::string& directory);

/// The first directory of `endpoint` (not local) where a daemon listens, which is found out by connecting
/// to its control socket: that connection, of type SOCK_STREAM and non-blocking, and the directory.
/// UNAVAILABLE or PERMISSION_DENIED, naming what was tried, why it failed and what to try. A default
/// directory in a folder that every user can write, as /tmp is, must belong to root or to this user, and
/// so must its daemon: otherwise PERMISSION_DENIED, before a byte is sent.
struct DaemonSocket {
  std::string directory;
  UniqueFd control;
};
absl::StatusOr<DaemonSocket> FindDaemon(const Endpoint& endpoint);

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_ENDPOINT_H_
