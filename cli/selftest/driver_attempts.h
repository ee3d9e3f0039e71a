#ifndef LGPU_CLI_SELFTEST_DRIVER_ATTEMPTS_H_
#define LGPU_CLI_SELFTEST_DRIVER_ATTEMPTS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace lgpu::selftest {

/// Tries to take more of each GPU than its limit from the CUDA driver, by every kind of call that makes
/// memory. `limits`: of the driver's devices, in their order. `say` gets a JSON object for each attempt and
/// answers whether to go on; the attempt holds its memory until it returns.
absl::Status TryDriver(const std::vector<std::uint64_t>& limits,
                       const std::function<bool(const nlohmann::json&)>& say);

}  // namespace lgpu::selftest

#endif  // LGPU_CLI_SELFTEST_DRIVER_ATTEMPTS_H_
