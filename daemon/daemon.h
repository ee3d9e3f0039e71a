#ifndef LGPU_DAEMON_DAEMON_H_
#define LGPU_DAEMON_DAEMON_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "daemon/server/config.h"
#include "daemon/server/device_registry.h"
#include "proto/wire/channel.h"

namespace lgpu::daemon {

/// A Daemon is everything behind the two sockets: broker, leases, sessions, control service, events.
/// Thread-safe.
class Daemon {
 public:
  /// `registry` outlives the daemon. INVALID_ARGUMENT and other errors for HTTP and for static leases.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Config& config, DeviceRegistry& registry);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  /// Serves a connection that was accepted on the session socket, on a thread of its own. Returns at once.
  void ServeSession(UniqueFd socket, const PeerCredentials& peer);
  /// Hands a connection that was accepted on the control socket to gRPC. Returns at once.
  void ServeControl(UniqueFd socket, const PeerCredentials& peer);
  /// Takes over the live settings: caps, default mode, records per new lease; and makes the
  /// static leases that are new. The first error of these.
  absl::Status Reload(const Config& config);
  /// Returns once broker, leases and sessions could be locked: for the service manager's watchdog, which ends
  /// a daemon where one of them hangs.
  void AwaitLocks() const;
  /// The HTTP address; empty: none.
  std::string http_address() const;
  /// Says goodbye to all sessions, ends streams, frees everything; within 1 s. Repeating it is fine.
  void Stop();

 private:
  class Impl;
  explicit Daemon(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_DAEMON_H_
