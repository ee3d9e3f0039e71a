#include "daemon/snapshots/memory_snapshots.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/server/charged_kinds.h"
#include "daemon/snapshots/snapshot_line.h"
#include "lgpu/status.h"
#include "proto/wire/channel.h"

namespace lgpu::daemon {
namespace {

using Clock = std::chrono::steady_clock;

/// Blocks share room in pieces of this many.
constexpr std::size_t kBlocksOfAPlace = 1024;

}  // namespace

/// What outlives the calls: a program may answer, and a record be read, after its caller has gone.
struct MemorySnapshots::Shared {
  UserShares calls{kMostCalls};
  UserShares places{kMostBlocks / kBlocksOfAPlace};
};

namespace {

/// The part of a user's shares that one call takes: the call itself, taken by the constructor's caller, and
/// room for the blocks of its record. It is given back with the record's last copy. Thread-safe.
class Room {
 public:
  Room(std::shared_ptr<void> keeps_alive, UserShares& calls, UserShares& places, std::uint32_t uid)
      : keeps_alive_(std::move(keeps_alive)), calls_(calls), places_(places), uid_(uid) {}
  ~Room() {
    if (taken_ > 0) places_.GiveBack(uid_, taken_);
    calls_.GiveBack(uid_);
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  bool Take(std::size_t blocks) {
    MutexLock lock(mutex_);
    while (blocks_ + blocks > taken_ * kBlocksOfAPlace) {
      if (!places_.TryTake(uid_)) return false;
      ++taken_;
    }
    blocks_ += blocks;
    return true;
  }

 private:
  const std::shared_ptr<void> keeps_alive_;
  UserShares& calls_;
  UserShares& places_;
  const std::uint32_t uid_;
  Mutex mutex_;
  std::size_t blocks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
};

/// The record of a call while programs answer. Its asks keep it: a late answer finds it, and finds it closed.
class Gathering {
 public:
  Gathering(LeaseBlocks record, std::size_t asks) : record_(std::move(record)), pending_(asks) {}

  /// The answer of one device; the first one counts.
  void Told(std::size_t session, std::size_t device, absl::Status status, DeviceBlocks blocks) {
    MutexLock lock(mutex_);
    if (result_ != nullptr) return;  // too late: the record has been moved away
    DeviceBlocks& into = record_.sessions[session].devices[device];
    if (!IsOpen(into)) return;
    if (status.ok()) {
      into.taken_at = blocks.taken_at;
      into.region = std::move(blocks.region);
      into.ops = std::move(blocks.ops);
      into.mappings = std::move(blocks.mappings);
      into.blocks = std::move(blocks.blocks);
      into.map = std::move(blocks.map);
    }
    into.status = std::move(status);
    if (--pending_ == 0) Finish();
  }
  /// The record; null: some are missing and `deadline` has not come.
  std::shared_ptr<const LeaseBlocks> Look(Clock::time_point deadline) {
    MutexLock lock(mutex_);
    if (result_ == nullptr && (pending_ == 0 || Clock::now() >= deadline)) Finish();
    return result_;
  }
  std::shared_ptr<const LeaseBlocks> Wait(Clock::time_point deadline) {
    MutexLock lock(mutex_);
    while (result_ == nullptr && pending_ > 0 && changed_.WaitUntil(mutex_, deadline)) {
    }
    if (result_ == nullptr) Finish();
    return result_;
  }

  /// Of a device whose program has not answered.
  static absl::Status NotYet() { return absl::DeadlineExceededError(""); }

 private:
  static bool IsOpen(const DeviceBlocks& device) {
    return absl::IsDeadlineExceeded(device.status) && device.status.message().empty();
  }
  void Finish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const double waited =
        std::chrono::duration<double>(std::chrono::system_clock::now() - record_.taken_at).count();
    for (SessionBlocks& session : record_.sessions) {
      for (DeviceBlocks& device : session.devices) {
        if (!IsOpen(device)) continue;
        device.status = absl::DeadlineExceededError(
            absl::StrFormat("pid %d has not sent its blocks within %.1fs: it is stopped or busy\ntry: again, "
                            "or with a longer --timeout",
                            session.pid, waited));
      }
    }
    result_ = std::make_shared<const LeaseBlocks>(std::move(record_));
    changed_.NotifyAll();
  }

  Mutex mutex_;
  CondVar changed_;
  LeaseBlocks record_ ABSL_GUARDED_BY(mutex_);  // until there is a result
  std::size_t pending_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const LeaseBlocks> result_ ABSL_GUARDED_BY(mutex_);
};

/// A question that stands in the line of a session.
struct Standing {
  std::shared_ptr<SessionState> session;
  std::shared_ptr<DeviceAsk> ask;
};

class Call final : public SnapshotCall {
 public:
  Call(std::shared_ptr<Gathering> gathering, Clock::time_point deadline)
      : gathering_(std::move(gathering)), deadline_(deadline) {}
  ~Call() override { GiveUp(); }
  /// Before any other call.
  void Ask(std::vector<Standing> standing) {
    MutexLock lock(mutex_);
    standing_ = std::move(standing);
  }

  std::shared_ptr<const LeaseBlocks> Poll() override {
    std::shared_ptr<const LeaseBlocks> result = gathering_->Look(deadline_);
    if (result != nullptr) GiveUp();
    return result;
  }
  std::shared_ptr<const LeaseBlocks> Wait() override {
    std::shared_ptr<const LeaseBlocks> result = gathering_->Wait(deadline_);
    GiveUp();
    return result;
  }

