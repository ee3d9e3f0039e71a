#include "allocator/device/cuda/nvml_load.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace lgpu::nvml {
namespace {

/// A driver keeps samples of some seconds; older ones are of the past.
constexpr std::chrono::microseconds kRecent = std::chrono::seconds(3);

/// What `call(handle, arguments ..., &value)` tells.
template <typename Call, typename... Arguments>
std::optional<std::uint32_t> Number(Call call, DeviceHandle handle, Arguments... arguments) {
  unsigned value = 0;
  if (call == nullptr || call(handle, arguments..., &value) != kSuccess) return std::nullopt;
  return value;
}

/// The last sample of each process.
std::map<std::int64_t, std::uint32_t> SmPercents(const LoadCalls& calls, DeviceHandle handle) {
  std::map<std::int64_t, std::uint32_t> percents;
  if (calls.process_utilization == nullptr) return percents;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto since = std::chrono::duration_cast<std::chrono::microseconds>(now) - kRecent;
  std::vector<ProcessUtilization> samples(128);
  Result result = kInsufficientSize;
  // More samples may come between two calls.
  for (int tries = 0; tries < 4 && result == kInsufficientSize; ++tries) {
    auto count = static_cast<unsigned>(samples.size());
    result = calls.process_utilization(handle, samples.data(), &count,
                                       static_cast<unsigned long long>(since.count()));
    if (result == kInsufficientSize) {
      samples.resize(std::max<std::size_t>(2 * samples.size(), count));
    } else {
      samples.resize(std::min<std::size_t>(samples.size(), count));
    }
  }
  if (result != kSuccess) return percents;
  std::sort(samples.begin(), samples.end(),
            [](const ProcessUtilization& a, const ProcessUtilization& b) { return a.at < b.at; });
  for (const ProcessUtilization& sample : samples) {
    if (sample.pid != 0) percents[sample.pid] = std::min(sample.sm, 100U);
  }
  return percents;
}

}  // namespace

LoadCalls FindLoadCalls(const std::function<void*(const char*)>& find) {
  LoadCalls calls;
  const auto take = [&find](auto& call, const char* symbol) {
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(find(symbol));
  };
  take(calls.utilization, "nvmlDeviceGetUtilizationRates");
  take(calls.temperature, "nvmlDeviceGetTemperature");
  take(calls.power, "nvmlDeviceGetPowerUsage");
  take(calls.power_limit, "nvmlDeviceGetEnforcedPowerLimit");
  take(calls.process_utilization, "nvmlDeviceGetProcessUtilization");
  return calls;
}

DeviceMemory::Load LoadOf(const LoadCalls& calls, DeviceHandle handle) {
  constexpr int kOfTheGpu = 0;
  DeviceMemory::Load load;
  Utilization utilization{};
  if (calls.utilization != nullptr && calls.utilization(handle, &utilization) == kSuccess) {
    load.utilization_percent = std::min(utilization.gpu, 100U);
  }
  load.temperature_celsius = Number(calls.temperature, handle, kOfTheGpu);
  load.power_milliwatts = Number(calls.power, handle);
  load.power_limit_milliwatts = Number(calls.power_limit, handle);
  load.sm_percent = SmPercents(calls, handle);
  return load;
}

}  // namespace lgpu::nvml
