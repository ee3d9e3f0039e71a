#include "daemon/recovery/recovery.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/card_observer.h"
#include "allocator/broker/session_restore.h"
#include "lgpu/status.h"
#include "proto/mapped_region.h"

namespace lgpu::daemon {
namespace {

// How often missing and unexplained memory is looked for.
constexpr std::chrono::milliseconds kLook{500};

// The process, or one that is known to be gone.
struct Held {
  Process process;
  bool is_gone = false;
};
absl::StatusOr<Held> Hold(const v1::JournalSession& session) {
  absl::StatusOr<Process> process = HoldProcess(session.pid());
  if (absl::IsResourceExhausted(process.status())) return process.status();
  if (process.ok() && process->start_time == session.start_time()) {
    return Held{.process = *std::move(process)};
  }
  Held held;
  held.process.pid = session.pid();
  held.process.start_time = session.start_time();
  held.is_gone = process.ok() || absl::IsNotFound(process.status());
  return held;
}

absl::Status NoMeansFor(const v1::JournalSession& session, const absl::Status& why) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "lgpud cannot take up session ", session.id(), " of an earlier one (", std::string(why.message()),
      "), and its memory must not be granted twice; raise the limit of open files (LimitNOFILE=, ulimit -n) "
      "and start again"));
}

// Whether a session is one of those that left the GPUs.
bool IsIn(const v1::JournalSuspended& suspended, std::uint64_t session) {
  return std::any_of(suspended.charges().begin(), suspended.charges().end(),
                     [session](const v1::JournalCharged& charge) { return charge.session_id() == session; });
}

}  // namespace

