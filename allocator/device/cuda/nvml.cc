#include "allocator/device/cuda/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "allocator/device/cuda/nvml_abi.h"
#include "allocator/device/cuda/nvml_load.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

using nvml::DeviceHandle;
using nvml::MemoryV1;
using nvml::MemoryV2;
using nvml::PciInfoV3;
using nvml::ProcessInfoLong;
using nvml::ProcessInfoV2;
using nvml::Result;

struct Calls {
#define LGPU_NVML_FIELD(name, symbol, ...) std::type_identity_t<__VA_ARGS__> name = nullptr;
  LGPU_NVML_NEEDED(LGPU_NVML_FIELD)
  LGPU_NVML_OPTIONAL(LGPU_NVML_FIELD)
#undef LGPU_NVML_FIELD
};

class OpenNvml final : public Nvml {
 public:
  OpenNvml(const Calls& calls, const nvml::LoadCalls& load_calls) : calls_(calls), load_calls_(load_calls) {}
  ~OpenNvml() override { calls_.Shutdown(); }

  std::string DriverVersion() override {
    char text[96] = {};
    if (calls_.SystemGetDriverVersion == nullptr) return "unknown";
    return calls_.SystemGetDriverVersion(text, sizeof(text)) == nvml::kSuccess ? text : "unknown";
  }

  absl::StatusOr<std::vector<Device>> Devices() override {
    unsigned count = 0;
    LGPU_RETURN_IF_ERROR(Check("nvmlDeviceGetCount", calls_.DeviceGetCount(&count)));
    std::vector<Device> devices;
    for (unsigned i = 0; i < count; ++i) {
      DeviceHandle handle = nullptr;
      // A device that this process may not see does not hide the other devices.
      if (calls_.DeviceGetHandleByIndex(i, &handle) != nvml::kSuccess) continue;
      LGPU_ASSIGN_OR_RETURN(Device device, Describe(handle));
      devices.push_back(std::move(device));
    }
    std::sort(devices.begin(), devices.end(),
              [](const Device& a, const Device& b) { return a.pci_bus_id < b.pci_bus_id; });
    return devices;
  }

  absl::StatusOr<Memory> MemoryOf(const std::string& uuid) override {
    LGPU_ASSIGN_OR_RETURN(const DeviceHandle handle, Find(uuid));
    return MemoryOf(handle);
  }

  absl::StatusOr<std::vector<Process>> ProcessesOf(const std::string& uuid) override {
    LGPU_ASSIGN_OR_RETURN(const DeviceHandle handle, Find(uuid));
    const auto call = calls_.DeviceGetComputeRunningProcesses != nullptr
                          ? calls_.DeviceGetComputeRunningProcesses
                          : calls_.DeviceGetComputeRunningProcessesV2;
    if (call == nullptr) return Missing("nvmlDeviceGetComputeRunningProcesses");
    std::vector<ProcessInfoLong> room;
    unsigned count = 0;
    Result result = nvml::kInsufficientSize;
    // More processes may start between two calls.
    for (int tries = 0; tries < 8 && result == nvml::kInsufficientSize; ++tries) {
      room.resize(std::max<std::size_t>(64, count + std::size_t{16}));
      count = static_cast<unsigned>(room.size());
      std::memset(static_cast<void*>(room.data()), kUntouched, room.size() * sizeof(room[0]));
      result = call(handle, &count, room.data());
    }
    LGPU_RETURN_IF_ERROR(Check("nvmlDeviceGetComputeRunningProcesses", result));
    count = std::min(count, static_cast<unsigned>(room.size()));
    const auto* const bytes = reinterpret_cast<const unsigned char*>(room.data());
    const std::size_t each = EntryBytes(bytes, count);
    std::vector<Process> processes;
    for (unsigned i = 0; i < count; ++i) {
      ProcessInfoV2 info{};
      std::memcpy(&info, bytes + i * each, sizeof(info));
      Process process;
      process.pid = info.pid;
      if (info.used_gpu_memory != ProcessInfoV2::kNotAvailable) process.used = Bytes(info.used_gpu_memory);
      processes.push_back(process);
    }
    return processes;
  }

  absl::StatusOr<ComputeMode> ComputeModeOf(const std::string& uuid) override {
    LGPU_ASSIGN_OR_RETURN(const DeviceHandle handle, Find(uuid));
    if (calls_.DeviceGetComputeMode == nullptr) return Missing("nvmlDeviceGetComputeMode");
    int mode = 0;
    LGPU_RETURN_IF_ERROR(Check("nvmlDeviceGetComputeMode", calls_.DeviceGetComputeMode(handle, &mode)));
    return static_cast<ComputeMode>(mode);
  }

  DeviceMemory::Load LoadOf(const std::string& uuid) override {
    const absl::StatusOr<DeviceHandle> handle = Find(uuid);
    return handle.ok() ? nvml::LoadOf(load_calls_, *handle) : DeviceMemory::Load();
  }

 private:
  static constexpr unsigned char kUntouched = 0xa5;
  /// The length of the driver's entries: behind short entries the room is untouched.
  static std::size_t EntryBytes(const unsigned char* room, unsigned count) {
    const unsigned char* const behind = room + count * sizeof(ProcessInfoV2);
    const bool is_short = std::all_of(behind, room + count * sizeof(ProcessInfoLong),
                                      [](unsigned char byte) { return byte == kUntouched; });
    return is_short ? sizeof(ProcessInfoV2) : sizeof(ProcessInfoLong);
  }
  static absl::Status Missing(const char* call) {
    return absl::UnimplementedError(absl::StrCat("this driver's NVML has no ", call));
  }

