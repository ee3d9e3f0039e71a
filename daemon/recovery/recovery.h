#ifndef LGPU_DAEMON_RECOVERY_RECOVERY_H_
#define LGPU_DAEMON_RECOVERY_RECOVERY_H_

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/session_restore.h"
#include "daemon/recovery/journal.h"
#include "daemon/recovery/lease_recovery.h"
#include "daemon/recovery/page_search.h"
#include "daemon/recovery/recovery_parts.h"
#include "daemon/sessions/session_state.h"

namespace lgpu::daemon {

/// A Recovery restores the leases of an earlier daemon's journal, and its sessions as absent ones that are
/// charged in full. Afterwards Tend looks after absent sessions whose process cannot be watched, missing
/// preallocated memory, and memory that processes hold and no record names. One thread at a time.
class Recovery {
 public:
  /// An absent session whose process cannot be watched is given up after this long.
  static constexpr std::chrono::seconds kUnwatchedPatience{60};

  /// A session that is absent for longer is examined: its process may live without the Context.
  static constexpr std::chrono::seconds kBackPatience{2};

  /// All outlive the recovery.
  explicit Recovery(const RecoveryParts& parts) : parts_(parts) {}

  /// Before the first connection. `found` is the journal as it was; `lasting`: the leases of the state
  /// directory; `wanted`: owners and names of the leases that the configuration has. A wanted lease that was
  /// removed and still has sessions is restored as if it was not: a second one would have no room beside it.
  /// RESOURCE_EXHAUSTED where this process may not have enough descriptors: without one of the sessions its
  /// memory would be granted twice.
  absl::Status Run(const Journal::Opened& found, const LeaseStore::Found& lasting,
                   const LeaseRecovery::Names& wanted);
  /// To be called now and then.
  void Tend();

 private:
  using Clock = std::chrono::steady_clock;

  using Chunks = std::vector<SessionRestore::RestoredChunk>;
  struct Restored {
    std::vector<std::shared_ptr<SessionState>> alive, gone;  // by the state of their processes
  };
  absl::Status RestoreSession(const JournalState& state, const v1::JournalSession& session,
                              const Chunks& chunks, Restored& all);
  /// Ends sessions that are absent for kUnwatchedPatience and whose process cannot be watched.
  void EndUnwatched(Clock::time_point now);
  /// Ends absent sessions whose lease was removed, and absent sessions whose process lives without the
  /// Context: the Context was closed while no daemon served, or the process runs another program now.
  void EndAbandoned();
  absl::Status FindUnexplained(const Journal::Opened& found);
  /// Bytes of the card that processes hold and the broker does not know of.
  Bytes CountStrays(const Broker::CardInfo& card);
  void SetUnexplained(const std::string& uuid, bool explained);

  const RecoveryParts parts_;
  std::set<std::string> unexplained_;
  std::map<std::string, std::string> doubted_;  // at the start; uuid and reason
  std::map<SessionId, Clock::time_point> unwatched_since_;
  PageSearch search_;
  std::set<SessionId> abandoned_;  // by one look; a second one must agree
  Clock::time_point started_ = Clock::now();
  Clock::time_point next_look_ = Clock::now();
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_RECOVERY_RECOVERY_H_
