#include "daemon/lease_recovery.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lgpu::daemon {

void RecoveryParts::Tell(v1::Event::Kind kind, std::string text) const {
  spdlog::warn("{}", text);
  v1::Event event;
  event.set_kind(kind);
  event.set_text(std::move(text));
  events.Append(std::move(event), std::nullopt);
}

LeaseRecovery::LeaseRecovery(const RecoveryParts& parts, const Journal::Opened& found,
                             const LeaseTable::Lasting& lasting, const Names& wanted)
    : parts_(parts), found_(found), lasting_(lasting), wanted_(wanted), ids_(found.state.ids()) {
  for (const auto& [id, session] : found.state.sessions()) in_use_.insert(session.lease_key());
  for (const auto& [key, lease] : found.state.leases()) {
    if (lease.removed()) removed_.insert(lease.id());
  }
}

void LeaseRecovery::RestoreJournaled() {
  const auto& leases = found_.state.leases();
  // Those that waited, which programs of an earlier daemon still have, find the others' names taken.
  for (const bool waiting : {false, true}) {
    for (const auto& [key, lease] : leases) {
      if (!lease.removed() && lease.waiting() == waiting) RestoreServed(lease);
    }
  }
  for (const auto& [key, lease] : leases) {
    if (lease.removed() && IsInUse(lease)) RestoreRemoved(lease);
  }
  parts_.leases.SkipKeys(LeaseKey{ids_.lease_key()});
  parts_.broker.SkipIds(LogicalId{ids_.device_id()}, ChunkId{ids_.chunk_id()});
}

void LeaseRecovery::RestoreServed(v1::JournalLease lease) {
  const bool in_use = IsInUse(lease);
  if (!in_use && !IsBelieved(lease)) {
    Forget(lease);
    return;
  }
  if (IsNameTaken(lease)) {
    if (!in_use) {
      Wait(lease, absl::StrCat("another one has its name, ", lease.name()));
      return;
    }
    parts_.Tell(v1::Event::KIND_LEASE_DEGRADED, absl::StrCat("lease ", lease.name(), " is called ",
                                                             lease.id(), " now: another one has its name"));
    lease.set_name(lease.id());  // which nobody can give
  }
  const absl::Status status = Restore(lease);
  if (status.ok()) return;
  const std::string why = absl::StrCat("it cannot be restored now: ", std::string(status.message()));
  if (in_use) {
    for (const v1::JournalDevice& device : lease.devices()) {
      doubted_.emplace(device.card_uuid(),
                       absl::StrCat("lease ", lease.name(), " has sessions and cannot be restored"));
    }
    // A later daemon may serve its cards again, and promised its memory to nobody else.
    lease.set_waiting(true);
    v1::JournalRecord record;
    *record.mutable_lease() = lease;
    parts_.journal.Note(record);
  } else {
    Forget(lease);
  }
  if (lease.lasting()) {
    Wait(lease, why);
  } else {
    parts_.Tell(v1::Event::KIND_LEASE_DEGRADED, absl::StrCat("lease ", lease.name(), ": ", why));
  }
}

bool LeaseRecovery::IsBelieved(const v1::JournalLease& lease) const {
  // One that waits, and that nobody has any more, is the file's.
  if (!lease.lasting() || lease.waiting()) return false;
  const bool is_damaged = found_.found == Journal::Found::kDamaged;
  if (!is_damaged || !lasting_.is_whole) return true;
  // What the journal lacks may be its removal.
  return std::any_of(lasting_.leases.begin(), lasting_.leases.end(),
                     [&](const v1::JournalLease& other) { return other.id() == lease.id(); });
}

void LeaseRecovery::RestoreRemoved(v1::JournalLease lease) {
  if (IsStillWanted(lease)) {
    lease.clear_removed();
    removed_.erase(lease.id());
  }
  const absl::Status status = Restore(lease);
  if (status.ok()) return;
  for (const v1::JournalDevice& device : lease.devices()) {
    doubted_.emplace(device.card_uuid(),
                     absl::StrCat("lease ", lease.name(), " has sessions and cannot be restored"));
  }
  parts_.Tell(
      v1::Event::KIND_LEASE_DEGRADED,
      absl::StrCat("lease ", lease.name(), " cannot be restored now: ", std::string(status.message())));
}

