#ifndef LGPU_CLIENT_RUNTIME_CONFIG_WORDS_H_
#define LGPU_CLIENT_RUNTIME_CONFIG_WORDS_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "lgpu/context.h"

namespace lgpu {

/// TensorFlow's words for the policies. INVALID_ARGUMENT with TensorFlow's text for another one.
absl::StatusOr<DevicePolicy> ParseDevicePolicy(std::string_view word);
std::string_view DevicePolicyWord(DevicePolicy policy);

}  // namespace lgpu

#endif  // LGPU_CLIENT_RUNTIME_CONFIG_WORDS_H_
