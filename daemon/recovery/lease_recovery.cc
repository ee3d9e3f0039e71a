#include "daemon/recovery/lease_recovery.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/session_restore.h"

namespace lgpu::daemon {
namespace {

// To a device of a lease that is not suspended.
Bytes PromisedTo(const v1::JournalDevice& device, const Broker::CardInfo& card) {
  const Bytes guarantee(device.preallocate() ? device.limit_bytes() : device.guarantee_bytes());
  return RoundUp(guarantee, card.view.granularity);
}

}  // namespace

void RecoveryParts::Tell(v1::Event::Kind kind, std::string text) const {
  spdlog::warn("{}", text);
  v1::Event event;
  event.set_kind(kind);
  event.set_text(std::move(text));
  events.Append(std::move(event), std::nullopt);
}

LeaseRecovery::LeaseRecovery(const RecoveryParts& parts, const Journal::Opened& found,
                             const LeaseStore::Found& lasting, const Names& wanted)
    : parts_(parts), found_(found), lasting_(lasting), wanted_(wanted), ids_(found.state.ids()) {
  for (const auto& [id, session] : found.state.sessions()) in_use_.insert(session.lease_key());
  for (const auto& [key, lease] : found.state.leases()) {
    if (lease.removed()) removed_.insert(lease.id());
  }
}

void LeaseRecovery::RestoreJournaled() {
  const auto& leases = found_.state.leases();
  for (const auto& [key, lease] : leases) {
    if (!lease.removed() && !lease.waiting()) RestoreServed(lease);
  }
  for (const auto& [key, lease] : leases) {
    if (!lease.removed() && lease.waiting() && IsInUse(lease)) RestoreUsed(lease);
  }
  for (const auto& [key, lease] : leases) {
    if (lease.removed() && IsInUse(lease)) RestoreRemoved(lease);
  }
}

void LeaseRecovery::RestoreServed(v1::JournalLease lease) {
  if (!IsInUse(lease) && (!lease.lasting() || !IsBelieved(lease))) {
    Forget(lease);
    return;
  }
  // Its programs may have it; it ends with them.
  if (!IsBelieved(lease)) lease.clear_lasting();
  if (const absl::Status status = Restore(lease); !status.ok()) Postpone(lease, status);
}

void LeaseRecovery::RestoreUsed(const v1::JournalLease& lease) {
  v1::JournalLease there = lease;
  const bool has_name = !IsNameTaken(lease);
  const bool has_room = HasRoom(lease);
  if (!has_name) there.set_name(lease.id());  // users cannot give such a name
  if (!has_room) {
    for (v1::JournalDevice& device : *there.mutable_devices()) {
      device.clear_guarantee_bytes();
      device.clear_preallocate();
    }
  }
  if (const absl::Status status = Restore(there); !status.ok()) {
    Postpone(lease, status);
    return;
  }
  if (!has_name) {
    parts_.Tell(v1::Event::KIND_LEASE_DEGRADED, absl::StrCat("lease ", lease.name(), " is called ",
                                                             lease.id(), " now: another lease has its name"));
  }
  if (!has_room) {
    parts_.Tell(
        v1::Event::KIND_LEASE_DEGRADED,
        absl::StrCat("lease ", there.name(),
                     " keeps the memory that its programs hold, and has no guarantee any more: it could not "
                     "be served for a while, and its guarantee is promised to other leases now"));
  }
}

void LeaseRecovery::Postpone(v1::JournalLease lease, const absl::Status& status) {
  const std::string why = absl::StrCat("it cannot be restored now: ", std::string(status.message()));
  const bool in_use = IsInUse(lease);
  if (in_use) Doubt(lease);
  // The next daemon is to know that it was in no account.
  lease.set_waiting(true);
  v1::JournalRecord record;
  *record.mutable_lease() = lease;
  parts_.journal.Note(record);
  if (!in_use) over_.push_back(lease);
  Wait(lease, why);
}

void LeaseRecovery::Doubt(const v1::JournalLease& lease) {
  for (const v1::JournalDevice& device : lease.devices()) {
    doubted_.emplace(device.card_uuid(),
                     absl::StrCat("lease ", lease.name(), " has sessions and cannot be restored"));
  }
}

bool LeaseRecovery::IsInFile(const v1::JournalLease& lease) const {
  return std::any_of(lasting_.leases.begin(), lasting_.leases.end(),
                     [&](const v1::JournalLease& other) { return other.id() == lease.id(); });
}

bool LeaseRecovery::IsBelieved(const v1::JournalLease& lease) const {
  const bool is_damaged = found_.found == Journal::Found::kDamaged;
  // The journal may lack the record of the lease's removal.
  return !lease.lasting() || !is_damaged || !lasting_.is_whole || IsInFile(lease);
}

void LeaseRecovery::RestoreRemoved(v1::JournalLease lease) {
  if (IsStillWanted(lease)) {
    lease.clear_removed();
    removed_.erase(lease.id());
  }
  const absl::Status status = Restore(lease);
  if (status.ok()) return;
  Doubt(lease);
  parts_.Tell(
      v1::Event::KIND_LEASE_DEGRADED,
      absl::StrCat("lease ", lease.name(), " cannot be restored now: ", std::string(status.message())));
}

bool LeaseRecovery::IsStillWanted(const v1::JournalLease& lease) const {
  const Names::value_type name = NameOf(lease);
  if (!lease.lasting() || !wanted_.contains(name) || names_.contains(name)) return false;
  return std::none_of(lasting_.leases.begin(), lasting_.leases.end(), [&](const v1::JournalLease& other) {
    return !other.waiting() && !removed_.contains(other.id()) && NameOf(other) == name;
  });
}

absl::Status LeaseRecovery::Restore(const v1::JournalLease& lease) {
  absl::Status status = parts_.leases.Restore(lease);
  if (status.ok()) {
    restored_.insert(lease.id());
    if (!lease.removed()) names_.insert(NameOf(lease));
  }
  return status;
}

void LeaseRecovery::KeepOthersInFile() {
  for (const auto& [key, lease] : found_.state.leases()) {
    if (lease.removed() || !lease.waiting() || IsInUse(lease)) continue;
    over_.push_back(lease);
    if (lease.lasting() && IsBelieved(lease) && !IsInFile(lease)) others_.push_back(lease);
  }
  for (v1::JournalLease lease : lasting_.leases) {
    if (restored_.contains(lease.id()) || removed_.contains(lease.id()) || waiting_.contains(lease.id())) {
      continue;
    }
    // Keys of the file are the file's own: the journal may have other leases under these numbers.
    ids_.set_lease_key(ids_.lease_key() + 1);
    lease.set_key(ids_.lease_key());
    for (v1::JournalDevice& device : *lease.mutable_devices()) {
      ids_.set_device_id(ids_.device_id() + 1);
      device.set_id(ids_.device_id());
    }
    others_.push_back(std::move(lease));
  }
  for (const v1::JournalLease& lease : others_) parts_.leases.KeepWaiting(lease, /*in_use=*/false);
  parts_.leases.SkipKeys(LeaseKey{ids_.lease_key()});
  parts_.broker.restore().SkipIds(LogicalId{ids_.device_id()}, ChunkId{ids_.chunk_id()});
}

void LeaseRecovery::RestoreOthers() {
  sessions_are_charged_ = true;
  for (const bool waiting : {false, true}) {
    for (const v1::JournalLease& lease : others_) {
      if (lease.waiting() == waiting) RestoreOther(lease);
    }
  }
  // The daemon before may have died between the journal and the file, or could not write it, or it was
  // damaged.
  const bool is_any = !lasting_.leases.empty() || !found_.state.leases().empty();
  if (!is_any || !parts_.leases.SaveLasting().ok()) return;
  for (const v1::JournalLease& lease : over_) Forget(lease);
  for (const auto& [key, lease] : found_.state.leases()) {
    if (lease.removed() && !restored_.contains(lease.id())) Forget(lease);
  }
}

void LeaseRecovery::RestoreOther(const v1::JournalLease& lease) {
  // A whole journal has all that was in the accounts.
  const bool waited = lease.waiting() || found_.found == Journal::Found::kWhole;
  if (IsNameTaken(lease)) {
    Wait(lease, absl::StrCat("another lease has its name, ", lease.name()));
  } else if (waited && !HasRoom(lease)) {
    Wait(lease, "other leases hold, or may hold, the memory of its guarantee");
  } else if (const absl::Status status = Restore(lease); !status.ok()) {
    Wait(lease, absl::StrCat("it cannot be restored now: ", std::string(status.message())));
  }
}

bool LeaseRecovery::HasRoom(const v1::JournalLease& lease) const {
  for (const Broker::CardInfo& card : parts_.broker.Cards()) {
    Bytes promised;
    for (const v1::JournalDevice& device : lease.devices()) {
      if (device.card_uuid() != card.card.device.uuid) continue;
      promised = SaturatingAdd(promised, PromisedTo(device, card));
    }
    const Bytes uncharged = sessions_are_charged_ ? Bytes() : HeldBeyondPromises(lease, card);
    if (promised > SaturatingSub(card.view.free(), uncharged)) return false;
  }
  return true;
}

Bytes LeaseRecovery::HeldBeyondPromises(const v1::JournalLease& but, const Broker::CardInfo& card) const {
  std::map<std::uint64_t, Bytes> held;  // by device
  for (const auto& [id, chunk] : found_.state.chunks()) {
    held[chunk.device_id()] = SaturatingAdd(held[chunk.device_id()], Bytes(chunk.bytes()));
  }
  for (const auto& [of, bytes] : found_.state.charges()) {
    held[of.second] = SaturatingAdd(held[of.second], Bytes(bytes));
  }
  Bytes sum;
  for (const auto& [key, lease] : found_.state.leases()) {
    if (key == but.key() || !restored_.contains(lease.id())) continue;
    for (const v1::JournalDevice& device : lease.devices()) {
      if (device.card_uuid() != card.card.device.uuid) continue;
      sum = SaturatingAdd(sum, SaturatingSub(held[device.id()], PromisedTo(device, card)));
    }
  }
  return sum;
}

void LeaseRecovery::Wait(v1::JournalLease lease, const std::string& why) {
  lease.set_waiting(true);
  waiting_.insert(lease.id());
  parts_.leases.KeepWaiting(lease, IsInUse(lease));
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
