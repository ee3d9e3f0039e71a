#ifndef LGPU_DAEMON_HTTP_HTTP_CONNECTIONS_H_
#define LGPU_DAEMON_HTTP_HTTP_CONNECTIONS_H_

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <set>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace lgpu::daemon {

/// A BoundedServer is httplib's server with bounds for its clients: a request has a deadline as a whole,
/// however its bytes trickle in, and so has its answer; and while others wait for a thread, whoever has had
/// one for more than a moment goes. So nobody keeps others out by being slow. A connection has one request.
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
  };
  explicit BoundedServer(const Bounds& bounds);
  ~BoundedServer() override;

  /// After the bind: lets many connect at once. The library's own is a queue of five, and whoever does not
  /// get into it tries again a second later.
  void WidenQueue();

  /// Ends all connections, those that come too, and then the server.
  void Stop();

 private:
  class Threads;

  bool process_and_close_socket(socket_t socket) override;
  const Bounds bounds_;
  std::atomic<std::size_t> waiting_ = 0;  // connections without a thread
  Mutex mutex_;
  std::set<int> sockets_ ABSL_GUARDED_BY(mutex_);  // of all connections that have a thread
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_HTTP_HTTP_CONNECTIONS_H_
