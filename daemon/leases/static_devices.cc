#include "daemon/leases/static_devices.h"

#include <pwd.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "allocator/ledger.h"
#include "daemon/leases/lease.h"
#include "daemon/leases/users.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr std::chrono::seconds kPatience{2};

absl::Status At(const std::string& place, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(place, ": ", std::string(status.message())));
}

/// The same, where nothing but the configuration can be to blame.
absl::Status WrongAt(const std::string& place, const absl::Status& status) {
  return status.ok() ? status : absl::InvalidArgumentError(At(place, status).message());
}

absl::StatusOr<v1::LogicalDeviceSpec> Spec(const StaticDeviceConfig& device,
                                           const std::vector<std::string>& uuids) {
  v1::LogicalDeviceSpec spec;
  spec.set_memory_limit_bytes(device.memory.count());
  spec.set_guarantee_bytes(device.guarantee.count());
  spec.set_name(device.name);
  spec.set_card_uuid(device.gpu);
  std::size_t index = 0;
  if (absl::SimpleAtoi(device.gpu, &index)) {
    if (index >= uuids.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no GPU ", index, ", this machine has ", uuids.size()));
    }
    spec.set_card_uuid(uuids[index]);
  }
  if (device.mode == "growth") spec.set_mode(v1::LogicalDeviceSpec::MODE_GROWTH);
  if (device.mode == "preallocate") spec.set_mode(v1::LogicalDeviceSpec::MODE_PREALLOCATE);
  return spec;
}

/// The devices of one lease, in the order of the file.
struct StaticLease {
  std::uint32_t uid = 0;
  std::string name;
  std::vector<const StaticDeviceConfig*> devices;
  std::string Place() const { return absl::StrCat(devices.front()->origin, ": lease ", name); }
};

/// One user may stand there by name and by number.
absl::StatusOr<std::vector<StaticLease>> GroupByLease(const std::vector<StaticDeviceConfig>& devices) {
  std::map<std::pair<std::uint32_t, std::string>, StaticLease> by_lease;
  for (const StaticDeviceConfig& device : devices) {
    const absl::StatusOr<std::uint32_t> uid = FindUser(device.owner);
    LGPU_RETURN_IF_ERROR(WrongAt(device.OriginOf("owner") + ": lease " + device.lease, uid.status()));
    StaticLease& lease = by_lease[{*uid, device.lease}];
    lease.uid = *uid;
    lease.name = device.lease;
    lease.devices.push_back(&device);
  }
  std::vector<StaticLease> leases;
  for (auto& [key, lease] : by_lease) leases.push_back(std::move(lease));
  return leases;
}

/// A Machine is one with empty cards, on which leases are put to see whether all of them fit.
class Machine {
 public:
  static absl::StatusOr<Machine> Make(const Config& config, const std::vector<DeviceRegistry::Card>& cards) {
    Machine machine(config);
    for (const DeviceRegistry::Card& card : cards) {
      machine.uuids_.push_back(card.device.uuid);
      if (!card.not_served_because.empty()) continue;
      const absl::StatusOr<CardId> id = machine.ledger_.AddCard(
          {.total = card.device.total, .reserve = config.reserve, .granularity = card.device.granularity});
      if (!id.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(PlaceOf(config, "memory.reserve"), "GPU ", card.index,
                                                       ": ", std::string(id.status().message())));
      }
      machine.cards_.push_back(
          {.id = *id,
           .card = {.index = card.index, .backend_device = card.backend_device, .device = card.device},
           .view = {},
           .draining = {}});
    }
    return machine;
  }

  absl::Status Put(const StaticLease& lease) {
    v1::CreateLeaseRequest request;
    std::vector<PlannedDevice> plan;
    for (Broker::CardInfo& card : cards_) card.view = ledger_.View(card.id);
    // One more each time, so that an error has a place.
    for (const StaticDeviceConfig* device : lease.devices) {
      const absl::StatusOr<v1::LogicalDeviceSpec> spec = Spec(*device, uuids_);
      LGPU_RETURN_IF_ERROR(WrongAt(device->OriginOf("gpu") + ": lease " + lease.name, spec.status()));
      v1::LogicalDeviceSpec& added = *request.add_devices();
      added = *spec;
      if (device->mode.empty() && device->guarantee.is_zero() && config_.policy.preallocate) {
        added.set_mode(v1::LogicalDeviceSpec::MODE_PREALLOCATE);
      }
      absl::StatusOr<std::vector<PlannedDevice>> planned = PlanDevices(request, cards_);
      const char* const blame = absl::IsNotFound(planned.status()) ? "gpu" : "memory";
      LGPU_RETURN_IF_ERROR(WrongAt(device->OriginOf(blame) + ": lease " + lease.name, planned.status()));
      plan = *std::move(planned);
    }
    const User owner = LookUpUser(lease.uid);
    if (const CapConfig* cap = FindUserCap(config_.policy.user_caps, owner); cap != nullptr) {
      ShrinkToCap(*cap, HeldBy([&](const User& user) { return user.uid == owner.uid; }), plan);
    }
    for (const CapConfig* cap : FindGroupCaps(config_.policy.group_caps, owner)) {
      ShrinkToCap(*cap, HeldBy([&](const User& user) { return IsInGroup(user, cap->name); }), plan);
    }
    for (std::size_t i = 0; i < plan.size(); ++i) {
      const absl::Status fits =
          ledger_.AddLogical(plan[i].card_id, {.limit = plan[i].limit, .guarantee = plan[i].guarantee})
              .status();
      const char* const blame = plan[i].preallocate ? "memory" : "guarantee";
      LGPU_RETURN_IF_ERROR(WrongAt(lease.devices[i]->OriginOf(blame) + ": lease " + lease.name, fits));
    }
    return WrongAt(lease.Place(), CheckCaps(owner, plan));
  }

 private:
  explicit Machine(const Config& config) : config_(config) {}

  template <typename Counts>
  Holdings HeldBy(const Counts& counts) const {
    Holdings holdings;
    for (const auto& [owner, has] : owners_) {
      if (counts(owner)) holdings += has;
    }
    return holdings;
  }

  absl::Status CheckCaps(User user, const std::vector<PlannedDevice>& plan) {
    const auto check = [&](const CapConfig& cap, const std::string& holder, const Holdings& has) {
      Holdings would_have = has;
      would_have += HoldingsOf(plan);
      return CheckCap(cap, holder, has, would_have);
    };
    if (const CapConfig* cap = FindUserCap(config_.policy.user_caps, user); cap != nullptr) {
      LGPU_RETURN_IF_ERROR(check(*cap, absl::StrCat("user ", user.name),
                                 HeldBy([&](const User& owner) { return owner.uid == user.uid; })));
    }
    for (const CapConfig* cap : FindGroupCaps(config_.policy.group_caps, user)) {
      LGPU_RETURN_IF_ERROR(check(*cap, absl::StrCat("group ", cap->name),
                                 HeldBy([&](const User& owner) { return IsInGroup(owner, cap->name); })));
    }
    owners_.emplace_back(std::move(user), HoldingsOf(plan));
    return absl::OkStatus();
  }

  const Config& config_;
  Ledger ledger_;
  std::vector<std::string> uuids_;
  std::vector<Broker::CardInfo> cards_;
  std::vector<std::pair<User, Holdings>> owners_;  // an entry a lease
};

