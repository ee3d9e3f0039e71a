#include "base/visible_list.h"

#include <algorithm>
#include <cstddef>

#include "base/shown_value.h"

namespace lgpu {
namespace {

constexpr std::string_view kGpu = "GPU-";
constexpr std::string_view kMig = "MIG-";

bool IsBlank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  return text;
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
  if (index >= count) {
    return {-1, "is beyond the last of " + std::to_string(count) + (count == 1 ? " GPU" : " GPUs")};
  }
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
  if (entry.device < 0) entry.invalid = "is the UUID of none of the GPUs";
  return entry;
}

/// Whether an entry is a UUID, or the beginning of one, that none of the GPUs has.
bool IsUnknownUuid(std::string_view text, std::span<const std::string> uuids) {
  if (text.substr(0, kGpu.size()) != kGpu && text.substr(0, kMig.size()) != kMig) return false;
  return std::none_of(uuids.begin(), uuids.end(),
                      [&](std::string_view uuid) { return uuid.substr(0, text.size()) == text; });
}

}  // namespace

VisibleEntries ReadVisibleDevices(std::optional<std::string_view> value, std::span<const std::string> uuids) {
  VisibleEntries list;
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
      if (IsUnknownUuid(text, uuids)) list.unknown_uuid = text;
      list.note = "the list ends before " + ShownValue(text) + ", which " + entry.invalid;
      break;
    }
    if (std::find(list.devices.begin(), list.devices.end(), entry.device) != list.devices.end()) {
      list.devices.clear();
      list.note = ShownValue(text) + " names a GPU for the second time, which empties the list";
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

}  // namespace lgpu
