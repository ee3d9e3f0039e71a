#include "daemon/http/http_connections.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/http/peer_user.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// The library matches regular expressions, which recurse, against lines of up to 8 KiB.
constexpr std::size_t kStackBytes = std::size_t{8} << 20;
// How often who waits for his client looks whether others wait for him.
constexpr std::chrono::milliseconds kLook{50};
/// The connection whose request a thread answers.
struct Connection {
  std::uint64_t user = 0;
  std::function<void(UniqueFd)> taker = {};
};
thread_local Connection* current = nullptr;

/// A socket with a deadline for all reads together and one for all writes, which come early where others
/// wait. Not thread-safe.
class DeadlineStream final : public httplib::Stream {
 public:
  DeadlineStream(int socket, const BoundedServer::Bounds& bounds, std::function<bool()> others_wait)
      : socket_(socket),
        others_wait_(std::move(others_wait)),
        moment_(Clock::now() + bounds.moment),
        read_by_(Clock::now() + bounds.request),
        write_by_(Clock::now() + bounds.answer),
        bytes_left_(bounds.request_bytes) {}

  bool is_readable() const override { return at_ < end_ || Wait(POLLIN, read_by_); }
  bool is_writable() const override { return current->taker || Wait(POLLOUT, write_by_); }

  ssize_t read(char* to, std::size_t size) override {
    if (at_ == end_) {
      if (bytes_left_ == 0 || !Wait(POLLIN, read_by_)) return -1;
      const ssize_t count =
          ::recv(socket_, buffer_.data(), std::min(buffer_.size(), bytes_left_), MSG_DONTWAIT);
      if (count <= 0) return count;
      at_ = 0;
      end_ = static_cast<std::size_t>(count);
      bytes_left_ -= end_;
    }
    const std::size_t count = std::min(size, end_ - at_);
    std::memcpy(to, buffer_.data() + at_, count);
    at_ += count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* from, std::size_t size) override {
    if (current->taker) return static_cast<ssize_t>(size);  // the answer is the taker's
    if (!Wait(POLLOUT, write_by_)) return -1;
    return ::send(socket_, from, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  // Only for logs, which there are none of.
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

 private:
  bool Wait(short events, Clock::time_point deadline) const {
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      pollfd polled{socket_, events, 0};
      const int ready = ::poll(&polled, 1, static_cast<int>(std::clamp(left, 0ms, kLook).count()));
      if (left <= 0ms) return false;
      const bool crowded = Clock::now() > moment_ && others_wait_();
      // A client that reads its answer is not slow; one that has not asked by now is.
      if (crowded && (ready <= 0 || (events & POLLIN) != 0)) return false;
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) return false;
    }
  }

  const int socket_;
  const std::function<bool()> others_wait_;
  const Clock::time_point moment_;
  const Clock::time_point read_by_;
  const Clock::time_point write_by_;
  std::size_t bytes_left_;
  std::array<char, 4096> buffer_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
};

// What came with a request and was not read would reset the connection, and the answer with it.
void ReadAway(int socket) {
  ::shutdown(socket, SHUT_WR);
  std::array<char, 4096> bytes;
  constexpr int kMostReads = 16;  // a sender of more may lose the answer
  int reads = 0;
  while (reads<kMostReads&& ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT)> 0) ++reads;
}

// The user of this connection has as many as they may have. Does not block.
void TurnAway(int socket) {
  const std::string body =
      "{\"schema\":\"lgpu.error/v1\",\"code\":\"RESOURCE_EXHAUSTED\",\"message\":\"your user has too many "
      "connections to this port; close some and try again\"}\n";
  const std::string answer = absl::StrCat(
      "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: application/json\r\n"
      "Connection: close\r\nContent-Length: ",
      body.size(), "\r\n\r\n", body);
  ::send(socket, answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  ReadAway(socket);
  ::close(socket);
}

/// The server's thread runs its jobs, which are short: each gives a connection to the CallPool.
class AdmitAtOnce final : public httplib::TaskQueue {
 public:
  explicit AdmitAtOnce(std::unique_ptr<CallPool>& threads) : threads_(threads) {}
  void enqueue(std::function<void()> job) override { job(); }
  void shutdown() override { threads_.reset(); }

 private:
  std::unique_ptr<CallPool>& threads_;
};

}  // namespace

BoundedServer::BoundedServer(const Bounds& bounds) : bounds_(bounds) {
  new_task_queue = [this] { return new AdmitAtOnce(threads_); };
}

BoundedServer::~BoundedServer() = default;

absl::Status BoundedServer::Prepare() {
  LGPU_ASSIGN_OR_RETURN(threads_, CallPool::Start("lgpud-http", bounds_.threads, kStackBytes));
  ::listen(svr_sock_, SOMAXCONN);
  return absl::OkStatus();
}

void BoundedServer::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
  }
  stop();
}

std::uint64_t BoundedServer::CurrentUser() { return current->user; }

void BoundedServer::HandOver(std::function<void(UniqueFd)> taker) { current->taker = std::move(taker); }

bool BoundedServer::process_and_close_socket(socket_t socket) {
  const std::uint64_t user = PeerUser(socket);
  if (!places_.TryTake(user)) {
    TurnAway(socket);
    return false;
  }
  // The pool while it ends, too, when `threads_` has let go of it.
  CallPool& pool = *threads_;
  pool.Run(user, [this, &pool, socket, user] {
    Process(pool, socket, user);
    places_.GiveBack(user);
  });
  return true;
}

void BoundedServer::Process(CallPool& pool, socket_t socket, std::uint64_t user) {
  {
    MutexLock lock(mutex_);
    if (stopping_) {
      ::close(socket);
      return;
    }
    sockets_.insert(socket);
  }
  DeadlineStream stream(socket, bounds_, [&pool, user] { return pool.OthersWaitFor(user); });
  bool closed = false;
  // Nothing here is worth a part of: a line of a thousand ranges would make an answer of gigabytes. Nor is it
  // worth compressing: the library's brotli takes a second for a megabyte.
  const auto without_ranges = [](httplib::Request& request) {
    request.ranges.clear();
    request.headers.erase("Accept-Encoding");
  };
  Connection connection{.user = user};
  current = &connection;
  process_request(stream, /*close_connection=*/true, closed, without_ranges);
  current = nullptr;
  if (connection.taker) {
    {
      MutexLock lock(mutex_);
      sockets_.erase(socket);
    }
    connection.taker(UniqueFd(socket));
    return;
  }
  ReadAway(socket);
  // Under the lock, so that no other thread shuts down this number once the system has reused it.
  MutexLock lock(mutex_);
  sockets_.erase(socket);
  ::close(socket);
}

}  // namespace lgpu::daemon
