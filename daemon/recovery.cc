#include "daemon/recovery.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

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

}  // namespace

void Recovery::Tell(v1::Event::Kind kind, std::string text) {
  spdlog::warn("{}", text);
  v1::Event event;
  event.set_kind(kind);
  event.set_text(std::move(text));
  parts_.events.Append(std::move(event), std::nullopt);
}

void Recovery::Forget(const JournalState& state, const v1::JournalLease& lease) {
  const bool in_use = std::any_of(state.sessions().begin(), state.sessions().end(), [&](const auto& session) {
    return session.second.lease_key() == lease.key();
  });
  if (in_use) return;  // a later daemon may serve its cards again
  v1::JournalRecord record;
  record.mutable_lease_gone()->set_key(lease.key());
  parts_.journal.Note(record);
}

void Recovery::RestoreLeases(const JournalState& state, const std::vector<v1::JournalLease>& lasting,
                             const Names& wanted) {
  std::set<std::string> restored;
  Names names;
  std::set<std::uint64_t> in_use;
  for (const auto& [id, session] : state.sessions()) in_use.insert(session.lease_key());
  const auto restore = [&](const v1::JournalLease& lease) {
    const absl::Status status = parts_.leases.Restore(lease);
    if (status.ok()) {
      restored.insert(lease.id());
      if (!lease.removed()) names.emplace(lease.owner_uid(), lease.name());
      return true;
    }
    if (in_use.contains(lease.key())) {
      DoubtCardsOf(lease, absl::StrCat("lease ", lease.name(), " has sessions and cannot be restored"));
    }
    Tell(v1::Event::KIND_LEASE_DEGRADED,
         absl::StrCat("lease ", lease.name(), " cannot be restored now: ", std::string(status.message())));
    return false;
  };
  std::set<std::string> removed;
  for (const auto& [key, lease] : state.leases()) {
    if (lease.removed()) removed.insert(lease.id());
  }
  Names there;  // that nobody removed
  const auto add = [&](const v1::JournalLease& lease) {
    if (!removed.contains(lease.id())) there.emplace(lease.owner_uid(), lease.name());
  };
  for (const auto& [key, lease] : state.leases()) add(lease);
  for (const v1::JournalLease& lease : lasting) add(lease);
  for (const auto& [key, known] : state.leases()) {
    v1::JournalLease lease = known;
    const Names::value_type name(lease.owner_uid(), lease.name());
    if (lease.removed() && lease.lasting() && in_use.contains(key) && wanted.contains(name) &&
        there.insert(name).second) {
      lease.clear_removed();
      removed.erase(lease.id());
    }
    const bool is_needed = (lease.lasting() && !lease.removed()) || in_use.contains(key);
    if ((!is_needed || !restore(lease)) && !lease.removed()) Forget(state, lease);
  }
  v1::JournalIds ids = state.ids();
  for (v1::JournalLease lease : lasting) {
    if (restored.contains(lease.id()) || removed.contains(lease.id())) continue;
    // Keys are the file's own: the next daemon may have numbered others so far.
    ids.set_lease_key(ids.lease_key() + 1);
    lease.set_key(ids.lease_key());
    for (v1::JournalDevice& device : *lease.mutable_devices()) {
      ids.set_device_id(ids.device_id() + 1);
      device.set_id(ids.device_id());
    }
    if (names.contains({lease.owner_uid(), lease.name()})) {
      Tell(v1::Event::KIND_LEASE_DEGRADED,
           absl::StrCat("lease ", lease.id(), " waits while another one has its name, ", lease.name()));
      parts_.leases.KeepInFile(lease);
    } else if (!restore(lease)) {
      parts_.leases.KeepInFile(lease);
    }
  }
  parts_.leases.SkipKeys(LeaseKey{ids.lease_key()});
  parts_.broker.SkipIds(LogicalId{ids.device_id()}, ChunkId{ids.chunk_id()});
  // The daemon before may have died between the journal and the file, or could not write it, or it was
  // damaged.
  const bool is_any = !lasting.empty() || !state.leases().empty();
  if (is_any && parts_.leases.SaveLasting().ok()) {
    for (const auto& [key, lease] : state.leases()) {
      if (lease.removed() && !restored.contains(lease.id())) Forget(state, lease);
    }
  }
}

void Recovery::DoubtCardsOf(const v1::JournalLease& lease, const std::string& why) {
  for (const v1::JournalDevice& device : lease.devices()) doubted_.emplace(device.card_uuid(), why);
}

absl::Status Recovery::RestoreSession(const JournalState& state, const v1::JournalSession& session,
                                      const Chunks& chunks, Restored& all) {
  const LeaseKey lease{session.lease_key()};
  if (parts_.leases.Names(lease).first.empty()) return absl::OkStatus();  // it could not be restored
  absl::StatusOr<Waker> waker = Waker::Create();
  absl::StatusOr<SharedPage<StatsPage>> stats_page = SharedPages::CreateStatsPage();
  absl::StatusOr<SharedPage<const ClientPage>> client_page = SharedPages::CreateClientPage();
  absl::StatusOr<Held> found = Hold(session);
  absl::Status means = waker.status();
  means.Update(stats_page.status());
  means.Update(client_page.status());
  means.Update(found.status());
  if (!means.ok()) return NoMeansFor(session, means);
  stats_page->CloseFd();
  client_page->CloseFd();
  Held held = *std::move(found);
  auto shared_waker = std::make_shared<Waker>(*std::move(waker));
  std::vector<std::uint64_t> pages(session.page_inodes().begin(), session.page_inodes().end());
  auto restored = std::make_shared<SessionState>(SessionState::Identity{.id = SessionId{session.id()},
                                                                        .uid = session.uid(),
                                                                        .command = session.command(),
                                                                        .token = session.token(),
                                                                        .earlier_pages = std::move(pages)},
                                                 std::move(held.process), shared_waker,
                                                 *std::move(stats_page), *std::move(client_page));
  if (const absl::Status status =
          parts_.broker.RestoreSession(restored->id(), session.pid(), std::move(shared_waker), lease, chunks);
      !status.ok()) {
    const std::string why =
        absl::StrCat("session ", session.id(), " cannot be restored: ", std::string(status.message()));
    spdlog::error("{}", why);
    if (const auto known = state.leases().find(lease.value); known != state.leases().end()) {
      DoubtCardsOf(known->second, why);
    }
    return absl::OkStatus();
  }
  restored->SetAbsent(lease);
  parts_.sessions.Add(restored);
  parts_.leases.RestoreSession(*restored);
  (held.is_gone ? all.gone : all.alive).push_back(std::move(restored));
  return absl::OkStatus();
}

