// The calls of the fake NVML about load: each card is as busy as its contexts make it.

#include <chrono>
#include <cstdint>
#include <set>

#include "allocator/device/cuda/nvml_load_abi.h"
#include "tests/fake_cuda/fake_state.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

using lgpu::fake_cuda::Slot;
using lgpu::fake_cuda::StateFile;
using lgpu::nvml::DeviceHandle;
using lgpu::nvml::kInsufficientSize;
using lgpu::nvml::kSuccess;
using lgpu::nvml::ProcessUtilization;
using lgpu::nvml::Result;
using lgpu::nvml::Utilization;

namespace {

constexpr Result kInvalidArgument = 2, kNotFound = 6;
constexpr unsigned kPercentOfEach = 20, kIdleCelsius = 40, kIdleMilliwatts = 70'500,
                   kLimitMilliwatts = 700'000;

// The processes with a context on the card of `handle`, or the result with which `call` fails.
Result FindProcesses(DeviceHandle handle, const char* call, std::set<std::int32_t>& pids) {
  StateFile* const file = StateFile::OfThisProcess();
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (file == nullptr || number == 0 || number > static_cast<unsigned>(file->state().card_count)) {
    return kInvalidArgument;
  }
  const StateFile::Lock lock(*file);
  if (const int result = file->TakeFault(call); result != 0) return result;
  file->Sweep();
  for (const Slot& slot : file->state().slots) {
    const bool is_here = slot.card == static_cast<std::int32_t>(number) - 1;
    if (slot.used && slot.is_context && is_here) pids.insert(slot.pid);
  }
  return kSuccess;
}

// `number`: of the count of processes with a context.
template <typename Number>
Result Tell(DeviceHandle handle, const char* call, unsigned* value, const Number& number) {
  std::set<std::int32_t> pids;
  const Result result = FindProcesses(handle, call, pids);
  if (result == kSuccess) *value = number(static_cast<unsigned>(pids.size()));
  return result;
}

}  // namespace

FAKE_EXPORT Result nvmlDeviceGetUtilizationRates(DeviceHandle handle, Utilization* utilization) {
  *utilization = {};
  return Tell(handle, "nvmlDeviceGetUtilizationRates", &utilization->gpu,
              [](unsigned processes) { return kPercentOfEach * processes; });
}

FAKE_EXPORT Result nvmlDeviceGetTemperature(DeviceHandle handle, int sensor, unsigned* celsius) {
  if (sensor != 0) return kInvalidArgument;
  return Tell(handle, "nvmlDeviceGetTemperature", celsius,
              [](unsigned processes) { return kIdleCelsius + processes; });
}

FAKE_EXPORT Result nvmlDeviceGetPowerUsage(DeviceHandle handle, unsigned* milliwatts) {
  return Tell(handle, "nvmlDeviceGetPowerUsage", milliwatts, [](unsigned) { return kIdleMilliwatts; });
}

FAKE_EXPORT Result nvmlDeviceGetEnforcedPowerLimit(DeviceHandle handle, unsigned* milliwatts) {
  return Tell(handle, "nvmlDeviceGetEnforcedPowerLimit", milliwatts,
              [](unsigned) { return kLimitMilliwatts; });
}

// Two samples of each process: the later one counts.
FAKE_EXPORT Result nvmlDeviceGetProcessUtilization(DeviceHandle handle, ProcessUtilization* samples,
                                                   unsigned* count, unsigned long long since) {
  std::set<std::int32_t> pids;
  const Result result = FindProcesses(handle, "nvmlDeviceGetProcessUtilization", pids);
  if (result != kSuccess) return result;
  if (pids.empty()) return kNotFound;
  const auto needed = static_cast<unsigned>(2 * pids.size());
  const bool fits = samples != nullptr && *count >= needed;
  *count = needed;
  if (!fits) return kInsufficientSize;
  for (const std::int32_t pid : pids) {
    *samples++ = {static_cast<unsigned>(pid), since + 2, kPercentOfEach, 0, 0, 0};
    *samples++ = {static_cast<unsigned>(pid), since + 1, 99, 0, 0, 0};
  }
  return kSuccess;
}
