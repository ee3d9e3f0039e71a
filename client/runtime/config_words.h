#ifndef LGPU_CLIENT_RUNTIME_CONFIG_WORDS_H_
#define LGPU_CLIENT_RUNTIME_CONFIG_WORDS_H_

#include <optional>
#include <string_view>

#include "lgpu/context.h"

namespace lgpu {

/// TensorFlow's words for the policies; nothing: none of them.
std::optional<DevicePolicy> ParseDevicePolicy(std::string_view word);
std::string_view DevicePolicyWord(DevicePolicy policy);

}  // namespace lgpu

#endif  // LGPU_CLIENT_RUNTIME_CONFIG_WORDS_H_
