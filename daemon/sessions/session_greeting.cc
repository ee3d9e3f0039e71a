// The start of a session: greeting, and attaching to a lease.

#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/sessions/session.h"
#include "lgpu/status.h"
#include "proto/generated_messages.h"
#include "proto/mapped_region.h"

namespace lgpu::daemon {
namespace {

constexpr std::size_t kTokenBytes = 32;
constexpr std::size_t kMaxCommandBytes = 256;

absl::StatusOr<std::string> RandomBytes(std::size_t count) {
  std::string bytes(count, '\0');
  if (::getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count)) {
    return absl::InternalError("getrandom gave too little");
  }
  return bytes;
}

// The client's name for itself, fit for a line of a log.
std::string CleanCommand(const std::string& command, std::int64_t pid) {
  // A process names itself in /proc too.
  std::string clean = command.empty() ? ProcessCommand(pid) : command.substr(0, kMaxCommandBytes);
  std::replace_if(
      clean.begin(), clean.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return clean.empty() ? "a program" : clean;
}

}  // namespace

std::size_t Session::ClientPageBytes(std::uint32_t version) {
  return version >= wire::Protocol::kChargeVersion ? sizeof(ClientPage) : kClientPageBytesWithoutCharges;
}

bool Session::AnswersSnapshots(const wire::Hello& hello, std::uint32_t version) {
  return hello.answers_snapshots && version >= wire::Protocol::kSnapshotVersion;
}

bool Session::Greet() {
  absl::StatusOr<wire::Hello> hello = ReceiveHello();
  absl::Status status = hello.status();
  std::uint32_t version = 0;
  if (status.ok()) {
    version = std::min(hello->protocol_version, wire::Protocol::kProtocolVersion);
    if (version < std::max(hello->oldest_version, wire::Protocol::kOldestVersion)) {
      status = absl::FailedPreconditionError(
          absl::StrCat("the client speaks versions ", hello->oldest_version, " to ", hello->protocol_version,
                       " of the session protocol, this daemon ", wire::Protocol::kOldestVersion, " to ",
                       wire::Protocol::kProtocolVersion, "; update the older one"));
    }
  }
  if (status.ok()) status = hello->resume ? TakeUp(*hello, version) : MakeState(*hello, version);
  if (!status.ok()) {
    if (absl::IsInvalidArgument(status)) Tell(v1::Event::KIND_PROTOCOL_ERROR, std::string(status.message()));
    if (absl::IsResourceExhausted(status)) WarnNotServed(services_.log_limit, peer_.credentials, status);
    SayGoodbye(status);
    return false;
  }
  if (absl::Status sent = SendWelcome(version); !sent.ok()) Break(sent);
  // Only now: the reclaimer wakes the session once, and the waits of a greeting would lose that.
  services_.reclaimer.Watch(state_);
  return true;
}

absl::StatusOr<wire::Hello> Session::ReceiveHello() {
  pollfd polled[] = {{.fd = channel_.fd(), .events = POLLIN, .revents = 0},
                     {.fd = waker_->fd(), .events = POLLIN, .revents = 0}};
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(kHelloTimeout).count();
  ::poll(polled, 2, static_cast<int>(timeout));
  if (stop_.load()) return absl::UnavailableError("the daemon is stopping");
  wire::ReceivedFrame received;
  LGPU_RETURN_IF_ERROR(channel_.Receive(received, wire::Channel::kAtOnce));
  auto* const hello = std::get_if<wire::Hello>(&received.frame.body);
  if (hello == nullptr || !received.fds.empty() || received.fds_cut || received.frame.acknowledges != 0) {
    return absl::InvalidArgumentError(
        "the first frame of a session is Hello, without descriptors and with nothing to acknowledge");
  }
  return std::move(*hello);
}

absl::Status Session::MakeState(const wire::Hello& hello, std::uint32_t version) {
  LGPU_ASSIGN_OR_RETURN(std::string token, RandomBytes(kTokenBytes));
  LGPU_ASSIGN_OR_RETURN(SharedPage<StatsPage> stats_page, SharedPages::CreateStatsPage(MapWithBoost));
  LGPU_ASSIGN_OR_RETURN(SharedPage<const ClientPage> client_page,
                        SharedPages::CreateClientPage(MapWithBoost, ClientPageBytes(version)));
  SessionState::Identity identity{.id = peer_.id,
                                  .uid = peer_.credentials.uid,
                                  .command = CleanCommand(hello.command, peer_.credentials.pid),
                                  .token = std::move(token),
                                  .protocol_version = version,
                                  .answers_snapshots = AnswersSnapshots(hello, version),
                                  .suspends = Suspends(hello, version),
                                  .suspends_itself = SuspendsItself(hello, version)};
  state_ = std::make_shared<SessionState>(std::move(identity), std::move(peer_.process), waker_,
                                          std::move(stats_page), std::move(client_page));
  services_.broker.AddSession(peer_.id, SpecFor(hello, version));
  absl::Status added = services_.sessions.Add(state_);
  if (!added.ok()) services_.broker.RemoveSession(peer_.id);
  return added;
}

absl::Status Session::SendWelcome(std::uint32_t version) {
  const wire::Frame frame{
      .body = wire::Welcome{.protocol_version = version,
                            .session_id = peer_.id.value,
                            .session_token = {state_->identity().token},
                            .stats_page_bytes = sizeof(StatsPage),
                            .client_page_bytes = static_cast<std::uint32_t>(ClientPageBytes(version)),
                            .daemon = "lgpud " LGPU_VERSION,
                            .resumed = attesting_}};
  const int fds[] = {state_->stats_page().fd(), state_->client_page().fd()};
  const Clock::time_point deadline = Clock::now() + kSendTimeout;
  while (!services_.budget.TryTake(peer_.id, waker_, std::size(fds))) {
    pollfd polled = {.fd = waker_->fd(), .events = POLLIN, .revents = 0};
    ::poll(&polled, 1, 100);
    waker_->Clear();
    if (Clock::now() >= deadline || stop_.load()) {
      return absl::UnavailableError("too many descriptors lie unread in other sessions; connect again later");
    }
  }
  fds_in_flight_ = std::size(fds);
  welcome_in_flight_ = true;
  sent_at_ = Clock::now();
  absl::Status sent = channel_.Send(frame, fds, deadline);
  while (absl::IsAborted(sent) && Clock::now() < deadline && !stop_.load()) {
    pollfd polled = {.fd = waker_->fd(), .events = POLLIN, .revents = 0};
    ::poll(&polled, 1, 10);
    sent = channel_.Send(frame, fds, deadline);
  }
  return sent;
}

// As Control.AttachLease. It does not wait for memory, only for the journal's write.
void Session::HandleAttach(const wire::Attach& request) {
  if (request.request_id == 0) {
    Break(absl::InvalidArgumentError("request_id 0 of Attach is not allowed"));
    return;
  }
  absl::StatusOr<v1::Lease> lease =
      services_.leases.Attach({.uid = state_->uid(), .session = state_, .only = peer_.only}, request.lease);
  wire::Attached attached{.request_id = request.request_id,
                          .code = static_cast<int>(lease.status().code()),
                          .message = std::string(lease.status().message()),
                          .lease = {}};
  if (lease.ok()) attached.lease = ToStruct<wire::Lease>(*lease);
  Send({.body = std::move(attached)});
}

}  // namespace lgpu::daemon
