#ifndef LGPU_DAEMON_HTTP_HTTP_SERVER_H_
#define LGPU_DAEMON_HTTP_HTTP_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "allocator/broker/broker.h"
#include "daemon/leases/lease_suspender.h"
#include "daemon/leases/lease_table.h"
#include "daemon/server/config.h"
#include "daemon/server/event_log.h"
#include "daemon/server/stats.h"
#include "daemon/sessions/grant_times.h"
#include "daemon/snapshots/memory_snapshots.h"

namespace lgpu::daemon {

/// An HttpServer answers GET on a TCP port: the page, /metrics, /healthz, /readyz and /api/v1/... It only
/// reads. A request of this machine has the rights of the user who made its connection, as the kernel tells:
/// the page and the API show what `lgpu ls` shows that user (HttpApi). It is off unless it is configured, and
/// any address but loopback needs a token. Thread-safe.
class HttpServer {
 public:
  struct Services {
    const StatsReporter& stats;
    LeaseTable& leases;
    EventLog& events;
    MemorySnapshots& snapshots;
    const GrantTimes& grants;
    const LeaseSuspender& suspender;
    const Broker& broker;
    std::string backend;
    bool names_owners = false;  // in the metrics
  };
  /// `services` outlive the server. INVALID_ARGUMENT: an address that cannot be, or needs a token; a token
  /// file that cannot be read; UNAVAILABLE: the port is taken.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpConfig& config,
                                                           const Services& services);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// "127.0.0.1:9400"; the port that was taken where 0 was asked for.
  const std::string& address() const;
  /// /readyz says no from here on, then nothing is answered. Repeating it is fine.
  void Stop();

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_HTTP_HTTP_SERVER_H_
