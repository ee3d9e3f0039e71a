#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "allocator/broker/thread_waker.h"
#include "base/utf8.h"
#include "daemon/leases/lease_idle.h"
#include "daemon/leases/lease_table.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

// Before a preemptible lease gives way.
constexpr std::chrono::minutes kLongestIdle{1};

}  // namespace

void LeaseTable::FillModes(v1::CreateLeaseRequest& request) const {
  MutexLock lock(mutex_);
  for (v1::LogicalDeviceSpec& device : *request.mutable_devices()) {
    // A request with a guarantee of its own means growth, and so does a preemptible one.
    if (device.mode() == v1::LogicalDeviceSpec::MODE_UNSPECIFIED && device.guarantee_bytes() == 0 &&
        request.preemptible() == v1::PREEMPTIBLE_NEVER && policy_.preallocate) {
      device.set_mode(v1::LogicalDeviceSpec::MODE_PREALLOCATE);
    }
  }
}

absl::StatusOr<v1::Lease> LeaseTable::Create(const Caller& caller, const v1::CreateLeaseRequest& request,
                                             TimePoint deadline) {
  LeaseAttempt attempt;
  return Create(caller, request, deadline, attempt);
}

absl::StatusOr<v1::Lease> LeaseTable::Create(const Caller& caller, const v1::CreateLeaseRequest& asked,
                                             TimePoint deadline, LeaseAttempt& attempt) {
  v1::CreateLeaseRequest request = asked;
  FillModes(request);
  LGPU_ASSIGN_OR_RETURN(const Wanted wanted, CheckRequest(caller, request));
  if (!attempt.room) {
    LGPU_ASSIGN_OR_RETURN(attempt.plan, PlanDevices(request, broker_.Cards()));
  }
  std::vector<PlannedDevice> plan = attempt.plan;
  LGPU_ASSIGN_OR_RETURN(const Announced announced, Announce(caller, wanted, plan, deadline));
  const LeaseKey key = announced.key;
  attempt.is_new = announced.is_new;
  if (announced.is_new) LGPU_RETURN_IF_ERROR(MakeDevices(key, plan, deadline, attempt));
  absl::Status attached;
  std::optional<Lease> taken;
  std::vector<LogicalId> devices;
  {
    MutexLock lock(mutex_);
    const auto found = leases_.find(key);
    if (found == leases_.end()) {
      return absl::FailedPreconditionError("the lease was removed while it was being made");
    }
    if (caller.session != nullptr) {
      attached = AttachLocked(caller, found->second);
      // The caller does not learn of its new lease, so the lease ends; an earlier lease of this request
      // stays.
      if (!attached.ok() && announced.is_new && found->second.live.empty()) {
        found->second.ending = true;
        devices = TakeIfOver(key, taken);
      }
    }
    if (announced.is_new && attached.ok()) events_.Created(found->second, caller.session.get());
  }
  Finish(taken, devices);
  LGPU_RETURN_IF_ERROR(attached);
  absl::Status committed = Commit();
  LGPU_RETURN_IF_ERROR(announced.is_new ? KeepOrRemove(key, std::move(committed)) : committed);
  if (request.lasting()) {
    // An earlier lease of the request stays also where the file cannot be written.
    LGPU_RETURN_IF_ERROR(announced.is_new ? SaveOrRemove(key) : SaveLasting());
  }
  if (caller.session != nullptr) WriteStats(*caller.session);
  return Describe(key);
}

