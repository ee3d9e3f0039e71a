#ifndef LGPU_DAEMON_HTTP_HTTP_API_H_
#define LGPU_DAEMON_HTTP_HTTP_API_H_

#include <httplib.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/http/history.h"
#include "daemon/http/live_streams.h"
#include "daemon/http/viewer.h"
#include "daemon/leases/lease_table.h"
#include "daemon/server/event_log.h"
#include "daemon/server/stats.h"
#include "daemon/snapshots/memory_snapshots.h"

namespace lgpu::daemon {

/// An HttpApi answers /api/v1/...: JSON for the page and for programs, and the live stream. Each answer has
/// what its viewer may see. Thread-safe.
class HttpApi {
 public:
  struct Services {
    const StatsReporter& stats;
    LeaseTable& leases;
    EventLog& events;
    MemorySnapshots& snapshots;
    std::string backend;
    bool sees_all = false;  // every viewer; else ViewerOf decides
  };
  /// `services` outlive the API.
  static absl::StatusOr<std::unique_ptr<HttpApi>> Start(const Services& services);

  /// Adds its pages. `server` is a BoundedServer, and stops before the API does.
  void AddTo(httplib::Server& server);
  /// Ends the live streams.
  void Stop() { streams_->Stop(); }

 private:
  explicit HttpApi(const Services& services) : services_(services) {}
  Viewer CurrentViewer() const;
  v1::StatsSnapshot SnapshotFor(const Viewer& viewer) const;
  std::string EventsSince(const Viewer& viewer, LiveStreams::Position& position) const;

  void Version(httplib::Response& response) const;
  void Queue(httplib::Response& response) const;
  void Events(const httplib::Request& request, httplib::Response& response) const;
  void Placements(const httplib::Request& request, httplib::Response& response) const;
  void Timeline(const httplib::Request& request, httplib::Response& response) const;
  void Map(const httplib::Request& request, httplib::Response& response) const;
  void Stream(const httplib::Request& request, httplib::Response& response);

  const Services services_;
  History history_;
  std::unique_ptr<LiveStreams> streams_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_HTTP_HTTP_API_H_
