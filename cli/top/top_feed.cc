#include "cli/top/top_feed.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

// gRPC starts threads of its own from this one.
constexpr std::size_t kStackBytes = std::size_t{8} << 20;
constexpr std::size_t kKeptEvents = 50;
// A screen that waits longer for one answer says so meanwhile.
constexpr std::chrono::milliseconds kLongestAnswer{2000};

std::string FirstLine(const absl::Status& status) {
  const std::string text(status.message());
  return text.substr(0, text.find('\n'));
}

}  // namespace

absl::Status AskForTop(Connection& connection, TopModel& model) {
  LGPU_ASSIGN_OR_RETURN(v1::StatsSnapshot stats, connection.Call(kGetStats, v1::GetStatsRequest()));
  // A daemon that was started again counts its events anew.
  if (stats.uptime_seconds() < model.stats.uptime_seconds()) model.events.clear();
  v1::WatchEventsRequest request;
  request.set_kept_only(true);
  if (!model.events.empty()) request.set_after_sequence(model.events.back().sequence());
  LGPU_RETURN_IF_ERROR((connection.Watch(kWatchEvents, request, [&model](const v1::Event& event) {
    model.events.push_back(event);
    return absl::OkStatus();
  })));
  if (model.events.size() > kKeptEvents) {
    model.events.erase(model.events.begin(), model.events.end() - static_cast<std::ptrdiff_t>(kKeptEvents));
  }
  if (model.stats.has_taken_at()) model.rates = RatesBetween(model.stats, stats);
  model.stats = std::move(stats);
  model.problem.clear();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TopFeed>> TopFeed::Start(const CommonOptions& options, Connection connection,
                                                        TopModel first, std::chrono::milliseconds interval) {
  UniqueFd news(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!news) return absl::ErrnoToStatus(errno, "lgpu top cannot start: no file descriptor to wait with");
  CommonOptions quick = options;
  quick.timeout = std::min(options.timeout, kLongestAnswer);
  std::unique_ptr<TopFeed> feed(
      new TopFeed(quick, std::move(connection), std::move(first), interval, std::move(news)));
  LGPU_ASSIGN_OR_RETURN(feed->thread_, Thread::Start(
                                           "lgpu-top", [raw = feed.get()] { raw->Run(); }, kStackBytes));
  return feed;
}

TopFeed::TopFeed(const CommonOptions& options, Connection connection, TopModel first,
                 std::chrono::milliseconds interval, UniqueFd news)
    : options_(options),
      interval_(interval),
      news_(std::move(news)),
      connection_(std::move(connection)),
      known_(std::move(first)),
      model_(known_) {}

TopFeed::~TopFeed() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.Join();
}

TopFeed::News TopFeed::Take() {
  std::uint64_t count = 0;
  // The read may fail: another wake-up may have taken the count. The model is returned in any case.
  (void)!::read(news_.get(), &count, sizeof count);
  const MutexLock lock(mutex_);
  return {model_, std::exchange(message_, "")};
}

void TopFeed::Refresh() {
  {
    const MutexLock lock(mutex_);
    at_once_ = true;
  }
  changed_.NotifyAll();
}

void TopFeed::EndLease(const std::string& id) {
  {
    const MutexLock lock(mutex_);
    to_end_ = id;
    at_once_ = true;
  }
  changed_.NotifyAll();
}

void TopFeed::Tell() {
  const std::uint64_t one = 1;
  (void)!::write(news_.get(), &one, sizeof one);
}

void TopFeed::Run() {
  while (true) {
    std::string to_end;
    {
      const MutexLock lock(mutex_);
      const auto until = std::chrono::steady_clock::now() + interval_;
      while (!stopping_ && !at_once_ && std::chrono::steady_clock::now() < until) {
        changed_.WaitUntil(mutex_, until);
      }
      if (stopping_) return;
      at_once_ = false;
      to_end = std::exchange(to_end_, "");
    }
    std::string message = to_end.empty() ? "" : End(to_end);
    Ask();
    {
      const MutexLock lock(mutex_);
      model_ = known_;
      if (!message.empty()) message_ = std::move(message);
    }
    Tell();
  }
}

void TopFeed::Ask() {
  absl::Status status;
  if (!connection_) {
    absl::StatusOr<Connection> connection = Connection::Open(options_);
    status = connection.status();
    if (connection.ok()) connection_ = *std::move(connection);
  }
  if (status.ok()) status = AskForTop(*connection_, known_);
  if (status.ok()) return;
  connection_.reset();
  known_.problem = absl::StrCat("OLD: ", FirstLine(status));
}

std::string TopFeed::End(const std::string& lease) {
  if (!connection_) return "the lease was not ended: lgpud does not answer";
  v1::RemoveLeaseRequest request;
  request.set_lease(lease);
  const absl::Status status = connection_->Call(kRemoveLease, request).status();
  return status.ok() ? "the lease is removed" : absl::StrCat("the lease was not ended: ", FirstLine(status));
}

}  // namespace lgpu::cli
