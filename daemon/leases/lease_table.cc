#include "daemon/leases/lease_table.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/utf8.h"
#include "daemon/leases/lease_idle.h"
#include "daemon/leases/lease_suspender.h"
#include "google/protobuf/util/time_util.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

using google::protobuf::util::TimeUtil;

google::protobuf::Timestamp ToTimestamp(std::chrono::system_clock::time_point time) {
  return TimeUtil::NanosecondsToTimestamp(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

}  // namespace

LeasePolicy LeaseTable::SetPolicy(LeasePolicy policy) {
  MutexLock lock(mutex_);
  return std::exchange(policy_, std::move(policy));
}

absl::Status LeaseTable::CheckName(const Wanted& wanted) const {
  const std::string& name = wanted.request.name();
  const bool is_managed = wanted.management.has_value();
  for (const auto& [key, lease] : leases_) {
    const bool is_near =
        lease.management.has_value() == is_managed && (is_managed || lease.owner.uid == wanted.owner.uid);
    if (!name.empty() && is_near && lease.name == name && !lease.ending) {
      return absl::AlreadyExistsError(absl::StrCat(
          is_managed ? "there is a managed lease named " : "you have a lease named ", name, " already (",
          lease.id, is_managed ? absl::StrCat(", of user ", lease.owner.name, ")") : ")",
          "; use it by `lgpu exec ", name, " -- CMD`, choose another name, or end it with `lgpu rm ", name,
          "`"));
    }
  }
  return absl::OkStatus();
}

const Lease* LeaseTable::FindRequested(std::uint32_t uid, bool is_managed,
                                       const std::string& request_id) const {
  const Lease* ending = nullptr;
  for (const auto& [key, lease] : leases_) {
    const bool is_near = lease.management.has_value() == is_managed && (is_managed || lease.owner.uid == uid);
    if (!is_near || lease.request_id != request_id) continue;
    if (!lease.ending) return &lease;
    ending = &lease;
  }
  return ending;
}

absl::Status LeaseTable::CheckMayChange(const Caller& caller, const Lease& lease) {
  if (caller.only) {
    return absl::PermissionDeniedError(
        absl::StrCat("lease ", lease.name,
                     " cannot be changed from here: this is its own directory, as a container has it"));
  }
  if (!lease.management || caller.is_root()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("lease ", lease.name,
                   " is managed: only root resizes and removes it; your programs may "
                   "use it by `lgpu exec ",
                   lease.name, " -- CMD`"));
}

std::string LeaseTable::ChooseName(const Wanted& wanted) {
  std::set<std::string> taken;
  for (const auto& [key, lease] : leases_) {
    if (lease.owner.uid == wanted.owner.uid || lease.management) taken.insert(lease.name);
  }
  std::random_device random;
  std::uint64_t number = random() % 576;
  while (taken.contains(DefaultLeaseName(number))) ++number;
  return DefaultLeaseName(number);
}

std::string LeaseTable::ChooseId() const {
  std::random_device random;
  while (true) {
    std::string id = absl::StrFormat("l-%08x", random());
    const bool taken = std::any_of(leases_.begin(), leases_.end(),
                                   [&id](const auto& entry) { return entry.second.id == id; });
    if (!taken) return id;
  }
}

template <typename Predicate>
Holdings LeaseTable::SumHoldings(Predicate owner_matches, Counted counted) const {
  Holdings sum;
  for (const auto& [key, lease] : leases_) {
    if (lease.management || !owner_matches(lease.owner)) continue;
    if (lease.ending && counted == Counted::kWithoutEnding) continue;
    sum.leases += lease.ending ? 0 : 1;
    sum.sessions += static_cast<std::uint32_t>(lease.live.size());
    for (std::size_t i = 0; i < lease.devices.size(); ++i) {
      const LeaseDevice& device = lease.devices[i];
      Bytes limit = device.capped_limit();
      Bytes guarantee = device.capped_guarantee();
      if (!lease.resizing_to.empty()) {
        limit = std::max(limit, lease.resizing_to[i].capped_limit());
        guarantee = std::max(guarantee, lease.resizing_to[i].capped_guarantee());
      }
      if (lease.ending) {
        // Its programs keep the memory that they hold as long as they live.
        const std::optional<Broker::DeviceInfo> info = broker_.Find(device.id);
        const Bytes held = info ? info->held : Bytes();
        limit = std::min(limit, held);
        guarantee = std::min(guarantee, held);
      }
      sum.memory_limit = SaturatingAdd(sum.memory_limit, limit);
      sum.guarantee = SaturatingAdd(sum.guarantee, guarantee);
    }
  }
  return sum;
}

absl::Status LeaseTable::CheckCaps(const User& user, Holdings delta, Counted counted) const {
  const auto check = [&delta](const CapConfig& cap, const std::string& holder, const Holdings& has) {
    Holdings would_have = has;
    would_have += delta;
    return CheckCap(cap, holder, has, would_have);
  };
  if (const CapConfig* cap = FindUserCap(policy_.user_caps, user); cap != nullptr) {
    const Holdings has = SumHoldings([&user](const User& owner) { return owner.uid == user.uid; }, counted);
    LGPU_RETURN_IF_ERROR(check(*cap, absl::StrCat("user ", user.name), has));
  }
  for (const CapConfig* cap : FindGroupCaps(policy_.group_caps, user)) {
    const Holdings has =
        SumHoldings([cap](const User& owner) { return IsInGroup(owner, cap->name); }, counted);
    LGPU_RETURN_IF_ERROR(check(*cap, absl::StrCat("group ", cap->name), has));
  }
  return absl::OkStatus();
}

void LeaseTable::AwaitRoomInCaps(const User& user, const Holdings& delta, TimePoint deadline) {
  while (!closed_ && !CheckCaps(user, delta).ok() && CheckCaps(user, delta, Counted::kWithoutEnding).ok() &&
         changed_.WaitUntil(mutex_, deadline)) {
  }
}

std::vector<LeaseTable::CallCap> LeaseTable::CallCaps(const User& user) const {
  std::vector<CallCap> caps;
  MutexLock lock(mutex_);
  const CapConfig* const own = FindUserCap(policy_.user_caps, user);
  if (own != nullptr && own->calls) caps.push_back({.key = own->key, .group = "", .calls = *own->calls});
  for (const CapConfig* const cap : FindGroupCaps(policy_.group_caps, user)) {
    if (cap->calls) caps.push_back({.key = cap->key, .group = cap->name, .calls = *cap->calls});
  }
  return caps;
}

void LeaseTable::FitToCaps(const User& user, std::vector<PlannedDevice>& plan) const {
  if (const CapConfig* cap = FindUserCap(policy_.user_caps, user); cap != nullptr) {
    ShrinkToCap(*cap, SumHoldings([&user](const User& owner) { return owner.uid == user.uid; }), plan);
  }
  for (const CapConfig* cap : FindGroupCaps(policy_.group_caps, user)) {
    ShrinkToCap(*cap, SumHoldings([cap](const User& owner) { return IsInGroup(owner, cap->name); }), plan);
  }
}

absl::StatusOr<LeaseKey> LeaseTable::FindKey(const Caller& caller, const std::string& text) const {
  std::vector<LeaseKey> named;
  std::optional<LeaseKey> managed;
  std::optional<LeaseKey> own;
  for (const auto& [key, lease] : leases_) {
    if (!lease.ready || lease.ending || !caller.may_see(key, lease.owner.uid)) continue;
    if (lease.id == text) return key;
    const bool with_owner = absl::StrCat(lease.owner.name, "/", lease.name) == text ||
                            absl::StrCat(lease.owner.uid, "/", lease.name) == text;
    if (lease.name != text && !with_owner) continue;
    if (lease.management) managed = key;
    if (lease.name == text && lease.owner.uid == caller.uid) own = key;
    named.push_back(key);
  }
  // A user's name cannot stand in the way of root's.
  if (managed) return *managed;
  if (own) return *own;
  if (named.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(named.size(), " users have a lease named ", text,
                                                   "; name it as OWNER/", text, " or by its id (`lgpu ls`)"));
  }
  if (named.empty()) {
    return absl::NotFoundError(
        absl::StrCat("you have no lease named \"", AsUtf8(text.substr(0, 80)), "\"; `lgpu ls` lists yours"));
  }
  return named.front();
}

