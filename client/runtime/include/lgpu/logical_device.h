#ifndef LGPU_LOGICAL_DEVICE_H_
#define LGPU_LOGICAL_DEVICE_H_

#include <optional>
#include <string>

#include "lgpu/bytes.h"

namespace lgpu {

enum class MemoryMode {
  kGrowth,       // chunks on demand, up to the limit
  kPreallocate,  // the whole limit exists from creation; allocation up to it cannot fail
};

/// One logical device to ask for.
struct LogicalDeviceOptions {
  /// At least 2 MiB, the smallest chunk of a card. Nothing: all that the card can give.
  std::optional<Bytes> memory_limit = {};
  /// Growth only: memory that is set aside, at most memory_limit.
  Bytes guarantee = {};
  MemoryMode mode = MemoryMode::kGrowth;
  /// "" (the daemon chooses), an index among the machine's GPUs, or a (prefix of a) UUID. Only GPUs that
  /// CUDA_VISIBLE_DEVICES leaves this process can be had.
  std::string physical_device = {};
  std::string name = {};  // for people
  int priority = 0;       // of its stream; lower is more urgent, 0 is the default
};

struct LogicalDeviceInfo {
  std::string name;  // "/job:localhost/replica:0/task:0/device:GPU:0"
  Bytes memory_limit;
  Bytes guarantee;
  MemoryMode mode = MemoryMode::kGrowth;
  std::string card_uuid;
  std::string card_name;
  std::string pci_bus_id;
  int card_index = 0;  // among the machine's GPUs
  int compute_major = 0;
  int compute_minor = 0;
  bool simulated = false;
};

/// New sizes for a logical device.
struct ResizeOptions {
  Bytes memory_limit = {};
  /// Nothing: the guarantee stays, as far as the limit allows.
  std::optional<Bytes> guarantee = {};
};

}  // namespace lgpu

#endif  // LGPU_LOGICAL_DEVICE_H_
