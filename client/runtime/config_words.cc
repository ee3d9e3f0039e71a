#include "client/runtime/config_words.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "kernels/text.h"

namespace lgpu {

namespace {
constexpr std::array<std::string_view, 4> kPolicyWords = {"explicit", "warn", "silent", "silent_for_int32"};
}  // namespace

absl::StatusOr<DevicePolicy> ParseDevicePolicy(std::string_view word) {
  const auto found = std::find(kPolicyWords.begin(), kPolicyWords.end(), word);
  if (found == kPolicyWords.end()) {
    return absl::InvalidArgumentError(Cat("Invalid argument `device_policy`: '", word,
                                          "'. Valid arguments: silent, silent_for_int32, warn, explicit"));
  }
  return static_cast<DevicePolicy>(found - kPolicyWords.begin());
}

std::string_view DevicePolicyWord(DevicePolicy policy) {
  return kPolicyWords.at(static_cast<std::size_t>(policy));
}

}  // namespace lgpu
