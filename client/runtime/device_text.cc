#include "client/runtime/device_text.h"

#include <algorithm>
#include <fstream>

#include "allocator/device/cuda/cuda_backend.h"
#include "kernels/text.h"

namespace lgpu::internal {

std::vector<LogicalDeviceInfo> InfosOf(const std::vector<LeasedDevice>& devices) {
  std::vector<LogicalDeviceInfo> infos;
  for (const LeasedDevice& device : devices) {
    infos.push_back({.name = Cat("/job:localhost/replica:0/task:0/device:GPU:", infos.size()),
                     .memory_limit = device.memory_limit,
                     .guarantee = device.guarantee,
                     .mode = device.preallocated ? MemoryMode::kPreallocate : MemoryMode::kGrowth,
                     .card_uuid = device.card.uuid,
                     .card_name = device.card.name,
                     .pci_bus_id = device.card.pci_bus_id,
                     .card_index = device.card_index,
                     .compute_major = device.card.compute_major,
                     .compute_minor = device.card.compute_minor,
                     .simulated = device.card.simulated});
  }
  return infos;
}

std::string PhysicalDeviceDesc(const LogicalDeviceInfo& info) {
  return Cat("device: ", info.card_index, ", name: ", info.card_name, ", pci bus id: ", info.pci_bus_id,
             ", compute capability: ", info.compute_major, ".", info.compute_minor);
}

int CudaDeviceOf(const LogicalDeviceInfo& info) {
  if (info.simulated) return -1;
  const absl::StatusOr<std::vector<std::string>> uuids = CudaEnumeration();
  if (!uuids.ok()) return -1;
  const auto found = std::find(uuids->begin(), uuids->end(), info.card_uuid);
  return found == uuids->end() ? -1 : static_cast<int>(found - uuids->begin());
}

std::optional<int> NumaNodeOf(const LogicalDeviceInfo& info) {
  if (info.simulated || info.pci_bus_id.empty()) return std::nullopt;
  std::string id = info.pci_bus_id;
  for (char& c : id) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  std::ifstream file("/sys/bus/pci/devices/" + id + "/numa_node");
  int node = 0;
  if (!(file >> node)) return std::nullopt;
  return std::max(node, 0);
}

std::string CreatedDeviceLine(const LogicalDeviceInfo& info) {
  return Cat("Created device ", info.name, " with ", info.memory_limit.count() >> 20, " MB memory:  -> ",
             PhysicalDeviceDesc(info));
}

std::string DeviceMappingText(const std::vector<LogicalDeviceInfo>& infos) {
  if (infos.empty()) return "Device mapping: no known devices.\n";
  std::string text = "Device mapping:\n";
  for (const LogicalDeviceInfo& info : infos) text += Cat(info.name, " -> ", PhysicalDeviceDesc(info), "\n");
  return text;
}

}  // namespace lgpu::internal