absl::Status Recovery::RestoreSession(const JournalState& state, const v1::JournalSession& session,
                                      const Chunks& chunks, Restored& all) {
  const LeaseKey lease{session.lease_key()};
  std::vector<SessionRestore::RestoredCharge> charges;
  for (auto at = state.charges().lower_bound({session.id(), 0});
       at != state.charges().end() && at->first.first == session.id(); ++at) {
    charges.push_back({.device = LogicalId{at->first.second}, .bytes = Bytes(at->second)});
  }
  if (const auto known = state.leases().find(lease.value);
      known != state.leases().end() && IsIn(known->second.suspended(), session.id())) {
    charges.clear();  // they are in that record
  }
  if (parts_.leases.Names(lease).first.empty()) {  // it could not be restored
    if (const auto known = state.leases().find(lease.value);
        known != state.leases().end() && !known->second.removed()) {
      parts_.sessions.AddWaiting(session.token(), {.id = SessionId{session.id()},
                                                   .uid = session.uid(),
                                                   .lease = lease,
                                                   .lease_id = known->second.id()});
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<PollWaker>> waker = PollWaker::Create();
  absl::StatusOr<SharedPage<StatsPage>> stats_page = SharedPages::CreateStatsPage(MapWithBoost);
  absl::StatusOr<SharedPage<const ClientPage>> client_page = SharedPages::CreateClientPage(MapWithBoost);
  absl::StatusOr<Held> found = Hold(session);
  absl::Status means = waker.status();
  means.Update(stats_page.status());
  means.Update(client_page.status());
  means.Update(found.status());
  if (!means.ok()) return NoMeansFor(session, means);
  stats_page->CloseFd();
  client_page->CloseFd();
  Held held = *std::move(found);
  std::vector<std::uint64_t> pages(session.page_inodes().begin(), session.page_inodes().end());
  auto restored = std::make_shared<SessionState>(SessionState::Identity{.id = SessionId{session.id()},
                                                                        .uid = session.uid(),
                                                                        .command = session.command(),
                                                                        .token = session.token(),
                                                                        .earlier_pages = std::move(pages)},
                                                 std::move(held.process), *waker, *std::move(stats_page),
                                                 *std::move(client_page));
  if (const absl::Status status = parts_.broker.restore().AddSession(
          restored->id(), session.pid(), *std::move(waker), lease, chunks, charges);
      !status.ok()) {
    const std::string why =
        absl::StrCat("session ", session.id(), " cannot be restored: ", std::string(status.message()));
    spdlog::error("{}", why);
    if (const auto known = state.leases().find(lease.value); known != state.leases().end()) {
      for (const v1::JournalDevice& device : known->second.devices()) {
        doubted_.emplace(device.card_uuid(), why);
      }
    }
    return absl::OkStatus();
  }
  restored->SetAbsent(lease);
  parts_.sessions.Restore(restored);
  parts_.leases.RestoreSession(*restored);
  (held.is_gone ? all.gone : all.alive).push_back(std::move(restored));
  return absl::OkStatus();
}

Bytes Recovery::CountStrays(const Broker::CardInfo& card) {
  const auto strays =
      parts_.backend.FindStrays(card.card.backend_device, parts_.broker.restore().Identities(card.id));
  // Where a card reports its free memory, that figure covers used memory that no session has.
  if (absl::IsUnimplemented(strays.status()) && parts_.backend.FreeMemory(card.card.backend_device)) {
    return Bytes();
  }
  if (!strays.ok()) return card.view.total;
  Bytes sum;
  for (const DeviceMemory::Stray& stray : *strays) sum = SaturatingAdd(sum, stray.bytes);
  return RoundUp(sum, card.view.granularity);
}

void Recovery::SetUnexplained(const std::string& uuid, bool explained) {
  v1::JournalRecord record;
  record.mutable_unexplained()->set_card_uuid(uuid);
  record.mutable_unexplained()->set_explained(explained);
  parts_.journal.Note(record);
  if (explained) {
    unexplained_.erase(uuid);
  } else {
    unexplained_.insert(uuid);
  }
}

absl::Status Recovery::FindUnexplained(const Journal::Opened& found) {
  unexplained_ = found.state.unexplained();
  unexplained_.erase(Journal::kWasDamaged);
  unexplained_.erase(Journal::kWasMissing);
  unexplained_.erase(Journal::kWasOfAnotherBoot);
  const bool damaged = found.found == Journal::Found::kDamaged;
  for (const auto& [uuid, why] : doubted_) unexplained_.insert(uuid);
  for (const Broker::CardInfo& card : parts_.broker.Cards()) {
    const std::string& uuid = card.card.device.uuid;
    if (found.found != Journal::Found::kNone && !damaged && !unexplained_.contains(uuid)) continue;
    // Without a journal, and where strays can never be found, this counts as the first daemon here.
    const absl::Status look = parts_.backend.FindStrays(card.card.backend_device, {}).status();
    if (absl::IsResourceExhausted(look)) return look;
    const bool can_tell = !absl::IsUnimplemented(look);
    const Bytes strays = can_tell || damaged || unexplained_.contains(uuid) ? CountStrays(card) : Bytes();
    if (strays.is_zero()) {
      if (unexplained_.contains(uuid)) SetUnexplained(uuid, true);
      continue;
    }
    SetUnexplained(uuid, false);
    parts_.broker.observer().SetForeign(card.id, strays);
    const auto doubt = doubted_.find(uuid);
    const std::string why = damaged ? absl::StrCat("the journal is damaged (", found.detail, ")")
                            : doubt != doubted_.end() ? doubt->second
                                                      : "the journal is missing";
    parts_.Tell(
        v1::Event::KIND_UNEXPLAINED,
        absl::StrCat(
            why, ", and ", FormatBytes(strays), " of GPU ", card.card.index,
            " are held by processes that no record names; lgpud does not grant them until these end"));
  }
  return absl::OkStatus();
}

absl::Status Recovery::Run(const Journal::Opened& found, const LeaseStore::Found& lasting,
                           const LeaseRecovery::Names& wanted) {
  LeaseRecovery leases(parts_, found, lasting, wanted);
  leases.RestoreJournaled();
  doubted_ = leases.doubted();
  std::map<std::uint64_t, Chunks> chunks;
  for (const auto& [id, chunk] : found.state.chunks()) {
    chunks[chunk.session_id()].push_back({.id = ChunkId{id},
                                          .device = LogicalId{chunk.device_id()},
                                          .bytes = Bytes(chunk.bytes()),
                                          .identity = chunk.identity()});
  }
  Restored restored;
  for (const auto& [id, session] : found.state.sessions()) {
    LGPU_RETURN_IF_ERROR(RestoreSession(found.state, session, chunks[id], restored));
  }
  parts_.leases.RestoreSuspensions();
  leases.KeepOthersInFile();
  // Only now: a lease ends with its last known session, and sessions restored later may be of that lease.
  parts_.leases.EndUnused();
  for (std::shared_ptr<SessionState>& session : restored.alive) parts_.reclaimer.Watch(std::move(session));
  for (std::shared_ptr<SessionState>& session : restored.gone) {
    parts_.reclaimer.EndAbsent(std::move(session), /*is_gone=*/true);
  }
  parts_.broker.restore().ChargeOverhead();
  parts_.broker.observer().ObserveCards();
  LGPU_RETURN_IF_ERROR(FindUnexplained(found));
  leases.RestoreOthers();
  parts_.journal.Settled();
  parts_.leases.MakeMissing();
  if (const absl::Status status = parts_.journal.Commit(); !status.ok()) {
    spdlog::error("{}", std::string(status.message()));
  }
  return absl::OkStatus();
}

void Recovery::EndUnwatched(Clock::time_point now) {
  const std::map<SessionId, Clock::time_point> before = std::exchange(unwatched_since_, {});
  for (const std::shared_ptr<SessionState>& session : parts_.sessions.All()) {
    if (session->phase() != SessionState::Phase::kAbsent || session->process().pidfd) continue;
    const auto known = before.find(session->id());
    const Clock::time_point since = known == before.end() ? now : known->second;
    if (now - since > kUnwatchedPatience) {
      parts_.reclaimer.EndAbsent(session, /*is_gone=*/false);
    } else {
      unwatched_since_.emplace(session->id(), since);
    }
  }
}

void Recovery::EndAbandoned() {
  std::vector<std::shared_ptr<SessionState>> living;
  for (const std::shared_ptr<SessionState>& session : parts_.sessions.All()) {
    if (session->phase() != SessionState::Phase::kAbsent) continue;
    if (!session->end_request().ok()) {
      parts_.reclaimer.EndAbsent(session, /*is_gone=*/false);  // with a grace, as for a connected session
    } else if (session->process().IsGone()) {
      parts_.reclaimer.EndAbsent(session, /*is_gone=*/true);
    } else if (session->process().pidfd && !session->pages().empty()) {
      living.push_back(session);
    }
  }
  const std::map<SessionId, bool> maps = search_.Look(living);
  const std::set<SessionId> before = std::exchange(abandoned_, {});
  for (const std::shared_ptr<SessionState>& session : living) {
    const SessionId id = session->id();
    const auto found = maps.find(id);
    const bool was_abandoned = before.contains(id);
    if (found == maps.end()) {
      if (was_abandoned) abandoned_.insert(id);
    } else if (!found->second && was_abandoned) {
      // Two looks must agree: /proc is no snapshot of a process that maps and unmaps meanwhile.
      parts_.reclaimer.EndAbsent(session, /*is_gone=*/true);
    } else if (!found->second) {
      abandoned_.insert(id);
    }
  }
}

void Recovery::Tend() {
  const Clock::time_point now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLook;
  parts_.leases.MakeMissing();
  parts_.leases.TendFile();
  EndUnwatched(now);
  if (now - started_ > kBackPatience) EndAbandoned();
  if (unexplained_.empty()) return;
  for (const Broker::CardInfo& card : parts_.broker.Cards()) {
    if (!unexplained_.contains(card.card.device.uuid)) continue;
    const Bytes strays = CountStrays(card);
    parts_.broker.observer().SetForeign(card.id, strays);
    if (strays.is_zero()) SetUnexplained(card.card.device.uuid, true);
  }
}

}  // namespace lgpu::daemon
