#include "lgpu/visibility.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>

#include "absl/status/status.h"
#include "base/whole_number.h"

namespace lgpu {
namespace {

constexpr std::size_t kMostShown = 16;

bool IsBlank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  return text;
}

// The environment may hold anything; a message is one readable line.
std::string Shown(std::string_view text) {
  constexpr std::size_t kMostLength = 200;
  std::string shown = "'";
  for (char c : text.substr(0, kMostLength)) shown += (c >= 0 && c < ' ') || c == 127 ? '?' : c;
  return shown + (text.size() > kMostLength ? "...'" : "'");
}

std::string List(std::span<const std::string> names) {
  if (names.empty()) return "none";
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i == kMostShown) return list + " and " + std::to_string(names.size() - i) + " more";
    list.append(i == 0 ? "" : ", ").append(names[i]);
  }
  return list;
}

// The meaning of an entry: a position in the list of GPUs, or the reason why it means none.
struct Entry {
  int device = -1;
  std::string invalid;
};

Entry ReadIndex(std::string_view text, std::size_t count) {
  std::string_view rest = Trimmed(text);
  const bool negative = !rest.empty() && rest.front() == '-';
  if (!rest.empty() && (negative || rest.front() == '+')) rest.remove_prefix(1);
  if (rest.empty() || !IsDigit(rest.front())) {
    return {-1, "is neither an index nor a UUID of the first entry's kind"};
  }
  std::size_t index = 0;
  for (; !rest.empty() && IsDigit(rest.front()); rest.remove_prefix(1)) {
    // Capped: any number beyond the last GPU is as good as another.
    index =
        std::min(index * 10 + static_cast<std::size_t>(rest.front() - '0'), std::max<std::size_t>(count, 1));
  }
  if (negative && index > 0) return {-1, "is below zero"};
  if (index >= count) return {-1, "is not among the machine's " + std::to_string(count)};
  return {static_cast<int>(index), ""};
}

Entry ReadUuid(std::string_view text, std::string_view kind, std::span<const std::string> uuids) {
  if (text.substr(0, kind.size()) != kind) {
    return {-1, "does not begin with " + std::string(kind) + " as the first entry does"};
  }
  Entry entry;
  for (std::size_t i = 0; i < uuids.size(); ++i) {
    if (std::string_view(uuids[i]).substr(0, text.size()) != text) continue;
    if (entry.device >= 0) return {-1, "fits more than one GPU"};
    entry.device = static_cast<int>(i);
  }
  if (entry.device < 0) entry.invalid = "is the UUID of no GPU of this machine";
  return entry;
}

}  // namespace

DeviceOrder ParseDeviceOrder(std::optional<std::string_view> value) {
  return value == "PCI_BUS_ID" ? DeviceOrder::kPciBusId : DeviceOrder::kFastestFirst;
}

VisibleList ParseVisibleDevices(std::optional<std::string_view> value, std::span<const std::string> uuids) {
  constexpr std::string_view kGpu = "GPU-";
  constexpr std::string_view kMig = "MIG-";
  VisibleList list;
  if (!value) {
    for (std::size_t i = 0; i < uuids.size(); ++i) list.devices.push_back(static_cast<int>(i));
    return list;
  }
  if (value->empty()) return list;
  const bool mig = value->substr(0, kMig.size()) == kMig;
  const std::string_view kind = mig ? kMig : value->substr(0, kGpu.size()) == kGpu ? kGpu : "";

  std::string_view rest = *value;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    const std::string_view text = rest.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);

    const Entry entry = kind.empty() ? ReadIndex(text, uuids.size()) : ReadUuid(text, kind, uuids);
    if (!entry.invalid.empty()) {
      list.note = "the list ends before " + Shown(text) + ", which " + entry.invalid;
      break;
    }
    if (std::find(list.devices.begin(), list.devices.end(), entry.device) != list.devices.end()) {
      list.devices.clear();
      list.note = Shown(text) + " names a GPU for the second time, which empties the list";
      break;
    }
    list.devices.push_back(entry.device);
  }
  if (mig && list.devices.size() > 1) {
    list.devices.resize(1);
    list.note = "a process sees only one MIG instance, the first one";
  }
  return list;
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
  text += "\n  CUDA_VISIBLE_DEVICES " + (options.value ? "= " + Shown(*options.value) : "is not set");
  text += ", which leaves: " + List(left);
  if (!list.note.empty()) text += "\n  " + list.note;
  text += "\n  the daemon serves: " + List(options.served);
  text += "\n  try: unset CUDA_VISIBLE_DEVICES, or name a GPU of the daemon by its UUID";
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
