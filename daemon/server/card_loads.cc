#include "daemon/server/card_loads.h"

#include <algorithm>
#include <utility>

namespace lgpu::daemon {

void CardLoads::Sample(DeviceMemory& backend, const std::vector<BrokerCard>& cards) {
  std::map<std::string, DeviceMemory::Load> loads;
  for (const BrokerCard& card : cards) loads[card.device.uuid] = backend.LoadOf(card.backend_device);
  const MutexLock lock(mutex_);
  loads_ = std::move(loads);
}

void CardLoads::AddTo(v1::CardStats& card) const {
  const MutexLock lock(mutex_);
  const auto found = loads_.find(card.uuid());
  if (found == loads_.end()) return;
  const DeviceMemory::Load& load = found->second;
  if (load.utilization_percent) card.set_utilization_percent(*load.utilization_percent);
  if (load.temperature_celsius) card.set_temperature_celsius(*load.temperature_celsius);
  if (load.power_milliwatts) card.set_power_milliwatts(*load.power_milliwatts);
  if (load.power_limit_milliwatts) card.set_power_limit_milliwatts(*load.power_limit_milliwatts);
}

std::optional<std::uint32_t> CardLoads::SmPercentOf(std::int64_t pid) const {
  const MutexLock lock(mutex_);
  std::optional<std::uint32_t> most;
  for (const auto& [uuid, load] : loads_) {
    const auto found = load.sm_percent.find(pid);
    if (found != load.sm_percent.end()) most = std::max(most.value_or(0), found->second);
  }
  return most;
}

}  // namespace lgpu::daemon