  absl::Status Check(const char* call, Result result) const {
    if (result == nvml::kSuccess) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(call, " gave ", calls_.ErrorString(result), " (", result, ")"));
  }

  absl::StatusOr<DeviceHandle> Find(const std::string& uuid) const {
    DeviceHandle handle = nullptr;
    LGPU_RETURN_IF_ERROR(
        Check("nvmlDeviceGetHandleByUUID", calls_.DeviceGetHandleByUUID(uuid.c_str(), &handle)));
    return handle;
  }

  absl::StatusOr<Memory> MemoryOf(DeviceHandle handle) const {
    if (calls_.DeviceGetMemoryInfo == nullptr) {
      if (calls_.DeviceGetMemoryInfoV1 == nullptr) return Missing("nvmlDeviceGetMemoryInfo");
      MemoryV1 memory{};
      LGPU_RETURN_IF_ERROR(Check("nvmlDeviceGetMemoryInfo", calls_.DeviceGetMemoryInfoV1(handle, &memory)));
      return Memory{Bytes(memory.total), Bytes(memory.free), Bytes(memory.used)};
    }
    MemoryV2 memory{};
    memory.version = MemoryV2::kVersion;
    LGPU_RETURN_IF_ERROR(Check("nvmlDeviceGetMemoryInfo", calls_.DeviceGetMemoryInfo(handle, &memory)));
    return Memory{Bytes(memory.total), Bytes(memory.free), Bytes(memory.used)};
  }

  absl::StatusOr<Device> Describe(DeviceHandle handle) const {
    Device device;
    char text[128] = {};
    LGPU_RETURN_IF_ERROR(Check("nvmlDeviceGetUUID", calls_.DeviceGetUUID(handle, text, sizeof(text))));
    device.uuid = text;
    LGPU_RETURN_IF_ERROR(Check("nvmlDeviceGetName", calls_.DeviceGetName(handle, text, sizeof(text))));
    device.name = text;
    PciInfoV3 pci{};
    LGPU_RETURN_IF_ERROR(Check("nvmlDeviceGetPciInfo", calls_.DeviceGetPciInfo(handle, &pci)));
    pci.bus_id[sizeof(pci.bus_id) - 1] = '\0';
    device.pci_bus_id = NormalisePciBusId(pci.bus_id);
    if (const absl::StatusOr<Memory> memory = MemoryOf(handle); memory.ok()) device.total = memory->total;
    if (calls_.DeviceGetCudaComputeCapability == nullptr ||
        calls_.DeviceGetCudaComputeCapability(handle, &device.compute_major, &device.compute_minor) !=
            nvml::kSuccess) {
      device.compute_major = device.compute_minor = 0;
    }
    unsigned minor = 0;
    if (calls_.DeviceGetMinorNumber != nullptr &&
        calls_.DeviceGetMinorNumber(handle, &minor) == nvml::kSuccess) {
      device.minor = static_cast<int>(minor);
    }
    return device;
  }

  const Calls calls_;
  const nvml::LoadCalls load_calls_;
};

}  // namespace

std::string NormalisePciBusId(std::string id) {
  std::transform(id.begin(), id.end(), id.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::size_t colon = id.find(':');
  while (id.size() > 4 && colon != std::string::npos && id.find(':') > 4 && id.front() == '0') id.erase(0, 1);
  return id;
}

absl::StatusOr<std::shared_ptr<Nvml>> Nvml::Open() {
  // Behind lgpu's own libnvidia-ml.so.1 (docs/unmodified.md), which shows a lease's limit.
  void* library = ::dlopen("liblgpu_real_nvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const error = ::dlerror();
    return absl::FailedPreconditionError(
        absl::StrCat("NVML cannot be opened (", error == nullptr ? "libnvidia-ml.so.1" : error, ")"));
  }
  Calls calls;
  std::string missing;
  const auto find = [&](const char* symbol) {
    void* const address = ::dlsym(library, symbol);
    if (address == nullptr && missing.empty()) missing = symbol;
    return address;
  };
#define LGPU_NVML_FIND(name, symbol, ...) calls.name = reinterpret_cast<decltype(calls.name)>(find(symbol));
  LGPU_NVML_OPTIONAL(LGPU_NVML_FIND)
  missing.clear();
  LGPU_NVML_NEEDED(LGPU_NVML_FIND)
#undef LGPU_NVML_FIND
  const nvml::LoadCalls load_calls =
      nvml::FindLoadCalls([library](const char* symbol) { return ::dlsym(library, symbol); });
  ::dlclose(library);  // it stays: RTLD_NODELETE
  if (!missing.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("NVML is too old: libnvidia-ml.so.1 has no ", missing));
  }
  if (const Result result = calls.Init(); result != nvml::kSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("NVML does not start: nvmlInit gave ", calls.ErrorString(result), " (", result, ")"));
  }
  return std::shared_ptr<Nvml>(std::make_shared<OpenNvml>(calls, load_calls));
}

}  // namespace lgpu
