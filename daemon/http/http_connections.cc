#include "daemon/http/http_connections.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/thread.h"
#include "daemon/http/peer_user.h"

namespace lgpu::daemon {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// The library matches regular expressions, which recurse, against lines of up to 8 KiB.
constexpr std::size_t kStackBytes = std::size_t{8} << 20;
// How often who waits for his client looks whether others wait for him.
constexpr std::chrono::milliseconds kLook{50};
// Connections that wait for a thread. One more, and the one that has waited longest is turned away.
constexpr std::size_t kMostWaiting = 256;
constexpr const char* kUserHasTooMany =
    "your user has too many connections to this port; close some and try again";
constexpr const char* kAllTooMany = "too many connections wait at this port; try again";

// This thread runs a job only to turn its connection away.
thread_local bool turns_away = false;

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
  constexpr int kMostReads = 16;  // whoever sends more has himself to blame
  for (int i = 0; i<kMostReads&& ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT)> 0; ++i) {
  }
}

// Answers with 503 and closes. Does not block.
void TurnAway(int socket, const char* why) {
  const std::string body = absl::StrCat(
      "{\"schema\":\"lgpu.error/v1\",\"code\":\"RESOURCE_EXHAUSTED\",\"message\":\"", why, "\"}\n");
  const std::string answer = absl::StrCat(
      "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: application/json\r\n"
      "Connection: close\r\nContent-Length: ",
      body.size(), "\r\n\r\n", body);
  ::send(socket, answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  ReadAway(socket);
  ::close(socket);
}

}  // namespace

/// Threads that are made when they are needed, up to a number of them. Thread-safe.
class BoundedServer::Threads final : public httplib::TaskQueue {
 public:
  /// `waiting`: where to write how many jobs wait for a thread.
  Threads(std::size_t most, std::atomic<std::size_t>& waiting) : most_(most), waiting_(waiting) {}

  void enqueue(std::function<void()> job) override {
    std::function<void()> turned_away;
    {
      MutexLock lock(mutex_);
      jobs_.push_back(std::move(job));
      if (jobs_.size() > kMostWaiting) {
        turned_away = std::move(jobs_.front());
        jobs_.pop_front();
      }
      if (jobs_.size() > idle_ && threads_.size() < most_) {
        absl::StatusOr<Thread> thread = Thread::Start(
            "lgpud-http", [this] { Work(); }, kStackBytes);
        if (thread.ok()) threads_.push_back(*std::move(thread));
      }
      CountWaiting();
    }
    changed_.NotifyAll();
    if (turned_away) {
      turns_away = true;
      turned_away();
      turns_away = false;
    }
  }

  void shutdown() override {
    {
      MutexLock lock(mutex_);
      ending_ = true;
    }
    changed_.NotifyAll();
    std::vector<Thread> threads;
    {
      MutexLock lock(mutex_);
      threads = std::move(threads_);
    }
    for (Thread& thread : threads) thread.Join();
    // Where not one thread could be made.
    Work();
  }

 private:
  // Connections for which no thread is free and none can be made.
  void CountWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::size_t free = idle_ + (most_ - threads_.size());
    waiting_ = jobs_.size() - std::min(jobs_.size(), free);
  }

  void Work() {
    while (true) {
      std::function<void()> job;
      {
        MutexLock lock(mutex_);
        ++idle_;
        while (jobs_.empty() && !ending_) changed_.Wait(mutex_);
        --idle_;
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
        CountWaiting();
      }
      job();
    }
  }

  const std::size_t most_;
  std::atomic<std::size_t>& waiting_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Thread> threads_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
};

BoundedServer::BoundedServer(const Bounds& bounds) : bounds_(bounds) {
  new_task_queue = [this] { return new Threads(bounds_.threads, waiting_); };
}

BoundedServer::~BoundedServer() = default;

void BoundedServer::WidenQueue() { ::listen(svr_sock_, SOMAXCONN); }

void BoundedServer::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
    for (const auto& [user, line] : parked_) {
      for (const int socket : line) ::close(socket);
    }
    parked_.clear();
  }
  stop();
}

std::uint64_t BoundedServer::CurrentUser() { return current->user; }

void BoundedServer::HandOver(std::function<void(UniqueFd)> taker) { current->taker = std::move(taker); }

bool BoundedServer::process_and_close_socket(socket_t socket) {
  if (turns_away) {
    TurnAway(socket, kAllTooMany);
    return false;
  }
  std::uint64_t user = PeerUser(socket);
  switch (Admit(socket, user)) {
    case Admission::kThread:
      break;
    case Admission::kWaits:
      return true;
    case Admission::kNoPlace:
      TurnAway(socket, kUserHasTooMany);
      return true;
    case Admission::kStopping:
      ::close(socket);
      return false;
  }
  bool processed = Process(socket, user);
  // The connections that waited for this one's place.
  while (true) {
    {
      MutexLock lock(mutex_);
      threads_.GiveBack(user);
      const auto next = TakeParked();
      if (!next) return processed;
      std::tie(socket, user) = *next;
      sockets_.insert(socket);
    }
    processed = Process(socket, user);
  }
}

BoundedServer::Admission BoundedServer::Admit(socket_t socket, std::uint64_t user) {
  MutexLock lock(mutex_);
  if (stopping_) return Admission::kStopping;
  if (threads_.TryTake(user)) {
    sockets_.insert(socket);
    return Admission::kThread;
  }
  if (!places_.TryTake(user)) return Admission::kNoPlace;
  parked_[user].push_back(socket);
  return Admission::kWaits;
}

std::optional<std::pair<socket_t, std::uint64_t>> BoundedServer::TakeParked() {
  auto entry = parked_.upper_bound(last_);
  for (std::size_t i = 0; i < parked_.size(); ++i, ++entry) {
    if (entry == parked_.end()) entry = parked_.begin();
    const std::uint64_t user = entry->first;
    if (stopping_ || !threads_.TryTake(user)) continue;
    last_ = user;
    const socket_t socket = entry->second.front();
    entry->second.pop_front();
    places_.GiveBack(user);
    if (entry->second.empty()) parked_.erase(entry);
    return std::pair(socket, user);
  }
  return std::nullopt;
}

bool BoundedServer::OthersWait(std::uint64_t user) {
  MutexLock lock(mutex_);
  return waiting_ > 0 || parked_.contains(user);
}

bool BoundedServer::Process(socket_t socket, std::uint64_t user) {
  DeadlineStream stream(socket, bounds_, [this, user] { return OthersWait(user); });
  bool closed = false;
  // Nothing here is worth a part of: a line of a thousand ranges would make an answer of gigabytes. Nor is it
  // worth compressing: the library's brotli takes a second for a megabyte.
  const auto without_ranges = [](httplib::Request& request) {
    request.ranges.clear();
    request.headers.erase("Accept-Encoding");
  };
  Connection connection{.user = user};
  current = &connection;
  const bool processed = process_request(stream, /*close_connection=*/true, closed, without_ranges);
  current = nullptr;
  if (connection.taker) {
    {
      MutexLock lock(mutex_);
      sockets_.erase(socket);
    }
    connection.taker(UniqueFd(socket));
    return processed;
  }
  ReadAway(socket);
  // Under the lock: nobody may shut down a number that the system has given to another connection.
  MutexLock lock(mutex_);
  sockets_.erase(socket);
  ::close(socket);
  return processed;
}

}  // namespace lgpu::daemon