absl::Status LeaseTable::AttachLocked(const Caller& caller, Lease& lease) {
  if (lease.ending) {
    return absl::FailedPreconditionError(
        absl::StrCat("lease ", lease.name, " is ending; create another one"));
  }
  SessionState& session = *caller.session;
  if (!lease.live.contains(session.id()) && !lease.management) {
    LGPU_RETURN_IF_ERROR(CheckCaps(lease.owner, {.memory_limit = {}, .guarantee = {}, .sessions = 1}));
  }
  LGPU_RETURN_IF_ERROR(session.Attach(lease.key));
  if (!lease.live.contains(session.id())) {
    lease.live.insert(session.id());
    ++lease.sessions_ever;
    lease.used_at = UseTimeNow();
    // The journal first: from AttachSession on the session may be granted chunks, and their records name it.
    NoteLease(lease);
    NoteSession(lease, session);
    broker_.AttachSession(session.id(), lease.key);
    events_.Attached(lease, session);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Lease> LeaseTable::Attach(const Caller& caller, const std::string& text,
                                             std::uint64_t idle_after_ms) {
  if (caller.session == nullptr) {
    return absl::FailedPreconditionError(
        "attaching needs the token of a session; connect to the session socket first");
  }
  LGPU_ASSIGN_OR_RETURN(const std::chrono::milliseconds idle_after, ParseIdleAfter(idle_after_ms));
  LeaseKey key;
  bool is_file_behind = false;
  {
    MutexLock lock(mutex_);
    LGPU_ASSIGN_OR_RETURN(key, FindKey(caller, text));
    Lease& lease = leases_.at(key);
    LGPU_RETURN_IF_ERROR(AttachLocked(caller, lease));
    if (idle_after.count() > 0) {
      lease.idle_after = idle_after;
      is_file_behind = lease.lasting;
      NoteLease(lease);
    }
  }
  LGPU_RETURN_IF_ERROR(Commit());
  if (is_file_behind) LGPU_RETURN_IF_ERROR(SaveLasting());
  WriteStats(*caller.session);
  return Describe(key);
}

v1::Lease LeaseTable::ToProto(const Lease& lease) const {
  v1::Lease proto;
  proto.set_id(lease.id);
  proto.set_name(lease.name);
  proto.set_owner_uid(lease.owner.uid);
  proto.set_owner(lease.owner.name);
  proto.set_lasting(lease.lasting);
  *proto.mutable_created_at() = ToTimestamp(lease.created_at);
  proto.set_sessions(static_cast<std::uint32_t>(lease.live.size()));
  proto.set_sessions_ever(lease.sessions_ever);
  if (lease.management) *proto.mutable_management() = daemon::ToProto(*lease.management, BootTimeNow());
  if (lease.ends.any()) *proto.mutable_ends() = daemon::ToProto(lease.ends, BootTimeNow());
  proto.set_preemptible(daemon::ToProto(lease.preemptible));
  proto.set_idle_after_ms(static_cast<std::uint64_t>(lease.idle_after.count()));
  if (auto suspension = SuspensionOf(lease, broker_)) *proto.mutable_suspension() = *std::move(suspension);
  for (const LeaseDevice& device : lease.devices) {
    const PhysicalDevice& physical = device.card.device;
    v1::LogicalDevice& out = *proto.add_devices();
    out.set_id(device.id.value);
    out.set_index(static_cast<std::uint32_t>(device.index));
    out.set_name(FullDeviceName(device.index));
    out.set_label(device.name);
    out.set_card_uuid(physical.uuid);
    out.set_card_index(static_cast<std::uint32_t>(device.card.index));
    out.set_memory_limit_bytes(device.limit.count());
    out.set_guarantee_bytes(device.guarantee.count());
    out.set_mode(device.preallocate ? v1::LogicalDeviceSpec::MODE_PREALLOCATE
                                    : v1::LogicalDeviceSpec::MODE_GROWTH);
    out.set_granularity_bytes(physical.granularity.count());
    out.set_card_total_bytes(physical.total.count());
    out.set_card_name(physical.name);
    out.set_pci_bus_id(physical.pci_bus_id);
    out.set_compute_major(static_cast<std::uint32_t>(physical.compute_major));
    out.set_compute_minor(static_cast<std::uint32_t>(physical.compute_minor));
    out.set_simulated(physical.simulated);
  }
  return proto;
}

absl::StatusOr<v1::Lease> LeaseTable::Describe(LeaseKey key) const {
  MutexLock lock(mutex_);
  const auto found = leases_.find(key);
  if (found == leases_.end()) return absl::NotFoundError("the lease has ended");
  return ToProto(found->second);
}

absl::StatusOr<v1::Lease> LeaseTable::Get(const Caller& caller, const std::string& text) const {
  MutexLock lock(mutex_);
  LGPU_ASSIGN_OR_RETURN(const LeaseKey key, FindKey(caller, text));
  return ToProto(leases_.at(key));
}

absl::StatusOr<std::vector<Lease>> LeaseTable::Find(const Caller& caller,
                                                    const std::vector<std::string>& names) const {
  std::vector<Lease> found;
  MutexLock lock(mutex_);
  std::set<LeaseKey> keys;
  for (const std::string& name : names) {
    LGPU_ASSIGN_OR_RETURN(const LeaseKey key, FindKey(caller, name));
    if (keys.insert(key).second) found.push_back(leases_.at(key));
  }
  if (names.empty()) {
    for (const auto& [key, lease] : leases_) {
      if (lease.ready && !lease.ending && caller.may_see(key, lease.owner.uid)) found.push_back(lease);
    }
  }
  return found;
}

void LeaseTable::TellOf(LeaseKey key, absl::FunctionRef<void(const LeaseEvents&, const Lease&)> tell) const {
  MutexLock lock(mutex_);
  if (const auto found = leases_.find(key); found != leases_.end()) tell(events_, found->second);
}

std::vector<v1::Lease> LeaseTable::List(const Caller& caller) const {
  std::vector<v1::Lease> list;
  MutexLock lock(mutex_);
  for (const auto& [key, lease] : leases_) {
    if (lease.ready && !lease.ending && caller.may_see(key, lease.owner.uid)) list.push_back(ToProto(lease));
  }
  return list;
}

}  // namespace lgpu::daemon