bool LeaseRecovery::IsStillWanted(const v1::JournalLease& lease) const {
  const Names::value_type name(lease.owner_uid(), lease.name());
  if (!lease.lasting() || !wanted_.contains(name) || names_.contains(name)) return false;
  return std::none_of(lasting_.leases.begin(), lasting_.leases.end(), [&](const v1::JournalLease& other) {
    return !other.waiting() && !removed_.contains(other.id()) && other.owner_uid() == lease.owner_uid() &&
           other.name() == lease.name();
  });
}

absl::Status LeaseRecovery::Restore(const v1::JournalLease& lease) {
  absl::Status status = parts_.leases.Restore(lease);
  if (status.ok()) {
    restored_.insert(lease.id());
    if (!lease.removed()) names_.emplace(lease.owner_uid(), lease.name());
  }
  return status;
}

void LeaseRecovery::RestoreOthers() {
  for (const bool waiting : {false, true}) {
    for (const v1::JournalLease& lease : lasting_.leases) {
      const bool is_known =
          restored_.contains(lease.id()) || removed_.contains(lease.id()) || waiting_.contains(lease.id());
      // A whole journal has all that was in the accounts.
      const bool waited = lease.waiting() || found_.found == Journal::Found::kWhole;
      if (!is_known && waited == waiting) RestoreOther(lease, waited);
    }
  }
  parts_.leases.SkipKeys(LeaseKey{ids_.lease_key()});
  parts_.broker.SkipIds(LogicalId{ids_.device_id()}, ChunkId{ids_.chunk_id()});
  // The daemon before may have died between the journal and the file, or could not write it, or it was
  // damaged.
  const bool is_any = !lasting_.leases.empty() || !found_.state.leases().empty();
  if (is_any && parts_.leases.SaveLasting().ok()) {
    for (const auto& [key, lease] : found_.state.leases()) {
      if (lease.removed() && !restored_.contains(lease.id())) Forget(lease);
    }
  }
}

void LeaseRecovery::RestoreOther(v1::JournalLease lease, bool waited) {
  // Keys are the file's own: the next daemon may have numbered others so far.
  ids_.set_lease_key(ids_.lease_key() + 1);
  lease.set_key(ids_.lease_key());
  for (v1::JournalDevice& device : *lease.mutable_devices()) {
    ids_.set_device_id(ids_.device_id() + 1);
    device.set_id(ids_.device_id());
  }
  if (IsNameTaken(lease)) {
    Wait(lease, absl::StrCat("another one has its name, ", lease.name()));
  } else if (waited && !HasRoom(lease)) {
    Wait(lease, "its memory is promised to others now");
  } else if (const absl::Status status = Restore(lease); !status.ok()) {
    Wait(lease, absl::StrCat("it cannot be restored now: ", std::string(status.message())));
  }
}

bool LeaseRecovery::HasRoom(const v1::JournalLease& lease) const {
  for (const Broker::CardInfo& card : parts_.broker.Cards()) {
    Bytes promised;
    for (const v1::JournalDevice& device : lease.devices()) {
      if (device.card_uuid() != card.card.device.uuid) continue;
      const Bytes guarantee(device.preallocate() ? device.limit_bytes() : device.guarantee_bytes());
      promised = SaturatingAdd(promised, RoundUp(guarantee, card.view.granularity));
    }
    if (promised > card.view.free()) return false;
  }
  return true;
}

void LeaseRecovery::Wait(const v1::JournalLease& lease, const std::string& why) {
  waiting_.insert(lease.id());
  parts_.leases.KeepInFile(lease);
  parts_.Tell(v1::Event::KIND_LEASE_DEGRADED,
              absl::StrCat("lease ", lease.name(), " waits for a later start of lgpud: ", why, "; `lgpu rm ",
                           lease.id(), "` gives it up"));
}

void LeaseRecovery::Forget(const v1::JournalLease& lease) {
  if (IsInUse(lease)) return;  // a later daemon may serve its cards again
  v1::JournalRecord record;
  record.mutable_lease_gone()->set_key(lease.key());
  parts_.journal.Note(record);
}

}  // namespace lgpu::daemon
