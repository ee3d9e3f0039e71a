#ifndef LGPU_DAEMON_SERVER_ACCEPTOR_H_
#define LGPU_DAEMON_SERVER_ACCEPTOR_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/thread.h"
#include "base/unique_fd.h"
#include "daemon/server/poll_waker.h"
#include "proto/wire/channel.h"

namespace lgpu::daemon {

/// An Acceptor takes the connections of one listening socket, on a thread of its own, and hands each one over
/// with the identity of its peer as the kernel tells it. When descriptors run out it waits for some to come
/// back: connections stay in the queue of the kernel. Thread-safe.
class Acceptor {
 public:
  /// Called on the acceptor's thread; must return soon. The socket is blocking and close-on-exec.
  using Handler = std::function<void(UniqueFd socket, const PeerCredentials& peer)>;

  /// `listening_socket` is borrowed, non-blocking, and outlives the acceptor; `name` is for logs.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Start(int listening_socket, std::string name,
                                                         Handler handler);
  /// Stops.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  /// No handler runs after this. Once only, not from the handler.
  void Stop();

 private:
  Acceptor(int listening_socket, std::string name, Handler handler, std::shared_ptr<PollWaker> stop);
  void Run();
  /// False: stopped.
  bool WaitFor(int fd, int timeout_ms);
  /// False: descriptors or memory are short, or the socket is broken; try again later.
  bool AcceptAll();

  const int listening_socket_;
  const std::string name_;
  const Handler handler_;
  const std::shared_ptr<PollWaker> stop_;
  bool short_of_resources_ = false;  // the thread's own: the last accept failed
  Thread thread_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_ACCEPTOR_H_
