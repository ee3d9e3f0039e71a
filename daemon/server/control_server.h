#ifndef LGPU_DAEMON_SERVER_CONTROL_SERVER_H_
#define LGPU_DAEMON_SERVER_CONTROL_SERVER_H_

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "daemon/server/control_service.h"
#include "proto/wire/channel.h"

namespace lgpu::daemon {

/// A ControlServer is the gRPC server of the control plane, with gRPC's health service, on connections that
/// the Acceptor hands over. It bounds a user's connections, streams of each and bytes of a request;
/// ControlService bounds calls and unread answers. Thread-safe.
class ControlServer {
 public:
  /// All parts outlive the server. INTERNAL if gRPC does not start; RESOURCE_EXHAUSTED if threads are short.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(const ControlService::Parts& parts);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  /// Takes a connection. RESOURCE_EXHAUSTED when descriptors are used up, or the user has their share; then
  /// the connection is closed. UNAVAILABLE after Stop; NOT_FOUND where the lease `only` has ended.
  /// `only`: it has come by the directory of this lease; `peer` names the lease's owner then.
  absl::Status Serve(UniqueFd socket, const PeerCredentials& peer, std::optional<LeaseKey> only = {});
  /// The lease has ended: ends the calls and connections that came by its directory. Does not wait for them.
  void EndLease(LeaseKey lease);
  /// Ends all calls, streams too. The logs that streams wait on must be closed before.
  void Stop();

 private:
  class Impl;
  explicit ControlServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_CONTROL_SERVER_H_
