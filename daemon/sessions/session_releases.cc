// Leases that give memory up for requests of others: their release hooks run in the client.

#include "allocator/broker/session_releases.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/leases/lease_idle.h"
#include "daemon/sessions/session.h"

namespace lgpu::daemon {
namespace {

constexpr std::size_t kMaxMessageBytes = 200;
// The broker knows the last use by another clock, which it read a little earlier.
constexpr std::chrono::milliseconds kClocksDiffer{100};

/// The client's text, fit for a line of a log.
std::string CleanMessage(const std::string& message) {
  std::string clean = message.substr(0, kMaxMessageBytes);
  std::replace_if(
      clean.begin(), clean.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return clean;
}

std::chrono::milliseconds TimeUntil(std::chrono::steady_clock::time_point then) {
  const auto left = then - std::chrono::steady_clock::now();
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(left), std::chrono::milliseconds(0));
}

}  // namespace

Broker::SessionSpec Session::SpecFor(const wire::Hello& hello, std::uint32_t version) const {
  const bool gives_way = version >= wire::Protocol::kGiveWayVersion;
  return {.pid = peer_.credentials.pid,
          .waker = waker_,
          .trims = version >= wire::Protocol::kTrimVersion,
          .waits_longer = gives_way,
          .runs_release = gives_way && hello.runs_release,
          .suspends_itself = SuspendsItself(hello, version)};
}

void Session::TellLongerWait(Waiting& waiting) {
  const std::optional<Broker::TimePoint> until = services_.broker.releases().LongerWait(waiting.grow);
  if (!until || *until <= waiting.told_until) return;
  waiting.told_until = *until;
  Send({.body = wire::StillWaiting{.request_id = waiting.request_id,
                                   .more_ms = static_cast<std::uint64_t>(TimeUntil(*until).count())}});
}

void Session::SendReleases() {
  if (attesting_) return;  // as SendTrims
  for (const ReleaseOrder& order : services_.broker.releases().TakeOrders(peer_.id)) {
    // The broker learns once a second when leases were used.
    std::optional<Lease> lease;
    services_.leases.TellOf(order.lease, [&](const LeaseEvents&, const Lease& found) { lease = found; });
    const std::optional<UseTime> last = lease ? LastUse(*lease, services_.sessions) : std::nullopt;
    const UseTime idle = last ? UseTimeNow() - *last : UseTime(0);
    if (!last || idle + kClocksDiffer < LeastIdle(*lease)) {
      services_.broker.releases().Answer(peer_.id, order.id, ReleaseOutcome::kNotIdle).IgnoreError();
      continue;
    }
    Tell(v1::Event::KIND_GIVING_WAY,
         absl::StrCat("asked to give way: it has been idle for ",
                      std::chrono::duration_cast<std::chrono::seconds>(idle).count(),
                      "s, and a request lacks ", FormatBytes(order.bytes), " of what it holds"));
    Send({.body = wire::Release{.release_id = order.id.value,
                                .bytes = order.bytes.count(),
                                .limit_ms = static_cast<std::uint64_t>(order.limit.count())}});
  }
}

void Session::HandleReleased(const wire::Released& released) {
  const bool is_done = released.code == 0;
  if (!is_done) {
    Tell(v1::Event::KIND_GIVING_WAY,
         absl::StrCat("the release hook failed: ", CleanMessage(released.message)));
  }
  const absl::Status status = services_.broker.releases().Answer(
      peer_.id, ReleaseId{released.release_id}, is_done ? ReleaseOutcome::kDone : ReleaseOutcome::kFailed);
  if (!status.ok()) Break(status);
}

}  // namespace lgpu::daemon
