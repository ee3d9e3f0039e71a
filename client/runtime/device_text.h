#ifndef LGPU_CLIENT_RUNTIME_DEVICE_TEXT_H_
#define LGPU_CLIENT_RUNTIME_DEVICE_TEXT_H_

#include <string>
#include <vector>

#include "client/session/lease.h"
#include "lgpu/context.h"

namespace lgpu::internal {

/// The devices of a lease as programs see them.
std::vector<LogicalDeviceInfo> InfosOf(const std::vector<LeasedDevice>& devices);
/// TensorFlow's physical_device_desc: "device: 0, name: ..., pci bus id: ..., compute capability: 9.0".
std::string PhysicalDeviceDesc(const LogicalDeviceInfo& info);
/// "Created device /job:... with 13949 MB memory:  -> device: 0, name: ..."
std::string CreatedDeviceLine(const LogicalDeviceInfo& info);
/// The block that a session of TensorFlow 1 prints: "Device mapping:" and a line for each GPU, with newlines.
std::string DeviceMappingText(const std::vector<LogicalDeviceInfo>& infos);

/// The number that CUDA gives the card in this process, after CUDA_VISIBLE_DEVICES; -1 for a simulated card.
int CudaDeviceOf(const LogicalDeviceInfo& info);
/// The NUMA node of a real card, as the kernel says; node 0 where it has only one. Nothing for a simulated
/// card.
std::optional<int> NumaNodeOf(const LogicalDeviceInfo& info);

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_RUNTIME_DEVICE_TEXT_H_
