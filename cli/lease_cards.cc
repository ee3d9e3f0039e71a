#include "cli/lease_cards.h"

#include <algorithm>

#include "lgpu/status.h"
#include "lgpu/visibility.h"

namespace lgpu::cli {

std::vector<std::string> CardUuidsOf(const v1::Lease& lease) {
  std::vector<std::string> uuids;
  for (const v1::LogicalDevice& device : lease.devices()) {
    if (std::find(uuids.begin(), uuids.end(), device.card_uuid()) == uuids.end()) {
      uuids.push_back(device.card_uuid());
    }
  }
  return uuids;
}

absl::StatusOr<int> CountVisibleDevices(const v1::Lease& lease, std::optional<std::string_view> value) {
  const std::vector<std::string> uuids = CardUuidsOf(lease);
  LGPU_ASSIGN_OR_RETURN(const std::vector<int> visible, VisibleCardsOfLease(value, uuids));
  int count = 0;
  for (const int card : visible) {
    count += static_cast<int>(
        std::count_if(lease.devices().begin(), lease.devices().end(), [&](const v1::LogicalDevice& device) {
          return device.card_uuid() == uuids[static_cast<std::size_t>(card)];
        }));
  }
  return count;
}

}  // namespace lgpu::cli