absl::StatusOr<LeaseTable::Wanted> LeaseTable::CheckRequest(const Caller& caller,
                                                            const v1::CreateLeaseRequest& request) {
  if (caller.only) {
    return absl::PermissionDeniedError(
        "no lease can be made from here: this is the directory of one lease, as a container has it");
  }
  if (!request.lasting() && (caller.session == nullptr || request.has_management())) {
    return absl::FailedPreconditionError(
        "a lease needs an owner: call with the token of a session, or make it lasting, as a managed one is");
  }
  if (!request.name().empty()) LGPU_RETURN_IF_ERROR(CheckLeaseName(request.name()));
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a request_id has at most ", kMaxRequestIdBytes,
                                                   " bytes; this one has ", request.request_id().size()));
  }
  if (std::ranges::any_of(request.request_id(),
                          [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); })) {
    return absl::InvalidArgumentError(absl::StrCat("the request_id \"", AsUtf8(request.request_id()),
                                                   "\" has a control character; use letters and digits"));
  }
  if (request.has_ends() && !request.lasting()) {
    return absl::InvalidArgumentError(
        "only a lasting lease may have a time to live or an idle time; this one ends with its last program");
  }
  const bool has_preallocated =
      std::ranges::any_of(request.devices(), [](const v1::LogicalDeviceSpec& device) {
        return device.mode() == v1::LogicalDeviceSpec::MODE_PREALLOCATE;
      });
  if (request.preemptible() != v1::PREEMPTIBLE_NEVER && has_preallocated) {
    return absl::InvalidArgumentError(
        "a lease with a preallocated device cannot be preemptible: lgpud never takes preallocated memory "
        "back; use growth, or leave preemptible out");
  }
  LGPU_ASSIGN_OR_RETURN(LeaseEnds ends, ParseLeaseEnds(request.ends(), BootTimeNow()));
  LGPU_ASSIGN_OR_RETURN(const std::chrono::milliseconds idle_after, ParseIdleAfter(request.idle_after_ms()));
  if (request.preemptible() != v1::PREEMPTIBLE_NEVER && idle_after > kLongestIdle) {
    return absl::InvalidArgumentError(
        "a preemptible lease that others are suspended for gives way itself after a minute at the latest; "
        "ask for "
        "an idle_after of at most 60000 ms (lgpu: --idle-after 1m)");
  }
  if (!request.has_management()) {
    if (request.owner_uid() == 0) {
      return Wanted{.request = request,
                    .owner = LookUpUser(caller.uid),
                    .ends = std::move(ends),
                    .idle_after = idle_after};
    }
    return absl::InvalidArgumentError("only a managed lease is made for another user; ask for a managed one");
  }
  if (!caller.is_root()) {
    return absl::PermissionDeniedError(
        absl::StrCat("a managed lease is made by root alone, and you are user ", UserName(caller.uid),
                     "; make a lease of your own"));
  }
  LGPU_ASSIGN_OR_RETURN(Management management, ParseManagement(request.management(), BootTimeNow()));
  return Wanted{.request = request,
                .owner = LookUpUser(request.owner_uid()),
                .management = std::move(management),
                .ends = std::move(ends),
                .idle_after = idle_after};
}

absl::StatusOr<LeaseTable::Announced> LeaseTable::Announce(const Caller& caller, const Wanted& wanted,
                                                           std::vector<PlannedDevice>& plan,
                                                           TimePoint deadline) {
  const v1::CreateLeaseRequest& request = wanted.request;
  const User& user = wanted.owner;
  const bool is_managed = wanted.management.has_value();
  MutexLock lock(mutex_);
  if (!is_managed) AwaitRoomInCaps(user, HoldingsOf(plan), deadline);
  if (!request.request_id().empty()) {
    const Lease* same = FindRequested(user.uid, is_managed, request.request_id());
    while (same != nullptr && !same->ready) {
      changed_.Wait(mutex_);
      same = FindRequested(user.uid, is_managed, request.request_id());
    }
    if (same != nullptr && !same->ending) {
      leases_.at(same->key).is_repeated = true;
      return Announced{.key = same->key, .is_new = false};
    }
  }
  if (caller.session != nullptr && caller.session->lease()) {
    return absl::FailedPreconditionError(absl::StrCat("session ", caller.session->id().value,
                                                      " is attached to a lease already; a session has one"));
  }
  LGPU_RETURN_IF_ERROR(CheckName(wanted));
  if (!is_managed) FitToCaps(user, plan);
  LGPU_RETURN_IF_ERROR(CheckFitsEmptyCards(request, plan, broker_.Cards()));
  if (!is_managed) {
    Holdings more = HoldingsOf(plan);
    more.sessions = caller.session == nullptr ? 0 : 1;
    LGPU_RETURN_IF_ERROR(CheckCaps(user, more));
  }
  LGPU_RETURN_IF_ERROR(CheckNumbers(user, is_managed, plan.size()));
  const LeaseKey key{++last_key_};
  Lease& lease = leases_[key];
  lease.key = key;
  lease.id = ChooseId();
  lease.owner = user;
  lease.name = request.name().empty() ? ChooseName(wanted) : request.name();
  lease.anonymous = request.name().empty();
  lease.lasting = request.lasting();
  lease.created_at = std::chrono::system_clock::now();
  lease.request_id = request.request_id();
  lease.management = wanted.management;
  lease.ends = wanted.ends;
  lease.preemptible = FromProto(request.preemptible());
  lease.idle_after = wanted.idle_after;
  lease.used_at = UseTimeNow();
  lease.placements = std::make_shared<PlacementLog>(policy_.placement_records);
  for (std::size_t i = 0; i < plan.size(); ++i) {
    lease.devices.push_back({.id = LogicalId(),
                             .index = static_cast<int>(i),
                             .card = plan[i].card,
                             .preallocate = plan[i].preallocate,
                             .name = plan[i].name,
                             .limit = plan[i].limit,
                             .guarantee = plan[i].guarantee});
  }
  return Announced{.key = key, .is_new = true};
}

