#include "client/session/lease_visibility.h"

#include <algorithm>
#include <cstdlib>

namespace lgpu {
namespace {

constexpr char kVariable[] = "CUDA_VISIBLE_DEVICES";

}  // namespace

bool IsInsideLease(const wire::Lease& lease) {
  const char* const inside = std::getenv("LGPU_LEASE");
  return inside != nullptr && *inside != '\0' && (lease.id == inside || lease.name == inside);
}

std::vector<std::string> CardUuidsOf(const wire::Lease& lease) {
  std::vector<std::string> uuids;
  for (const wire::LogicalDevice& device : lease.devices) {
    if (std::find(uuids.begin(), uuids.end(), device.card_uuid) == uuids.end()) {
      uuids.push_back(device.card_uuid);
    }
  }
  return uuids;
}

std::optional<std::string> VisibleDevicesVariable() {
  const char* const value = std::getenv(kVariable);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

void SetVisibleDevices(std::span<const std::string> uuids) {
  std::string value;
  for (const std::string& uuid : uuids) value += (value.empty() ? "" : ",") + uuid;
  if (VisibleDevicesVariable() != value) ::setenv(kVariable, value.c_str(), /*overwrite=*/1);
}

}  // namespace lgpu
