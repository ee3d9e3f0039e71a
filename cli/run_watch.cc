#include "cli/run_watch.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/process.h"
#include "base/refusal_text.h"
#include "base/wrapped_text.h"
#include "cli/control_methods.h"
#include "lgpu/bytes.h"
#include "lgpu/refusal.h"
#include "proto/refusal_messages.h"

namespace lgpu::cli {
namespace {

constexpr time_t kSecondsBetween = 2;
constexpr int kDeepest = 64;  // of a tree of processes
constexpr int kWholeAtOnce = 3;
constexpr int kLooksSkipped = 15;  // 30 seconds

/// The whole refusal where the event has it, by lines.
std::string ExplanationOf(const v1::Event& event) {
  std::string text = absl::StrCat("lgpu: refused (pid ", event.pid(), "): ");
  if (event.has_refusal()) {
    const Refusal refusal = RefusalFromProto(event.refusal());
    AppendWrapped(text, RefusalHeadline(refusal), text.size(), 4);
    text += RefusalDetails(refusal);
  } else {
    text += event.text();
  }
  std::vector<std::string> lines;
  for (const auto line : absl::StrSplit(text, '\n')) {
    lines.push_back(Printable(std::string_view(line.data(), line.size())));
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace

bool DescendsFrom(std::int64_t pid, pid_t ancestor) {
  for (int depth = 0; depth < kDeepest && pid > 1; ++depth) {
    if (pid == ancestor) return true;
    pid = ParentProcess(pid);
  }
  return false;
}

absl::StatusOr<WakeUp> WakeUp::Make(int also) {
  WakeUp made;
  made.timer_ = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  made.epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  const itimerspec every{.it_interval = {.tv_sec = kSecondsBetween, .tv_nsec = 0},
                         .it_value = {.tv_sec = kSecondsBetween, .tv_nsec = 0}};
  epoll_event event{};
  event.events = EPOLLIN;
  if (!made.timer_ || !made.epoll_ || ::timerfd_settime(made.timer_.get(), 0, &every, nullptr) != 0 ||
      ::epoll_ctl(made.epoll_.get(), EPOLL_CTL_ADD, made.timer_.get(), &event) != 0 ||
      ::epoll_ctl(made.epoll_.get(), EPOLL_CTL_ADD, also, &event) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "lgpu cannot watch the command: the system gives it no timer (", std::strerror(errno), ")"));
  }
  return made;
}

bool WakeUp::TakeTick() {
  std::uint64_t ticks = 0;
  return ::read(timer_.get(), &ticks, sizeof(ticks)) == static_cast<ssize_t>(sizeof(ticks));
}

RunWatch::Shared RunWatch::FromNowOn(Connection& connection, const v1::Lease& lease) {
  v1::WatchEventsRequest request;
  request.set_lease(lease.id());
  request.set_kept_only(true);
  Shared shared;
  // Without an answer earlier refusals are told too, and the looks find out that the daemon is away.
  connection
      .Watch(kWatchEvents, request,
             [&](const v1::Event& event) {
               shared.after = std::max(shared.after, event.sequence());
               return absl::OkStatus();
             })
      .IgnoreError();
  return shared;
}

bool RunWatch::IsOfAnotherProgram(std::int64_t pid) const {
  return is_shared_ && ParentProcess(pid) > 0 && !DescendsFrom(pid, pid_);
}

void RunWatch::Look() {
  if (looks_to_skip_ > 0) {
    --looks_to_skip_;
    return;
  }
  LookForRefusals();
  if (looks_to_skip_ == 0) LookForBypass();
}

bool RunWatch::DaemonStartedAgain() {
  CommonOptions same = options_;
  same.endpoint = connection_->runtime_dir();
  absl::StatusOr<Connection> next = Connection::Open(same);
  if (!next.ok()) return false;  // the looks that follow find no daemon
  successor_ = *std::move(next);
  connection_ = &*successor_;
  looks_to_skip_ = 0;
  seen_ = 0;
  return true;
}

void RunWatch::LookForRefusals() {
  v1::WatchEventsRequest request;
  request.set_lease(lease_.id());
  request.set_kept_only(true);
  int whole = 0, counted = 0;
  const absl::Status status = connection_->Watch(kWatchEvents, request, [&](const v1::Event& event) {
    if (event.sequence() <= seen_) return absl::OkStatus();
    seen_ = event.sequence();
    if (IsOfAnotherProgram(event.pid())) return absl::OkStatus();
    if (event.kind() == v1::Event::KIND_UNCHARGED) {
      options_.Note(absl::StrCat("lgpu: warning: ", Printable(event.text())));
    }
    if (event.kind() == v1::Event::KIND_REFUSED) {
      const bool is_new =
          whole < kWholeAtOnce &&
          told_.emplace(event.pid(), event.refusal().what(), static_cast<int>(event.refusal().reason()))
              .second;
      is_new ? ++whole : ++counted;
      if (is_new) options_.Note(ExplanationOf(event));
    }
    return absl::OkStatus();
  });
  if (counted > 0) {
    options_.Note(absl::StrCat("lgpu: refused: ", counted, " more ", counted == 1 ? "request" : "requests",
                               "; lgpu events --lease ", Printable(lease_.name()), " has ",
                               counted == 1 ? "it" : "them"));
  }
  if (!status.ok()) looks_to_skip_ = kLooksSkipped;
}

void RunWatch::LookForBypass() {
  const absl::StatusOr<v1::StatsSnapshot> snapshot = connection_->Call(kGetStats, v1::GetStatsRequest());
  if (!snapshot.ok()) {
    looks_to_skip_ = kLooksSkipped;
    return;
  }
  for (const v1::CardStats& card : snapshot->cards()) {
    for (const v1::ForeignProcess& process : card.foreign_processes()) {
      if (bypassing_.contains(process.pid()) || !DescendsFrom(process.pid(), pid_)) continue;
      bypassing_.insert(process.pid());
      options_.Note(absl::StrCat("lgpu: warning: pid ", process.pid(), " (", Printable(process.command()),
                                 ") uses ", FormatBytes(Bytes(process.used_bytes())), " of GPU ",
                                 card.index(),
                                 ", bypassing lgpu: it never attached, so its memory is not limited "
                                 "(docs/unmodified.md lists the possible reasons)"));
    }
  }
}

}  // namespace lgpu::cli
