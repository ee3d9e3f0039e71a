#include "lgpu/visibility.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "base/shown_value.h"
#include "base/visible_list.h"
#include "base/whole_number.h"

namespace lgpu {
namespace {

constexpr std::size_t kMostShown = 16;

std::string List(std::span<const std::string> names) {
  if (names.empty()) return "none";
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i == kMostShown) return list + " and " + std::to_string(names.size() - i) + " more";
    list.append(i == 0 ? "" : ", ").append(names[i]);
  }
  return list;
}

}  // namespace

DeviceOrder ParseDeviceOrder(std::optional<std::string_view> value) {
  return value == "PCI_BUS_ID" ? DeviceOrder::kPciBusId : DeviceOrder::kFastestFirst;
}

VisibleList ParseVisibleDevices(std::optional<std::string_view> value, std::span<const std::string> uuids) {
  VisibleEntries entries = ReadVisibleDevices(value, uuids);
  return {std::move(entries.devices), std::move(entries.note)};
}

std::vector<int> VisibleDevices(std::optional<std::string_view> value, std::span<const std::string> uuids) {
  return ParseVisibleDevices(value, uuids).devices;
}

absl::StatusOr<std::vector<int>> VisibleCards(const VisibleCardsOptions& options) {
  const VisibleList list = ParseVisibleDevices(options.value, options.machine);
  std::vector<std::string> left;
  std::vector<int> cards;
  for (const int device : list.devices) {
    const std::string& uuid = left.emplace_back(options.machine[static_cast<std::size_t>(device)]);
    const auto served = std::find(options.served.begin(), options.served.end(), uuid);
    if (served != options.served.end()) cards.push_back(static_cast<int>(served - options.served.begin()));
  }
  if (!cards.empty()) return cards;

  std::string text = "no GPU is visible to this process";
  text += "\n  CUDA_VISIBLE_DEVICES " + (options.value ? "= " + ShownValue(*options.value) : "is not set");
  text += ", which leaves: " + List(left);
  if (!list.note.empty()) text += "\n  " + list.note;
  text += "\n  the daemon serves: " + List(options.served);
  text += "\n  try: unset CUDA_VISIBLE_DEVICES, or name a GPU of the daemon by its UUID";
  return absl::NotFoundError(text);
}

absl::StatusOr<std::vector<int>> VisibleCardsOfLease(std::optional<std::string_view> value,
                                                     std::span<const std::string> lease) {
  const VisibleList list = ParseVisibleDevices(value, lease);
  if (!list.devices.empty()) return list.devices;
  std::string text = "no GPU is visible to this process\n  CUDA_VISIBLE_DEVICES ";
  text += value ? "= " + ShownValue(*value) : "is not set";
  text += ", which leaves none of the lease's GPUs: " + List(lease);
  if (!list.note.empty()) text += "\n  " + list.note;
  text += "\n  try: unset CUDA_VISIBLE_DEVICES; inside a lease an index counts the lease's GPUs, from 0";
  return absl::NotFoundError(text);
}

absl::StatusOr<std::vector<int>> ParseVisibleDeviceList(std::string_view list, int count) {
  std::vector<int> devices;
  if (list.empty()) {
    for (int i = 0; i < count; ++i) devices.push_back(i);
    return devices;
  }
  std::set<int> distinct;
  for (std::string_view rest = list;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view entry = rest.substr(0, comma);
    const std::optional<std::int32_t> device = ParseWholeNumber<std::int32_t>(entry);
    if (!device) {
      return absl::InvalidArgumentError("Could not parse entry in 'visible_device_list': '" +
                                        std::string(entry) + "'. visible_device_list = " + std::string(list));
    }
    if (*device < 0 || *device >= count) {
      return absl::InvalidArgumentError("'visible_device_list' listed an invalid Device id '" +
                                        std::to_string(*device) + "' but visible device count is " +
                                        std::to_string(count));
    }
    devices.push_back(*device);
    distinct.insert(*device);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (distinct.size() != devices.size()) {
    return absl::InvalidArgumentError("visible_device_list contained a duplicate entry: " +
                                      std::string(list));
  }
  return devices;
}

}  // namespace lgpu
