#ifndef LGPU_DAEMON_RECOVERY_LEASE_RECOVERY_H_
#define LGPU_DAEMON_RECOVERY_LEASE_RECOVERY_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/leases/lease_store.h"
#include "daemon/leases/lease_table.h"
#include "daemon/recovery/journal.h"
#include "daemon/recovery/recovery_parts.h"
#include "lgpu/v1/journal.pb.h"

namespace lgpu::daemon {

/// A LeaseRecovery restores the leases of an earlier daemon, from its journal and from the file of lasting
/// leases. Leases that the earlier daemon served come first, without regard to the cards' present figures. A
/// lasting lease that waited is restored when its cards are there and no other lease has its name or memory;
/// until then it waits in the file.
///
/// Not thread-safe; for the start, before the first connection.
class LeaseRecovery {
 public:
  using Names = std::set<std::pair<std::uint32_t, std::string>>;  // of leases, with their owners

  /// All outlive it. `wanted`: the leases of the configuration.
  LeaseRecovery(const RecoveryParts& parts, const Journal::Opened& found, const LeaseStore::Found& lasting,
                const Names& wanted);

  /// Restores the leases of the journal; to be called before its sessions are restored.
  void RestoreJournaled();
  /// Keeps leases that only the file has, before any lease may end and write the file anew.
  void KeepOthersInFile();
  /// Restores these leases and writes the file; to be called when all held memory is charged.
  void RestoreOthers();

  /// Cards of leases that have sessions and cannot be restored: some memory held there is in no account. By
  /// uuid, with the reason.
  const std::map<std::string, std::string>& doubted() const { return doubted_; }

 private:
  bool IsInUse(const v1::JournalLease& lease) const { return in_use_.contains(lease.key()); }
  /// Managed leases have names among themselves, under a number that no user has.
  static Names::value_type NameOf(const v1::JournalLease& lease) {
    constexpr std::uint32_t kNoUser = ~std::uint32_t{0};
    return {lease.has_management() ? kNoUser : lease.owner_uid(), lease.name()};
  }
  bool IsNameTaken(const v1::JournalLease& lease) const { return names_.contains(NameOf(lease)); }
  bool IsInFile(const v1::JournalLease& lease) const;
  /// Whether the journal's record counts, and not its absence from the file.
  bool IsBelieved(const v1::JournalLease& lease) const;
  /// The configuration has it, and there is no room for another one while this one ends.
  bool IsStillWanted(const v1::JournalLease& lease) const;
  /// The lease's guarantees fit beside the memory of other leases.
  bool HasRoom(const v1::JournalLease& lease) const;
  /// Memory of the card that sessions of the other journaled leases hold above their devices' guarantees.
  Bytes HeldBeyondPromises(const v1::JournalLease& but, const Broker::CardInfo& card) const;

  void RestoreServed(v1::JournalLease lease);
  /// A lease that waited while programs held its memory: they keep it.
  void RestoreUsed(const v1::JournalLease& lease);
  void RestoreRemoved(v1::JournalLease lease);
  void RestoreOther(const v1::JournalLease& lease);
  absl::Status Restore(const v1::JournalLease& lease);
  void Postpone(v1::JournalLease lease, const absl::Status& status);
  void Wait(v1::JournalLease lease, const std::string& why);
  void Doubt(const v1::JournalLease& lease);
  void Forget(const v1::JournalLease& lease);

  const RecoveryParts& parts_;
  const Journal::Opened& found_;
  const LeaseStore::Found& lasting_;
  const Names& wanted_;
  std::set<std::uint64_t> in_use_;        // keys, by sessions of the journal
  std::set<std::string> removed_;         // ids, by the journal
  std::set<std::string> restored_;        // ids
  std::set<std::string> waiting_;         // ids, by this one
  std::vector<v1::JournalLease> others_;  // that only the file has
  std::vector<v1::JournalLease> over_;    // for the journal, as soon as the file has them
  bool sessions_are_charged_ = false;
  Names names_;         // that are taken
  v1::JournalIds ids_;  // the last ones of each kind
  std::map<std::string, std::string> doubted_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_RECOVERY_LEASE_RECOVERY_H_
