#ifndef LGPU_CLIENT_SESSION_LEASE_H_
#define LGPU_CLIENT_SESSION_LEASE_H_

#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/broker/trim_order.h"
#include "allocator/device/device_backend.h"
#include "client/session/maintenance.h"
#include "lgpu/bytes.h"
#include "lgpu/region_source.h"
#include "proto/wire/pages.h"
#include "proto/wire/session_messages.h"

namespace lgpu {

/// A logical device to ask for.
struct LogicalDeviceSpec {
  std::vector<std::string> cards = {};  // UUIDs of the cards that it may be on, in the order of preference
  std::optional<Bytes> limit = {};      // nothing: the whole card
  Bytes guarantee = {};
  bool preallocate = false;
  std::string name = {};
};

/// One logical device of a lease that this process uses.
struct LeasedDevice {
  LogicalId id = {};        // the broker's: lgpud's, or that of this process
  Bytes memory_limit = {};  // as granted; RegionSource::limit() has the one of now
  Bytes guarantee = {};
  bool preallocated = false;
  PhysicalDevice card = {};
  int lease_index = 0;     // among the lease's logical devices; Lease::devices() may have some of them only
  int card_index = 0;      // among the machine's GPUs
  int backend_device = 0;  // the card's index in Lease::backend().devices()
};

/// A Lease is the right to some logical devices as a session holds it: a source of memory for each device,
/// and the backend that touches them. Two kinds: DaemonLease and LocalLease. Thread-safe.
class Lease {
 public:
  virtual ~Lease() = default;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  virtual const std::string& id() const = 0;    // "" without a daemon
  virtual const std::string& name() const = 0;  // for refusals
  virtual const std::vector<LeasedDevice>& devices() const = 0;
  virtual DeviceBackend& backend() = 0;
  /// The source of devices()[i]; once each. It lives no longer than the lease.
  virtual std::unique_ptr<RegionSource> TakeSource(int i) = 0;
  /// A background thread of the lease runs the task at once, when the task asks for it, and when woken, until
  /// StopMaintenance, which waits for it. WakeMaintenance never blocks.
  virtual void StartMaintenance(Maintenance::Task task) = 0;
  virtual void WakeMaintenance() = 0;
  virtual void StopMaintenance() = 0;
  /// Another device or process is short of memory. Maintenance is woken for each order, and takes and answers
  /// all of them.
  virtual std::vector<TrimOrder> TakeTrims() = 0;
  /// The idle chunks have been returned. `pending`: more become idle when queued work ends.
  virtual void AnswerTrim(const TrimOrder& order, bool pending) = 0;
  /// The daemon asks for this program's blocks. Maintenance is woken for each question, takes all of them and
  /// answers those without `end`. Without a daemon there are none.
  virtual std::vector<wire::Snapshot> TakeSnapshots() { return {}; }
  /// The answer to a question of the last TakeSnapshots that had any. DEADLINE_EXCEEDED or ABORTED: the
  /// daemon has not taken it and still waits for it; UNAVAILABLE: the daemon that asked is gone.
  virtual absl::Status AnswerSnapshot(const wire::SnapshotPage& /*page*/) { return absl::OkStatus(); }
  /// Counters and placement records go here; the daemon reads it. A local lease has one of its own.
  virtual ClientPage& page() = 0;
  /// Sets a new limit for devices()[i]; kWholeCard: that of a device made without one. Without `guarantee`
  /// the device keeps its own, as far as the limit allows.
  static constexpr Bytes kWholeCard = Bytes(std::numeric_limits<std::uint64_t>::max());
  virtual absl::Status Resize(int i, Bytes limit, std::optional<Bytes> guarantee) = 0;
  /// All memory is given back, and `bytes` of contents are in host memory: the lease is suspended, and has no
  /// guarantee, until EndSuspension. An error: the lease stays as it is (it has other programs, or no lgpud).
  virtual absl::Status BeginSuspension(Bytes /*bytes*/) {
    return absl::UnimplementedError("this lease cannot be suspended");
  }
  /// Waits up to `timeout` for the lease's guarantee. RESOURCE_EXHAUSTED: there is no room for it now.
  virtual absl::Status EndSuspension(std::chrono::nanoseconds /*timeout*/) { return absl::OkStatus(); }
  /// The daemon tells the program to suspend itself or to resume. Maintenance is woken for each order; each
  /// is answered. Without a daemon there are none.
  struct SuspensionOrder {
    std::uint64_t id = 0;
    std::uint64_t daemon = 0;  // the one that gave the order: another may be there by now
    bool resume = false;
    std::chrono::milliseconds limit{};  // for the answer
  };
  virtual bool HasSuspensionOrders() const { return false; }
  virtual std::vector<SuspensionOrder> TakeSuspensionOrders() { return {}; }
  /// An error: the daemon that gave the order is gone, or does not read.
  /// `needs`: of a suspension, what each of devices() needs to come back, by its id.
  virtual absl::Status AnswerSuspension(const SuspensionOrder& /*order*/, const absl::Status& /*status*/,
                                        const std::map<LogicalId, Bytes>& /*needs*/) {
    return absl::OkStatus();
  }
  /// Whether the program has suspended itself by order. The next daemon is told so, and tells it to resume.
  virtual void NoteSuspended(bool /*is_suspended*/) {}
  /// The program wants to use its GPUs, which it does not have now.
  virtual void NoteUse() {}
  /// All sources are gone; ends the session and waits until the quota is free.
  virtual absl::Status Close() = 0;
  /// OK, or why the lease cannot be used any more: closed, forked, or the daemon is gone.
  virtual absl::Status status() const = 0;

 protected:
  Lease() = default;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_LEASE_H_
