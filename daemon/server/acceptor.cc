#include "daemon/server/acceptor.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr int kBackOffMs = 50;

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Start(int listening_socket, std::string name,
                                                          Handler handler) {
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<PollWaker> stop, PollWaker::Create());
  std::unique_ptr<Acceptor> acceptor(
      new Acceptor(listening_socket, std::move(name), std::move(handler), std::move(stop)));
  LGPU_ASSIGN_OR_RETURN(acceptor->thread_,
                        Thread::Start("lgpud-accept", [raw = acceptor.get()] { raw->Run(); }));
  return acceptor;
}

Acceptor::Acceptor(int listening_socket, std::string name, Handler handler, std::shared_ptr<PollWaker> stop)
    : listening_socket_(listening_socket),
      name_(std::move(name)),
      handler_(std::move(handler)),
      stop_(std::move(stop)) {}

Acceptor::~Acceptor() { Stop(); }

void Acceptor::Stop() {
  stop_->Wake();
  thread_.Join();
}

void Acceptor::Run() {
  for (;;) {
    // Out of resources, the listening socket stays readable: waiting on it would spin.
    const bool running =
        short_of_resources_ ? WaitFor(-1, kBackOffMs) : WaitFor(listening_socket_, /*timeout_ms=*/-1);
    if (!running) return;
    const bool accepted = AcceptAll();
    if (!accepted && !short_of_resources_) {
      spdlog::warn("cannot accept {} connections now: {}; they wait", name_, std::strerror(errno));
    }
    short_of_resources_ = !accepted;
  }
}

bool Acceptor::WaitFor(int fd, int timeout_ms) {
  pollfd waited[] = {{.fd = stop_->fd(), .events = POLLIN, .revents = 0},
                     {.fd = fd, .events = POLLIN, .revents = 0}};
  while (::poll(waited, 2, timeout_ms) < 0 && errno == EINTR) {
  }
  return (waited[0].revents & POLLIN) == 0;
}

bool Acceptor::AcceptAll() {
  for (;;) {
    UniqueFd socket(::accept4(listening_socket_, nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return false;
    }
    const absl::StatusOr<PeerCredentials> peer = GetPeerCredentials(socket.get());
    if (!peer.ok()) {
      spdlog::warn("a {} connection has no credentials: {}", name_, std::string(peer.status().message()));
      continue;
    }
    handler_(std::move(socket), *peer);
    // A flood of connections must not keep Stop waiting.
    if (!WaitFor(-1, 0)) return true;
  }
}

}  // namespace lgpu::daemon
