#include "allocator/device/simulated/simulated_spec.h"

#include <sys/sysinfo.h>

#include <cctype>
#include <charconv>
#include <string>

#include "base/memory_size.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

constexpr std::size_t kMostDevices = 64;
constexpr Bytes kSmallest = 2_MiB;

absl::Status Wrong(std::string_view text, const std::string& why) {
  return absl::InvalidArgumentError("cannot simulate the GPUs \"" + std::string(text) + "\": " + why +
                                    "; write COUNTxSIZE, for example 2x1GiB, or several with commas between");
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

/// Appends the devices of one item, "2x1GiB" or "1GiB".
absl::Status AppendItem(std::string_view text, std::string_view item, std::vector<Bytes>& devices) {
  std::size_t count = 1;
  const std::size_t x = item.find_first_of("xX");
  if (x != std::string_view::npos) {
    const std::string_view digits = Trimmed(item.substr(0, x));
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
    if (error != std::errc() || end != digits.data() + digits.size() || count == 0) {
      return Wrong(text, "\"" + std::string(digits) + "\" is no count of GPUs");
    }
    item = item.substr(x + 1);
  }
  if (count > kMostDevices - devices.size()) {
    return Wrong(text, "that is more than " + std::to_string(kMostDevices) + " GPUs");
  }
  absl::StatusOr<Bytes> memory = ParseMemorySize(Trimmed(item));
  if (!memory.ok()) return Wrong(text, std::string(memory.status().message()));
  if (*memory < kSmallest) {
    return Wrong(text, FormatBytes(*memory) + " is less than one chunk (" + FormatBytes(kSmallest) + ")");
  }
  devices.insert(devices.end(), count, *memory);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Bytes>> ParseSimulatedSpec(std::string_view text) {
  std::vector<Bytes> devices;
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = rest.find(',');
    LGPU_RETURN_IF_ERROR(AppendItem(text, Trimmed(rest.substr(0, comma)), devices));
    if (comma == std::string_view::npos) return devices;
    rest = rest.substr(comma + 1);
  }
}

std::string MoreThanTheMachineHas(std::span<const Bytes> cards) {
  struct sysinfo machine = {};
  if (::sysinfo(&machine) != 0) return {};
  const Bytes memory(std::uint64_t{machine.totalram} * machine.mem_unit);
  Bytes simulated;
  for (const Bytes card : cards) simulated = SaturatingAdd(simulated, card);
  if (simulated <= memory) return {};
  return "the simulated GPUs have " + FormatBytes(simulated) + ", and this machine has " +
         FormatBytes(memory) +
         " of memory: what they hold is taken from it, and requests beyond it are refused";
}

}  // namespace lgpu