absl::Status LeaseTable::CheckNumbers(const User& user, bool is_managed, std::size_t more_devices) const {
  std::size_t leases = 0;
  std::size_t devices = 0;
  for (const auto& [key, lease] : leases_) {
    if (lease.owner.uid != user.uid || lease.management.has_value() != is_managed) continue;
    ++leases;
    devices += lease.devices.size();
  }
  if (leases >= kMaxLeases) {
    return absl::ResourceExhaustedError(absl::StrCat("user ", user.name, " has ", leases,
                                                     " leases, the most that a user may have; end some"));
  }
  if (devices + more_devices > kMaxDevices) {
    return absl::ResourceExhaustedError(
        absl::StrCat("user ", user.name, " has ", devices, " logical devices and asks for ", more_devices,
                     " more; a user may have ", kMaxDevices, ": end some leases"));
  }
  return absl::OkStatus();
}

LeaseAttempt::Shortage LeaseTable::ShortOf(const std::vector<PlannedDevice>& plan, CardId card) {
  LeaseAttempt::Shortage shortage{.card = card, .bytes = {}};
  for (const PlannedDevice& device : plan) {
    if (device.card_id == card) {
      shortage.bytes =
          SaturatingAdd(shortage.bytes, RoundUp(device.guarantee, device.card.device.granularity));
    }
  }
  return shortage;
}

absl::Status LeaseTable::MakeDevices(LeaseKey key, const std::vector<PlannedDevice>& plan, TimePoint deadline,
                                     LeaseAttempt& attempt) {
  std::string name;
  std::string owner;
  Broker::Preemptible preemptible = Broker::Preemptible::kNever;
  {
    MutexLock lock(mutex_);
    preemptible = leases_.at(key).preemptible;
    name = leases_.at(key).name;
    owner = leases_.at(key).owner.name;
  }
  std::vector<LogicalId> made;
  absl::Status status;
  for (std::size_t i = 0; i < plan.size() && status.ok(); ++i) {
    const absl::StatusOr<LogicalId> device = AddDeviceInTime(broker_,
                                                             {.card = plan[i].card_id,
                                                              .limit = plan[i].limit,
                                                              .guarantee = plan[i].guarantee,
                                                              .preallocate = plan[i].preallocate,
                                                              .lease = key,
                                                              .device_name = DeviceName(static_cast<int>(i)),
                                                              .lease_name = name,
                                                              .owner = owner,
                                                              .room = attempt.room,
                                                              .preemptible = preemptible},
                                                             deadline);
    status = device.status();
    if (device.ok()) {
      made.push_back(*device);
    } else if (absl::IsResourceExhausted(device.status())) {
      attempt.short_of = ShortOf(plan, plan[i].card_id);
    }
  }
  if (!status.ok()) {
    for (const LogicalId device : made) broker_.RemoveDevice(device);
  }
  {
    MutexLock lock(mutex_);
    if (status.ok()) {
      Lease& lease = leases_.at(key);
      for (std::size_t i = 0; i < made.size(); ++i) lease.devices[i].id = made[i];
      lease.ready = true;
      NoteLease(lease);
    } else {
      leases_.erase(key);
    }
  }
  changed_.NotifyAll();
  return status;
}

}  // namespace lgpu::daemon
