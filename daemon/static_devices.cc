#include "daemon/static_devices.h"

#include <pwd.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr std::chrono::seconds kPatience{2};

absl::StatusOr<std::uint32_t> FindUser(const std::string& owner) {
  std::uint32_t uid = 0;
  if (owner.empty()) return ::geteuid();
  if (absl::SimpleAtoi(owner, &uid)) return uid;
  std::vector<char> buffer(16384);
  passwd entry{};
  passwd* found = nullptr;
  ::getpwnam_r(owner.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return entry.pw_uid;
  return absl::InvalidArgumentError(absl::StrCat("there is no user '", owner, "' on this machine"));
}

absl::StatusOr<v1::LogicalDeviceSpec> Spec(const StaticDeviceConfig& device,
                                           const std::vector<v1::CardStats>& cards) {
  v1::LogicalDeviceSpec spec;
  spec.set_memory_limit_bytes(device.memory.count());
  spec.set_guarantee_bytes(device.guarantee.count());
  spec.set_name(device.name);
  spec.set_card_uuid(device.gpu);
  std::size_t index = 0;
  if (absl::SimpleAtoi(device.gpu, &index)) {
    if (index >= cards.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no GPU ", index, ", this machine has ", cards.size()));
    }
    spec.set_card_uuid(cards[index].uuid());
  }
  if (device.mode == "growth") spec.set_mode(v1::LogicalDeviceSpec::MODE_GROWTH);
  if (device.mode == "preallocate") spec.set_mode(v1::LogicalDeviceSpec::MODE_PREALLOCATE);
  return spec;
}

absl::Status MakeLease(std::uint32_t uid, const std::string& name,
                       const std::vector<const StaticDeviceConfig*>& devices,
                       const std::vector<v1::CardStats>& cards, LeaseTable& leases) {
  const Caller owner{.uid = uid, .session = nullptr};
  if (leases.Get(owner, name).ok()) return absl::OkStatus();
  v1::CreateLeaseRequest request;
  request.set_name(name);
  request.set_lasting(true);
  for (const StaticDeviceConfig* device : devices) {
    LGPU_ASSIGN_OR_RETURN(*request.add_devices(), Spec(*device, cards));
  }
  return leases.Create(owner, request, std::chrono::steady_clock::now() + kPatience).status();
}

}  // namespace

absl::Status MakeStaticLeases(const std::vector<StaticDeviceConfig>& devices,
                              const std::vector<v1::CardStats>& cards, LeaseTable& leases) {
  std::map<std::pair<std::string, std::string>, std::vector<const StaticDeviceConfig*>> by_lease;
  for (const StaticDeviceConfig& device : devices) by_lease[{device.owner, device.lease}].push_back(&device);
  absl::Status first;
  for (const auto& [key, group] : by_lease) {
    const absl::StatusOr<std::uint32_t> uid = FindUser(key.first);
    const absl::Status status = uid.ok() ? MakeLease(*uid, key.second, group, cards, leases) : uid.status();
    if (!status.ok() && first.ok()) {
      first = absl::Status(status.code(), absl::StrCat(group.front()->origin, ": lease ", key.second, ": ",
                                                       std::string(status.message())));
    }
  }
  return first;
}

}  // namespace lgpu::daemon
