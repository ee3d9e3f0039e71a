// A session that an earlier daemon had: its client connects again and attests its chunks.

#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/session_restore.h"
#include "daemon/sessions/session.h"
#include "lgpu/status.h"
#include "proto/mapped_region.h"

namespace lgpu::daemon {
namespace {

// A final answer: the client gives up, since the next attempt would have the same answer.
absl::Status CannotBeTakenUp(std::uint64_t session, std::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("session ", session, " cannot be resumed: ", std::string(why),
                   "; open a new Context. The old one's memory stays charged until "
                   "its process ends"));
}

// No final answer: the client asks again, and a later daemon may have the lease again.
absl::Status WaitsFor(const SessionDirectory::Waiting& session) {
  return absl::UnavailableError(absl::StrCat("session ", session.id.value, " is of lease ", session.lease_id,
                                             ", which lgpud cannot serve now, because its GPU is "
                                             "missing or its name or memory is taken; the session goes on "
                                             "when a later start of lgpud can serve the lease, and `lgpu rm ",
                                             session.lease_id, "` gives the lease up"));
}

}  // namespace

absl::Status Session::TakeUp(const wire::Hello& hello, std::uint32_t version) {
  const wire::Resume& resume = *hello.resume;
  const std::shared_ptr<SessionState> absent = services_.sessions.FindToken(resume.session_token.bytes);
  if (const auto waiting = services_.sessions.FindWaiting(resume.session_token.bytes);
      waiting && waiting->id.value == resume.session_id && waiting->uid == peer_.credentials.uid) {
    return WaitsFor(*waiting);
  }
  if (absent == nullptr || absent->id().value != resume.session_id ||
      absent->uid() != peer_.credentials.uid) {
    return CannotBeTakenUp(resume.session_id, "you have no such session at this lgpud");
  }
  const Process& process = absent->process();
  if (process.pid != peer_.process.pid || process.start_time != peer_.process.start_time) {
    return CannotBeTakenUp(resume.session_id, "it is another process's");
  }
  if (absl::Status why = absent->end_request(); !why.ok()) return why;
  LGPU_ASSIGN_OR_RETURN(SharedPage<StatsPage> stats_page, SharedPages::CreateStatsPage(MapWithBoost));
  LGPU_ASSIGN_OR_RETURN(SharedPage<const ClientPage> client_page,
                        SharedPages::CreateClientPage(MapWithBoost, ClientPageBytes(version)));
  if (!absent->LeaveAbsent()) {
    // The earlier connection's end may not be known yet: the client asks again.
    return absl::UnavailableError(
        absl::StrCat("session ", resume.session_id, " has a connection; try again"));
  }
  services_.reclaimer.Unwatch(*absent);
  peer_.id = absent->id();
  SessionState::Identity identity = absent->identity();
  identity.protocol_version = version;
  identity.answers_snapshots = AnswersSnapshots(hello, version);
  identity.suspends = Suspends(hello, version);
  identity.suspends_itself = SuspendsItself(hello, version);
  identity.has_suspended = (identity.suspends || identity.suspends_itself) && hello.has_suspended;
  identity.earlier_pages = absent->pages();  // also of attempts that failed
  // The client maps one of them. All must be known: a client that maps none of them counts as closed.
  constexpr std::size_t kMostEarlierPages = 64;
  if (identity.earlier_pages.empty() || identity.earlier_pages.size() > kMostEarlierPages) {
    identity.earlier_pages.clear();
    identity.pages_unknown = true;
  }
  state_ = std::make_shared<SessionState>(std::move(identity), std::move(peer_.process), waker_,
                                          std::move(stats_page), std::move(client_page));
  absl::Status attached = state_->Attach(absent->lease());
  services_.sessions.Replace(state_);
  services_.broker.restore().StartAttesting(peer_.id, SpecFor(hello, version));
  attesting_ = true;
  if (const absl::Status why = absent->end_request(); !why.ok()) state_->RequestEnd(why);
  services_.leases.WriteStats(*state_);
  // Recorded before the client has the new page: a later daemon tells by the mapped pages that the client
  // lives.
  attached.Update(services_.leases.RecordSession(*state_));
  if (!attached.ok()) GoAbsent();
  return attached;
}

void Session::HandleAttest(const wire::Attest& page, std::vector<UniqueFd>& fds) {
  if (!std::exchange(maps_page_, true)) {
    // An attestation shows that the client maps the page of this connection.
    state_->ForgetEarlierPages();
    services_.leases.RecordSession(*state_).IgnoreError();  // the journal's present record is right too
  }
  const std::size_t count = page.chunks.size();
  absl::Status status;
  if (!fds.empty() && fds.size() != count) {
    status = absl::InvalidArgumentError(
        absl::StrCat(count, " chunks were named, and ", fds.size(), " descriptors came with them"));
  }
  for (std::size_t i = 0; i < count && status.ok(); ++i) {
    const wire::Chunk& chunk = page.chunks[i];
    status = services_.broker.restore().Attest(peer_.id, LogicalId{page.device_id},
                                               {.id = ChunkId{chunk.id}, .bytes = Bytes(chunk.bytes)},
                                               fds.empty() ? UniqueFd() : std::move(fds[i]));
  }
  if (!status.ok()) {
    Break(status);
    return;
  }
  // The answer goes first: the search for missing chunks goes over the whole machine.
  Send({.body = wire::Attested{}});
  if (!page.more && end_ == End::kNone) FinishAttesting();
}

void Session::FinishAttesting() {
  services_.broker.restore().FinishAttesting(peer_.id);
  attesting_ = false;
  unheard_ = true;
  state_->placements().BeginWithLastLap();
  services_.leases.SessionBack(*state_);
  if (services_.suspender != nullptr && state_->identity().has_suspended) {
    services_.suspender->RunnerBack(*state_);
  }
  SendTrims();
  SendReleases();
  SendSuspends();
}

void Session::GoAbsent() {
  state_->ClosePageFds();
  services_.broker.restore().GoAbsent(peer_.id);
  state_->SetAbsent(state_->lease());
  services_.reclaimer.Watch(state_);
}

}  // namespace lgpu::daemon