 private:
  void GiveUp() {
    std::vector<Standing> standing;
    {
      MutexLock lock(mutex_);
      standing.swap(standing_);
    }
    for (const Standing& one : standing) one.session->snapshots().Cancel(*one.ask);
  }

  const std::shared_ptr<Gathering> gathering_;
  const Clock::time_point deadline_;
  Mutex mutex_;
  std::vector<Standing> standing_ ABSL_GUARDED_BY(mutex_);
};

/// Why it cannot be asked what blocks the program of the session has. OK: it can, or has none.
absl::Status CheckAnswers(const SessionState& session, bool has_charges) {
  const std::int64_t pid = session.process().pid;
  if (session.phase() == SessionState::Phase::kAbsent) {
    return absl::FailedPreconditionError(
        absl::StrCat("pid ", pid, " has not connected again since lgpud was started"));
  }
  const SessionState::Identity& identity = session.identity();
  if (has_charges || identity.protocol_version >= wire::Protocol::kSnapshotVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("pid ", pid, " speaks version ", identity.protocol_version,
                   " of the session protocol; snapshots need version ", wire::Protocol::kSnapshotVersion,
                   " or newer\ntry: start it again with the liblgpu of this lgpud"));
}

std::vector<DeviceBlocks> DevicesOf(const Lease& lease, std::optional<int> only) {
  std::vector<DeviceBlocks> devices;
  for (const LeaseDevice& device : lease.devices) {
    if (only && device.index != *only) continue;
    DeviceBlocks& entry = devices.emplace_back();
    entry.id = device.id;
    entry.index = device.index;
    entry.card_uuid = device.card.device.uuid;
    entry.card_index = device.card.index;
    entry.status = Gathering::NotYet();
  }
  return devices;
}

}  // namespace

MemorySnapshots::MemorySnapshots(const Parts& parts) : parts_(parts), shared_(std::make_shared<Shared>()) {}

absl::StatusOr<LeaseBlocks> MemorySnapshots::Outline(const Caller& caller, const Request& request,
                                                     Sessions& sessions) const {
  LGPU_ASSIGN_OR_RETURN(const std::vector<Lease> found, parts_.leases.Find(caller, {request.lease}));
  const Lease& lease = found.front();
  LeaseBlocks record{.lease_id = lease.id,
                     .lease_name = lease.name,
                     .owner = lease.owner.name,
                     .taken_at = std::chrono::system_clock::now()};
  const std::vector<DeviceBlocks> devices = DevicesOf(lease, request.device);
  if (devices.empty()) {
    return absl::NotFoundError(absl::StrCat("lease ", lease.name, " has no device GPU:",
                                            request.device.value_or(0), "; it has ", lease.devices.size()));
  }
  for (const SessionId id : lease.live) {
    const std::shared_ptr<SessionState> session = parts_.sessions.Find(id);
    if (session == nullptr || (request.session && *request.session != id)) continue;
    SessionBlocks& entry = record.sessions.emplace_back();
    entry.id = id;
    entry.pid = session->process().pid;
    entry.command = session->identity().command;
    entry.charged_by_kind = ChargedByKind(parts_.broker.ChargesOf(id), *session);
    entry.status = CheckAnswers(*session, !entry.charged_by_kind.empty());
    if (entry.status.ok() && session->identity().answers_snapshots) entry.devices = devices;
    sessions.push_back(session);
  }
  if (request.session && record.sessions.empty()) {
    return absl::NotFoundError(
        absl::StrCat("lease ", lease.name, " has no session ", request.session->value));
  }
  return record;
}

absl::StatusOr<std::unique_ptr<SnapshotCall>> MemorySnapshots::Start(const Caller& caller,
                                                                     const Request& request) {
  Sessions sessions;
  LGPU_ASSIGN_OR_RETURN(LeaseBlocks record, Outline(caller, request, sessions));
  if (!shared_->calls.TryTake(caller.uid)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("your programs ask for ", shared_->calls.CountOf(caller.uid),
                     " snapshots already, which is your share; wait for one of them and try again"));
  }
  const auto room = std::make_shared<Room>(shared_, shared_->calls, shared_->places, caller.uid);
  record.room = room;
  std::vector<Standing> standing;
  struct Place {
    std::size_t session = 0, device = 0;
    LogicalId id;
  };
  std::vector<Place> places;
  for (std::size_t session = 0; session < record.sessions.size(); ++session) {
    for (std::size_t device = 0; device < record.sessions[session].devices.size(); ++device) {
      places.push_back({session, device, record.sessions[session].devices[device].id});
    }
  }
  const auto gathering = std::make_shared<Gathering>(std::move(record), places.size());
  const auto wait = std::clamp(request.wait, std::chrono::milliseconds(0), kLongestWait);
  auto call = std::make_unique<Call>(gathering, Clock::now() + wait);
  for (const Place& place : places) {
    const auto ask = std::make_shared<DeviceAsk>(
        place.id, BlockPages([room](std::size_t blocks) { return room->Take(blocks); }, request.cells),
        [gathering, place](absl::Status status, DeviceBlocks blocks) {
          gathering->Told(place.session, place.device, std::move(status), std::move(blocks));
        });
    standing.push_back({sessions[place.session], ask});
    if (absl::Status added = sessions[place.session]->snapshots().Add(ask); !added.ok()) {
      gathering->Told(place.session, place.device, std::move(added), {});
    }
  }
  call->Ask(std::move(standing));
  return call;
}

}  // namespace lgpu::daemon
