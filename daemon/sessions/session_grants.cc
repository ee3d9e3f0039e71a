// The sending half of a Session: grants in pages, within the budget of descriptors in flight.

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/session_trims.h"
#include "base/refusal_text.h"
#include "daemon/sessions/session.h"
#include "proto/refusal_codec.h"

namespace lgpu::daemon {
namespace {

constexpr std::chrono::milliseconds kRetry{10};
// How long a grant that is partly delivered may fail to export the rest.
constexpr std::chrono::seconds kExportPatience{5};

// True where the client has read everything that was sent.
bool IsAllRead(int socket) {
  int unread = 0;
  return ::ioctl(socket, SIOCOUTQ, &unread) == 0 && unread == 0;
}

}  // namespace

std::uint64_t Session::NextGrantId() {
  std::uint64_t id = 0;
  while (id == 0) {
    if (grant_ids_.empty()) {
      grant_ids_.resize(kGrantIdsAtOnce);
      const std::size_t bytes = kGrantIdsAtOnce * sizeof(id);
      if (::getrandom(grant_ids_.data(), bytes, 0) != static_cast<ssize_t>(bytes)) {
        grant_ids_.clear();
        continue;
      }
    }
    id = grant_ids_.back();
    grant_ids_.pop_back();
  }
  return id;
}

void Session::Send(const wire::Frame& frame) {
  if (end_ == End::kNone && !channel_.Send(frame, {}, Clock::now() + kSendTimeout).ok()) end_ = End::kLost;
}

void Session::Refuse(std::uint64_t request_id, const absl::Status& status, Growth growth) {
  wire::GrowRefused refused{.request_id = request_id,
                            .code = static_cast<int>(status.code()),
                            .message = std::string(status.message()),
                            .refusal = {}};
  if (const std::optional<Refusal> refusal = GetRefusal(status)) refused.refusal = RefusalToWire(*refusal);
  if (growth == Growth::kNeeded && !absl::IsCancelled(status)) TellRefused(status);
  Send({.body = std::move(refused)});
}

void Session::TellRefused(const absl::Status& status) {
  std::string text = StatusHeadline(status);
  if (const std::optional<Refusal> refusal = GetRefusal(status)) {
    absl::StrAppend(&text, "; asked for ", FormatBytes(refusal->asked));
    if (!refusal->what.empty()) absl::StrAppend(&text, " by ", refusal->what);
  }
  Tell(v1::Event::KIND_REFUSED, std::move(text), &status);
}

void Session::SendTrims() {
  if (attesting_) return;  // the client takes the next frame for Attested
  for (const TrimOrder& order : services_.broker.trims().TakeOrders(peer_.id)) {
    Send({.body = wire::Trim{
              .trim_id = order.id.value, .device_id = order.device.value, .bytes = order.bytes.count()}});
  }
}

void Session::HandleAck(std::uint64_t grant) {
  if (grant_in_flight_ == 0 || grant != grant_in_flight_) {
    Break(absl::InvalidArgumentError(absl::StrCat("Ack of grant ", grant, ", which does not wait for one")));
    return;
  }
  ReleaseInFlight();
}

void Session::ReleaseInFlight() {
  const std::size_t count = std::exchange(fds_in_flight_, 0);
  grant_in_flight_ = 0;
  welcome_in_flight_ = false;
  if (count > 0) services_.budget.GiveBack(count);
}

void Session::CheckUnread() {
  if (welcome_in_flight_ && IsAllRead(channel_.fd())) ReleaseInFlight();
  if (fds_in_flight_ == 0 || turn_ < sent_at_ + kUnreadTimeout || !services_.budget.contended()) return;
  if (IsAllRead(channel_.fd())) {
    // The client has read all and not acknowledged it, as a stopped process. The next page still waits.
    services_.budget.GiveBack(std::exchange(fds_in_flight_, 0));
  } else {
    Break(absl::DeadlineExceededError(absl::StrCat(
        fds_in_flight_, " descriptors lay unread for more than ", kUnreadTimeout.count(),
        " s while other sessions waited for some; a client has to read its session and acknowledge grants")));
  }
}

void Session::Pump() {
  if (retry_at_ && Clock::now() < *retry_at_) return;
  retry_at_.reset();
  if (welcome_in_flight_ && IsAllRead(channel_.fd())) ReleaseInFlight();
  if (end_ != End::kNone || outgoing_.empty()) return;
  if (fds_in_flight_ == 0 && grant_in_flight_ == 0 && SendPage(outgoing_.front())) {
    outgoing_.pop_front();
  } else if (welcome_in_flight_) {
    retry_at_ = Clock::now() + kRetry;
  }
}

bool Session::SendPage(Outgoing& outgoing) {
  const std::size_t count = std::min(outgoing.rest().size(), services_.budget.per_message());
  if (!services_.budget.TryTake(peer_.id, waker_, count)) return false;
  const std::span<const Chunk> chunks = outgoing.rest().first(count);
  if (page_.Get<wire::Grant>() == nullptr) page_.body = wire::Grant{};
  wire::Grant& grant = std::get<wire::Grant>(page_.body);
  grant.chunks.clear();
  exported_.clear();
  page_fds_.clear();
  for (const Chunk& granted : chunks) {
    absl::StatusOr<ExportedFd> fd = services_.broker.Export(peer_.id, granted.id);
    if (!fd.ok()) {
      exported_.clear();
      services_.budget.GiveBack(count);
      return FailPage(outgoing, fd.status());
    }
    page_fds_.push_back((*fd)->get());
    exported_.push_back(*std::move(fd));
    grant.chunks.push_back({.id = granted.id.value, .bytes = granted.bytes.count()});
  }
  failing_since_.reset();
  grant.request_id = outgoing.request_id;
  grant.grant_id = NextGrantId();
  grant.device_id = outgoing.device.value;
  grant.more = count < outgoing.rest().size();
  const Clock::time_point now = Clock::now();
  const absl::Status sent = channel_.Send(page_, page_fds_, now + kSendTimeout);
  exported_.clear();
  if (!sent.ok()) {
    services_.budget.GiveBack(count);
    if (absl::IsAborted(sent)) {
      retry_at_ = Clock::now() + kRetry;
    } else {
      end_ = End::kLost;
    }
    return false;
  }
  outgoing.sent += count;
  grant_in_flight_ = grant.grant_id;
  fds_in_flight_ = count;
  sent_at_ = now;
  if (!outgoing.rest().empty()) return false;
  if (services_.grant_times != nullptr) services_.grant_times->Observe(now - outgoing.asked_at);
  return true;
}

bool Session::FailPage(Outgoing& outgoing, const absl::Status& status) {
  if (outgoing.sent == 0) {
    std::vector<ChunkId> chunks;
    Bytes asked;
    for (const Chunk& chunk : outgoing.chunks) {
      chunks.push_back(chunk.id);
      asked += chunk.bytes;
    }
    services_.broker.Return(peer_.id, outgoing.device, chunks).IgnoreError();
    Refuse(outgoing.request_id, services_.broker.ExplainExport(outgoing.device, asked, status));
    return true;
  }
  // Part of the grant is delivered: the rest has to follow, or the session ends.
  const Clock::time_point now = Clock::now();
  if (!failing_since_) failing_since_ = now;
  if (now - *failing_since_ > kExportPatience) Break(status);
  retry_at_ = now + kRetry;
  return false;
}

}  // namespace lgpu::daemon
