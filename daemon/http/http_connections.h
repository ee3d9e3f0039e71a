#ifndef LGPU_DAEMON_HTTP_HTTP_CONNECTIONS_H_
#define LGPU_DAEMON_HTTP_HTTP_CONNECTIONS_H_

#include <httplib.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "daemon/server/call_pool.h"
#include "daemon/server/user_shares.h"

namespace lgpu::daemon {

/// A BoundedServer is httplib's server with bounds for its clients: a request has a deadline as a whole,
/// however its bytes trickle in, and so has its answer; and while others wait for a thread, a
/// connection that has had one for more than a moment is closed. So slow clients cannot keep other users out.
/// A connection has one request.
///
/// Threads and places of connections are shared among users (CallPool, UserShares, PeerUser): a connection
/// beyond its user's share of threads waits, and one beyond the share of places is answered 503.
///
/// Thread-safe as httplib's.
class BoundedServer final : public httplib::Server {
 public:
  struct Bounds {
    std::chrono::milliseconds request = std::chrono::seconds(2);  // until it is there
    std::chrono::milliseconds answer = std::chrono::seconds(10);  // until it is taken, from the beginning on
    std::chrono::milliseconds moment = std::chrono::milliseconds(200);
    std::size_t request_bytes = 64 * 1024;
    std::size_t threads = 64;  // made when they are needed
    std::size_t places = 320;  // of connections that have a thread, or wait for their user's turn
  };
  explicit BoundedServer(const Bounds& bounds);
  ~BoundedServer() override;

  /// After the bind, before it listens: starts the first thread, and lets many connect at once. The library's
  /// own is a queue of five, and a client that finds it full tries again a second later.
  /// RESOURCE_EXHAUSTED: the system allows no thread.
  absl::Status Prepare();

  /// Ends all connections, those that come too, and then the server.
  void Stop();

  /// The number that stands for the user (PeerUser) whose request the calling thread answers. Of handlers.
  static std::uint64_t CurrentUser();
  /// In place of an answer, `taker` gets the connection of the request that the calling thread answers, as
  /// soon as the handler has returned; the connection gives its thread back. Of handlers.
  static void HandOver(std::function<void(UniqueFd)> taker);

 private:
  bool process_and_close_socket(socket_t socket) override;
  /// The connection has a thread.
  void Process(CallPool& pool, socket_t socket, std::uint64_t user);

  const Bounds bounds_;
  UserShares places_{bounds_.places};
  Mutex mutex_;
  std::set<int> sockets_ ABSL_GUARDED_BY(mutex_);  // of all connections that have a thread
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<CallPool> threads_;  // from Prepare until it does not listen any more
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_HTTP_HTTP_CONNECTIONS_H_
