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

std::vector<int> DevicesOnCards(const wire::Lease& lease, std::span<const std::string> uuids) {
  const std::vector<std::string> all = CardUuidsOf(lease);
  const bool is_all = std::equal(uuids.begin(), uuids.end(), all.begin(), all.end());
  std::vector<int> places;
  for (const std::string& uuid : uuids) {
    for (std::size_t i = 0; i < lease.devices.size(); ++i) {
      if (lease.devices[i].card_uuid == uuid) places.push_back(static_cast<int>(i));
    }
  }
  if (is_all) std::sort(places.begin(), places.end());
  return places;
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