/// The id of the lease that was made; nothing where it is there.
absl::StatusOr<std::optional<std::string>> MakeLease(const StaticLease& wanted,
                                                     const std::vector<std::string>& uuids,
                                                     LeaseTable& leases) {
  const Caller owner{.uid = wanted.uid, .session = nullptr};
  // By its name alone a managed lease could be found, or, by root, one of another user.
  for (const v1::Lease& there : leases.List(owner)) {
    if (there.owner_uid() == wanted.uid && there.name() == wanted.name && !there.has_management()) {
      return std::optional<std::string>();
    }
  }
  v1::CreateLeaseRequest request;
  request.set_name(wanted.name);
  request.set_lasting(true);
  for (const StaticDeviceConfig* device : wanted.devices) {
    LGPU_ASSIGN_OR_RETURN(*request.add_devices(), Spec(*device, uuids));
  }
  LGPU_ASSIGN_OR_RETURN(const v1::Lease made,
                        leases.Create(owner, request, std::chrono::steady_clock::now() + kPatience));
  return std::optional<std::string>(made.id());
}

}  // namespace

absl::Status CheckStaticNames(const Config& config) {
  for (const StaticDeviceConfig& device : config.static_devices) {
    LGPU_RETURN_IF_ERROR(WrongAt(device.OriginOf("lease"), CheckLeaseName(device.lease)));
    LGPU_RETURN_IF_ERROR(
        WrongAt(device.OriginOf("name") + ": lease " + device.lease, CheckLabel(device.name)));
  }
  return GroupByLease(config.static_devices).status();
}

absl::Status CheckStaticDevices(const Config& config, const std::vector<DeviceRegistry::Card>& cards) {
  LGPU_ASSIGN_OR_RETURN(Machine machine, Machine::Make(config, cards));
  LGPU_ASSIGN_OR_RETURN(const std::vector<StaticLease> wanted, GroupByLease(config.static_devices));
  for (const StaticLease& lease : wanted) LGPU_RETURN_IF_ERROR(machine.Put(lease));
  return absl::OkStatus();
}

absl::StatusOr<std::set<std::pair<std::uint32_t, std::string>>> StaticNames(
    const std::vector<StaticDeviceConfig>& devices) {
  LGPU_ASSIGN_OR_RETURN(const std::vector<StaticLease> wanted, GroupByLease(devices));
  std::set<std::pair<std::uint32_t, std::string>> names;
  for (const StaticLease& lease : wanted) names.emplace(lease.uid, lease.name);
  return names;
}

absl::Status MakeStaticLeases(const std::vector<StaticDeviceConfig>& devices,
                              const std::vector<v1::CardStats>& cards, LeaseTable& leases,
                              OnNoRoom on_no_room) {
  std::vector<std::string> uuids;
  for (const v1::CardStats& card : cards) uuids.push_back(card.uuid());
  LGPU_ASSIGN_OR_RETURN(const std::vector<StaticLease> wanted, GroupByLease(devices));
  std::vector<std::pair<Caller, std::string>> made;
  absl::Status failed;
  for (const StaticLease& lease : wanted) {
    const absl::StatusOr<std::optional<std::string>> id = MakeLease(lease, uuids, leases);
    if (!id.ok() && on_no_room == OnNoRoom::kGoOn) {
      const absl::Status one = At(lease.Place(), id.status());
      failed = failed.ok() ? one
                           : absl::Status(failed.code(), absl::StrCat(std::string(failed.message()), "\n",
                                                                      std::string(one.message())));
      continue;
    }
    if (!id.ok()) {
      for (const auto& [owner, earlier] : made) {
        leases.Remove(owner, earlier, std::chrono::steady_clock::now() + kPatience).IgnoreError();
      }
      return At(lease.Place(), id.status());
    }
    if (*id) made.emplace_back(Caller{.uid = lease.uid, .session = nullptr}, **id);
  }
  return failed;
}

}  // namespace lgpu::daemon
