#ifndef LGPU_DAEMON_SNAPSHOTS_MEMORY_SNAPSHOTS_H_
#define LGPU_DAEMON_SNAPSHOTS_MEMORY_SNAPSHOTS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/broker/broker.h"
#include "daemon/leases/lease_table.h"
#include "daemon/server/user_shares.h"
#include "daemon/sessions/session_state.h"
#include "daemon/snapshots/lease_blocks.h"

namespace lgpu::daemon {

/// A SnapshotCall is one call of MemorySnapshots::Start until its answer is there. Its destructor gives the
/// call up: what it waits for is not asked for any more. Thread-safe.
class SnapshotCall {
 public:
  virtual ~SnapshotCall() = default;
  SnapshotCall(const SnapshotCall&) = delete;
  SnapshotCall& operator=(const SnapshotCall&) = delete;

  /// The answer, as soon as every program has answered, or the wait is over; null until then. Blocks nothing.
  /// Errors of a program are in its record. Repeating it gives the same.
  virtual std::shared_ptr<const LeaseBlocks> Poll() = 0;
  /// Waits for the answer; never longer than the request's wait.
  virtual std::shared_ptr<const LeaseBlocks> Wait() = 0;

 protected:
  SnapshotCall() = default;
};

/// MemorySnapshots asks the programs of a lease which blocks they have. Only the caller of
/// SnapshotCall::Wait waits. A program that does not answer, answers late, ends or lies costs the caller that
/// asked it one deadline, and other callers a place in the line of that program. Several callers may ask for
/// the same lease; a program answers them one after another.
///
/// Per user of the caller: kMostCalls calls whose record is being made or is still kept, and room for
/// kMostBlocks blocks in these records (a mapping or a cell takes as much as a block, a name of an op as
/// eight), both shared as UserShares says (one user has at most half of each). Thread-safe.
class MemorySnapshots {
 public:
  static constexpr std::size_t kMostCalls = 64;
  static constexpr std::size_t kMostBlocks = std::size_t{8} << 20;
  static constexpr std::chrono::milliseconds kUsualWait{5'000};
  static constexpr std::chrono::milliseconds kLongestWait{60'000};

  struct Parts {
    const LeaseTable& leases;
    const Broker& broker;
    const SessionDirectory& sessions;
  };
  /// All outlive the object and its calls.
  explicit MemorySnapshots(const Parts& parts);
  MemorySnapshots(const MemorySnapshots&) = delete;
  MemorySnapshots& operator=(const MemorySnapshots&) = delete;

  struct Request {
    std::string lease;                            // id or name
    std::optional<int> device = {};               // its index in the lease; nothing: all
    std::optional<SessionId> session = {};        // nothing: all
    std::chrono::milliseconds wait = kUsualWait;  // for the answers; at most kLongestWait
    std::uint32_t cells = 0;                      // a map of at most so many; 0: mappings and blocks
  };
  /// Asks the programs, and returns at once. NOT_FOUND: the caller has no such lease, or the lease no such
  /// device or session; RESOURCE_EXHAUSTED: the user has their share of calls.
  absl::StatusOr<std::unique_ptr<SnapshotCall>> Start(const Caller& caller, const Request& request);

 private:
  struct Shared;
  using Sessions = std::vector<std::shared_ptr<SessionState>>;
  /// The record with every program and device that is to be asked, and the sessions in its order.
  absl::StatusOr<LeaseBlocks> Outline(const Caller& caller, const Request& request, Sessions& sessions) const;

  const Parts parts_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SNAPSHOTS_MEMORY_SNAPSHOTS_H_
