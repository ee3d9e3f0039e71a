#ifndef LGPU_DAEMON_LEASES_LEASE_H_
#define LGPU_DAEMON_LEASES_LEASE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/broker/broker.h"
#include "daemon/leases/ids.h"
#include "daemon/leases/lease_ends.h"
#include "daemon/leases/management.h"
#include "daemon/leases/users.h"
#include "daemon/sessions/placement_log.h"
#include "daemon/sessions/session_use.h"
#include "lgpu/v1/control.pb.h"
#include "lgpu/v1/journal.pb.h"

namespace lgpu::daemon {

/// One logical device of a lease. The numbers that change are the broker's.
struct LeaseDevice {
  LogicalId id;
  int index = 0;
  BrokerCard card;
  bool preallocate = false;
  std::string name;  // for people
  Bytes limit;       // as asked for
  Bytes guarantee;

  // The holdings that caps count.
  Bytes capped_limit() const { return RoundUp(limit, card.device.granularity); }
  Bytes capped_guarantee() const { return RoundUp(guarantee, card.device.granularity); }
};

/// A Lease is the right to some logical devices, owned by a user. A plain record of the LeaseTable's.
struct Lease {
  LeaseKey key;
  std::string id;  // the handle that users know
  std::string name;
  User owner;
  bool anonymous = false;  // its name was made up
  bool lasting = false;
  bool has_directory = false;  // with sockets of its own
  bool saved = false;          // it may be in the file of lasting leases
  std::chrono::system_clock::time_point created_at;
  std::string request_id;
  bool is_repeated = false;                 // a second call with that request was given this lease
  std::optional<Management> management;     // none: its owner's own
  LeaseEnds ends = {};                      // by itself, as its owner asked for
  std::chrono::milliseconds idle_after{0};  // idle for so long it may be asked to give way; 0: not set
  Broker::Preemptible preemptible = Broker::Preemptible::kNever;
  UseTime used_at{0};  // it was made, or a program of it attached or ended
  std::vector<LeaseDevice> devices;
  std::set<SessionId> live;
  std::set<SessionId> draining;
  std::uint32_t sessions_ever = 0;
  bool ready = false;     // its devices exist
  bool ending = false;    // no session may attach; it goes when its last session is gone
  bool removed = false;   // by a request, not by the end of its last session
  bool resizing = false;  // by one call, which needs its devices
  std::optional<v1::JournalSuspended> suspended = {};  // its programs are in host memory
  bool was_resumed = false;                            // programs of it were, and may live still
  std::vector<LeaseDevice> resizing_to = {};
  bool taken = false;  // leaves the table when the thread that took it has removed its devices
  std::shared_ptr<PlacementLog> placements;
};

/// As the API has it; what it does not know is kNever.
Broker::Preemptible FromProto(v1::Preemptible preemptible);
v1::Preemptible ToProto(Broker::Preemptible preemptible);

/// Since when a program of the lease that uses a GPU brings it back; nothing: it is not suspended for others.
std::optional<UseTime> WhenPreempted(const Lease& lease);

/// A request's device, checked and with its card chosen.
struct PlannedDevice {
  CardId card_id;
  BrokerCard card;
  Bytes limit;
  Bytes guarantee;
  bool preallocate = false;
  std::string name;
  bool whole_card = false;  // no limit was asked for
};

/// The reason that sessions of a removed lease get.
absl::Status WasRemoved(const std::string& lease_name);

/// The holdings of a plan, with the lease that it makes.
Holdings HoldingsOf(const std::vector<PlannedDevice>& plan);

/// INVALID_ARGUMENT for a device's name that is too long or not printable, or that begins with '='.
absl::Status CheckLabel(const std::string& label);

/// Chooses cards: the named one (a uuid or a unique prefix), else the one with most room among the
/// candidates; of candidates with the same room, the first one of the request. INVALID_ARGUMENT, NOT_FOUND or
/// FAILED_PRECONDITION, with the list of cards.
absl::StatusOr<std::vector<PlannedDevice>> PlanDevices(const v1::CreateLeaseRequest& request,
                                                       const std::vector<Broker::CardInfo>& cards);

/// Lowers default limits to the rest of the cap, in whole chunks and in equal parts; where nothing is left,
/// the plan stays as it is. `has`: the holdings that count against the cap already.
void ShrinkToCap(const CapConfig& cap, const Holdings& has, std::vector<PlannedDevice>& plan);

/// INVALID_ARGUMENT if the plan's guarantees do not fit on empty cards.
absl::Status CheckFitsEmptyCards(const v1::CreateLeaseRequest& request,
                                 const std::vector<PlannedDevice>& plan, std::vector<Broker::CardInfo> cards);

/// A name of an adjective and an animal; `number` picks it.
std::string DefaultLeaseName(std::uint64_t number);

/// INVALID_ARGUMENT for a name that is not 1 to 63 letters, digits, '-', '_' or '.', that begins with '-' as
/// a flag does, that names a directory ("." and ".."), or that looks like the id of a lease or of a GPU: a
/// number, "l-...", "gpu-...", "mig-...".
absl::Status CheckLeaseName(const std::string& name);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_LEASE_H_