Bytes Recovery::CountStrays(const Broker::CardInfo& card) {
  const auto strays = parts_.backend.FindStrays(card.card.backend_device, parts_.broker.Identities(card.id));
  // A card that reports its free memory shows by that what is used and no session's.
  if (absl::IsUnimplemented(strays.status()) && parts_.backend.FreeMemory(card.card.backend_device))
    return Bytes();
  if (!strays.ok()) return card.view.total;
  Bytes sum;
  for (const DeviceBackend::Stray& stray : *strays) sum = SaturatingAdd(sum, stray.bytes);
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
  const bool damaged = found.found == Journal::Found::kDamaged;
  for (const auto& [uuid, why] : doubted_) unexplained_.insert(uuid);
  for (const Broker::CardInfo& card : parts_.broker.Cards()) {
    const std::string& uuid = card.card.device.uuid;
    if (found.found != Journal::Found::kNone && !damaged && !unexplained_.contains(uuid)) continue;
    // Without a journal, and where nothing can be found out, this is taken for the first daemon here.
    const absl::Status look = parts_.backend.FindStrays(card.card.backend_device, {}).status();
    if (absl::IsResourceExhausted(look)) return look;
    const bool can_tell = look.ok();
    const Bytes strays = can_tell || damaged || unexplained_.contains(uuid) ? CountStrays(card) : Bytes();
    if (strays.is_zero()) {
      if (unexplained_.contains(uuid)) SetUnexplained(uuid, true);
      continue;
    }
    SetUnexplained(uuid, false);
    parts_.broker.SetForeign(card.id, strays);
    const auto doubt = doubted_.find(uuid);
    const std::string why = damaged ? absl::StrCat("the journal is damaged (", found.detail, ")")
                            : doubt != doubted_.end() ? doubt->second
                                                      : "the journal is missing";
    Tell(v1::Event::KIND_UNEXPLAINED,
         absl::StrCat(
             why, ", and ", FormatBytes(strays), " of GPU ", card.card.index,
             " are held by processes that no record tells of; nobody else gets these until they end"));
  }
  parts_.journal.Settled();
  return absl::OkStatus();
}

absl::Status Recovery::Run(const Journal::Opened& found, const std::vector<v1::JournalLease>& lasting,
                           const Names& wanted) {
  RestoreLeases(found.state, lasting, wanted);
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
  // Not sooner: a lease whose only known session ended would end too, under those that come after it.
  parts_.leases.EndUnused();
  for (std::shared_ptr<SessionState>& session : restored.alive) parts_.reclaimer.Watch(std::move(session));
  for (std::shared_ptr<SessionState>& session : restored.gone) {
    parts_.reclaimer.EndAbsent(std::move(session), /*is_gone=*/true);
  }
  parts_.broker.ChargeRestoredOverhead();
  LGPU_RETURN_IF_ERROR(FindUnexplained(found));
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
  const std::set<SessionId> before = std::exchange(abandoned_, {});
  for (const std::shared_ptr<SessionState>& session : parts_.sessions.All()) {
    const std::vector<std::uint64_t> pages = session->pages();
    if (session->phase() == SessionState::Phase::kAbsent && !session->end_request().ok()) {
      parts_.reclaimer.EndAbsent(session, /*is_gone=*/false);  // as for one that is connected, and hears it
      continue;
    }
    if (session->phase() != SessionState::Phase::kAbsent || pages.empty() || !session->process().pidfd)
      continue;
    const std::optional<bool> maps = MapsFile(session->process().pid, "memfd:lgpu-client", pages);
    // The pid is its own only while it lives.
    if (session->process().IsGone()) {
      parts_.reclaimer.EndAbsent(session, /*is_gone=*/true);
      continue;
    }
    if (maps != false) continue;
    // Twice: what /proc says of a process that maps and unmaps meanwhile is no snapshot.
    if (before.contains(session->id())) {
      parts_.reclaimer.EndAbsent(session, /*is_gone=*/true);
    } else {
      abandoned_.insert(session->id());
    }
  }
}

void Recovery::Tend() {
  const Clock::time_point now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLook;
  parts_.leases.MakeMissing();
  EndUnwatched(now);
  if (now - started_ > kBackPatience) EndAbandoned();
  if (unexplained_.empty()) return;
  for (const Broker::CardInfo& card : parts_.broker.Cards()) {
    if (!unexplained_.contains(card.card.device.uuid)) continue;
    const Bytes strays = CountStrays(card);
    parts_.broker.SetForeign(card.id, strays);
    if (strays.is_zero()) SetUnexplained(card.card.device.uuid, true);
  }
}

}  // namespace lgpu::daemon
