// Any text as a device name and as a list of visible devices: a parsed name prints as text that parses to the
// same name, and nothing crashes.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "lgpu/device_name.h"
#include "lgpu/visibility.h"

namespace {

using lgpu::DeviceName;

/// An id without a type has no text of its own.
bool HasText(const DeviceName& name) { return name.type || !name.id; }

void CheckName(std::string_view text) {
  const std::optional<DeviceName> full = lgpu::ParseFullName(text);
  const std::optional<DeviceName> local = lgpu::ParseLocalName(text);
  LGPU_CHECK(!full || !local);
  for (const std::optional<DeviceName>& name : {full, local, lgpu::ParseFullOrLocalName(text)}) {
    if (!name) continue;
    LGPU_CHECK(!HasText(*name) || lgpu::ParseFullName(lgpu::ToString(*name)) == name);
    LGPU_CHECK(lgpu::IsSpecification(*name, *name) && lgpu::AreCompatible(*name, *name));
    const absl::StatusOr<DeviceName> merged = lgpu::Merge(*name, *name);
    LGPU_CHECK(merged.ok() && *merged == *name);
    // As in TensorFlow, a custom type has a legacy spelling for look-ups that no parser reads.
    const bool known = name->type == "CPU" || name->type == "GPU";
    for (const std::string& other : lgpu::LookupNames(*name)) {
      LGPU_CHECK(!known || lgpu::ParseFullOrLocalName(other).has_value());
    }
  }
  const absl::StatusOr<DeviceName> lenient = lgpu::ParseLenientName(text);
  if (lenient.ok() && HasText(*lenient)) {
    LGPU_CHECK(lgpu::ParseFullName(lgpu::ToString(*lenient)) == *lenient);
  }
  if (!lenient.ok()) LGPU_CHECK(lenient.status().message().size() < 1000);
  const absl::StatusOr<std::string> whole =
      lgpu::CanonicalizeDeviceName(text, "/job:a/replica:0/task:0/device:GPU:0");
  LGPU_CHECK(whole.ok() == (full || local));
  if (whole.ok()) LGPU_CHECK(lgpu::ParseFullName(*whole)->IsComplete());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  CheckName(text);
  const std::size_t half = size / 2;
  (void)lgpu::FullNameLess(text.substr(0, half), text.substr(half));

  const std::vector<std::string> uuids = {"GPU-1", "GPU-12", "MIG-3", "GPU-4"};
  const std::vector<int> visible = lgpu::VisibleDevices(text, uuids);
  LGPU_CHECK(std::set<int>(visible.begin(), visible.end()).size() == visible.size());
  const absl::StatusOr<std::vector<int>> list = lgpu::ParseVisibleDeviceList(text, 4);
  if (list.ok()) LGPU_CHECK(std::set<int>(list->begin(), list->end()).size() == list->size());
  return 0;
}
