#include "daemon/http/live_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr char kHeader[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n"
    "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n";

}  // namespace

LiveStreams::LiveStreams(Source source, const Options& options, std::shared_ptr<PollWaker> waker)
    : source_(std::move(source)),
      options_(options),
      places_(options.places),
      waker_(std::move(waker)),
      header_(std::make_shared<const std::string>(kHeader)) {}

absl::StatusOr<std::unique_ptr<LiveStreams>> LiveStreams::Start(Source source, const Options& options) {
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<PollWaker> waker, PollWaker::Create());
  std::unique_ptr<LiveStreams> streams(new LiveStreams(std::move(source), options, std::move(waker)));
  LGPU_ASSIGN_OR_RETURN(streams->thread_,
                        Thread::Start("lgpud-live", [live = streams.get()] { live->Run(); }));
  return streams;
}

void LiveStreams::Serve(UniqueFd socket, std::uint64_t user, const Viewer& viewer, Position position) {
  ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &options_.send_buffer, sizeof options_.send_buffer);
  {
    const MutexLock lock(mutex_);
    if (!stopping_) {
      new_.push_back({.socket = std::move(socket),
                      .user = user,
                      .viewer = viewer,
                      .position = position,
                      .began = Clock::now()});
    }
  }
  waker_->Wake();
}

void LiveStreams::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    new_.clear();
  }
  waker_->Wake();
  thread_.Join();
}

void LiveStreams::Run() {
  Clock::time_point next = Clock::now();
  while (!stopping_) {
    if (Clock::now() >= next) {
      source_.tick();
      GiveMessages();
      next = std::max(next + options_.period, Clock::now());
    }
    WaitUntil(next);
  }
  streams_.clear();
}

void LiveStreams::TakeNew() {
  std::vector<Stream> fresh;
  {
    const MutexLock lock(mutex_);
    fresh = std::move(new_);
    new_.clear();
  }
  for (Stream& stream : fresh) {
    // The header, and the first message without waiting for the next period.
    GiveMessage(stream);
    stream.parts.insert(stream.parts.begin(), header_);
    streams_.push_back(std::move(stream));
  }
}

void LiveStreams::GiveMessages() {
  figures_.clear();
  for (Stream& stream : streams_) {
    if (stream.is_idle()) GiveMessage(stream);
  }
}

void LiveStreams::GiveMessage(Stream& stream) {
  std::shared_ptr<const std::string>& figures = figures_[stream.viewer];
  if (figures == nullptr) figures = std::make_shared<const std::string>(source_.figures(stream.viewer));
  stream.parts = {figures};
  if (std::string events = source_.events(stream.viewer, stream.position); !events.empty()) {
    stream.parts.push_back(std::make_shared<const std::string>(std::move(events)));
  }
  stream.part = 0;
  stream.sent = 0;
  stream.began = Clock::now();
}

bool LiveStreams::Advance(Stream& stream, bool readable) const {
  if (readable) {
    // A page says nothing after its request; it may go.
    std::array<char, 1024> bytes;
    const ssize_t count = ::recv(stream.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return false;
  }
  while (!stream.is_idle()) {
    const std::string& part = *stream.parts[stream.part];
    const ssize_t count = ::send(stream.socket.get(), part.data() + stream.sent, part.size() - stream.sent,
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (count > 0) stream.sent += static_cast<std::size_t>(count);
    if (stream.sent < part.size()) return Clock::now() - stream.began < options_.patience;
    ++stream.part;
    stream.sent = 0;
  }
  stream.parts.clear();
  stream.part = 0;
  return true;
}

void LiveStreams::Close(Stream& stream) {
  stream.socket.Reset();
  places_.GiveBack(stream.user);
}

void LiveStreams::WaitUntil(Clock::time_point until) {
  std::vector<pollfd> polled = {{.fd = waker_->fd(), .events = POLLIN, .revents = 0}};
  for (const Stream& stream : streams_) {
    const bool writes = !stream.is_idle();
    polled.push_back({.fd = stream.socket.get(),
                      .events = static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN),
                      .revents = 0});
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  ::poll(polled.data(), polled.size(), static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
  if (polled.front().revents != 0) waker_->Clear();
  std::vector<Stream> kept;
  kept.reserve(streams_.size());
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    const short events = polled[i + 1].revents;
    const bool readable = (events & (POLLIN | POLLHUP | POLLERR)) != 0;
    if (Advance(streams_[i], readable)) {
      kept.push_back(std::move(streams_[i]));
    } else {
      Close(streams_[i]);
    }
  }
  streams_ = std::move(kept);
  TakeNew();
}

}  // namespace lgpu::daemon
