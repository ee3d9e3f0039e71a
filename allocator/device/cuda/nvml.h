#ifndef LGPU_ALLOCATOR_DEVICE_CUDA_NVML_H_
#define LGPU_ALLOCATOR_DEVICE_CUDA_NVML_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/device/device_memory.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// An Nvml is the management library of the NVIDIA driver, libnvidia-ml.so.1, opened at run time with lgpu's
/// own prototypes. It needs no context, knows the GPUs that CUDA_VISIBLE_DEVICES hides, and identifies GPUs
/// by UUID. Thread-safe; a call may take the driver's locks, so hold none.
class Nvml {
 public:
  struct Device {
    std::string uuid;
    std::string name;
    std::string pci_bus_id;  // "0000:19:00.0"
    Bytes total;
    int compute_major = 0;
    int compute_minor = 0;
    int minor = -1;  // of its device file; below 0: the driver does not say
  };
  struct Memory {
    Bytes total;
    Bytes free;
    Bytes used;
  };
  struct Process {
    std::int64_t pid = 0;
    std::optional<Bytes> used;  // nothing: the driver does not say
  };

  /// FAILED_PRECONDITION without the library or with one that does not start, with the cause.
  static absl::StatusOr<std::shared_ptr<Nvml>> Open();
  virtual ~Nvml() = default;

  /// "580.65.06"
  virtual std::string DriverVersion() = 0;
  /// All GPUs of the machine, in PCI order.
  virtual absl::StatusOr<std::vector<Device>> Devices() = 0;
  virtual absl::StatusOr<Memory> MemoryOf(const std::string& uuid) = 0;
  /// The processes that have a context on the GPU.
  virtual absl::StatusOr<std::vector<Process>> ProcessesOf(const std::string& uuid) = 0;
  /// kDefault: any number of processes may use the GPU.
  enum class ComputeMode { kDefault = 0, kExclusiveThread = 1, kProhibited = 2, kExclusiveProcess = 3 };
  virtual absl::StatusOr<ComputeMode> ComputeModeOf(const std::string& uuid) = 0;
  /// How busy the GPU is; what this driver does not tell is absent.
  virtual DeviceMemory::Load LoadOf(const std::string& uuid) = 0;
};

/// "0000:19:00.0" of the forms that CUDA and NVML print ("00000000:19:00.0").
std::string NormalisePciBusId(std::string id);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_CUDA_NVML_H_
