#include "allocator/device/cuda/cuda_driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace lgpu {
namespace {

// A symbol that the header declares with another type than the table's would be called wrongly.
#define LGPU_CUDA_SAME(symbol, type) static_assert(std::is_same_v<decltype(&symbol), type>)
LGPU_CUDA_SAME(cuDeviceGetUuid_v2, PFN_cuDeviceGetUuid_v11040);
LGPU_CUDA_SAME(cuDeviceTotalMem_v2, PFN_cuDeviceTotalMem_v3020);
LGPU_CUDA_SAME(cuDevicePrimaryCtxRelease_v2, PFN_cuDevicePrimaryCtxRelease_v11000);
LGPU_CUDA_SAME(cuCtxPushCurrent_v2, PFN_cuCtxPushCurrent_v4000);
LGPU_CUDA_SAME(cuCtxPopCurrent_v2, PFN_cuCtxPopCurrent_v4000);
LGPU_CUDA_SAME(cuStreamDestroy_v2, PFN_cuStreamDestroy_v4000);
LGPU_CUDA_SAME(cuEventDestroy_v2, PFN_cuEventDestroy_v4000);
LGPU_CUDA_SAME(cuMemcpyHtoDAsync_v2, PFN_cuMemcpyHtoDAsync_v3020);
LGPU_CUDA_SAME(cuMemcpyDtoHAsync_v2, PFN_cuMemcpyDtoHAsync_v3020);
LGPU_CUDA_SAME(cuMemcpyDtoDAsync_v2, PFN_cuMemcpyDtoDAsync_v3020);
LGPU_CUDA_SAME(cuMemCreate, PFN_cuMemCreate_v10020);
LGPU_CUDA_SAME(cuMemMap, PFN_cuMemMap_v10020);
LGPU_CUDA_SAME(cuMemUnmap, PFN_cuMemUnmap_v10020);
LGPU_CUDA_SAME(cuMemSetAccess, PFN_cuMemSetAccess_v10020);
#undef LGPU_CUDA_SAME

absl::Status NoDevices(const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("no CUDA devices: ", why));
}

// cuda.h: "This leaves the process in an inconsistent state and any further CUDA work will return the same
// error. To continue using CUDA, the process must be terminated and relaunched."
bool EndsContexts(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
      return true;
    default:
      return false;
  }
}

std::string VisibleText() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? "CUDA_VISIBLE_DEVICES is not set"
                            : absl::StrCat("CUDA_VISIBLE_DEVICES is \"", visible, "\"");
}

absl::Status ExplainInit(const CudaDriver& driver, CUresult result) {
  switch (result) {
    case CUDA_SUCCESS:
      return absl::OkStatus();
    case CUDA_ERROR_STUB_LIBRARY:
      return NoDevices(
          "the libcuda.so.1 that was found is the toolkit's stub and no driver; take its directory out of "
          "LD_LIBRARY_PATH, or install the NVIDIA driver");
    case CUDA_ERROR_NO_DEVICE:
      return NoDevices(
          absl::StrCat("the NVIDIA driver sees no GPU (", VisibleText(),
                       "); `nvidia-smi -L` lists what the machine has; a GPU in MIG mode without an "
                       "instance counts for none: `nvidia-smi mig -cgi ... -C` makes one, `nvidia-smi "
                       "-mig 0` ends the mode"));
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return NoDevices(
          absl::StrCat("the NVIDIA driver does not start: cuInit gave ", driver.Name(result),
                       "; on a machine with NVSwitch the fabric manager has to run: `systemctl status "
                       "nvidia-fabricmanager`, and of the driver's own version"));
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return NoDevices(
          absl::StrCat("the NVIDIA driver does not start: cuInit gave ", driver.Name(result),
                       "; its library and its kernel module have different versions: restart the "
                       "machine, or in a container give it the host's library"));
    default:
      return NoDevices(absl::StrCat("the NVIDIA driver does not start: cuInit gave ", driver.Name(result),
                                    "; `nvidia-smi` and `dmesg` say more"));
  }
}

}  // namespace

absl::StatusOr<CudaDriver> CudaDriver::Open() {
  // Behind lgpu's own libcuda.so.1 (docs/unmodified.md), which would count lgpu's chunks a second time.
  void* library = ::dlopen("liblgpu_real_cuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const error = ::dlerror();
    return NoDevices(absl::StrCat("this machine has no NVIDIA driver that can be opened (",
                                  error == nullptr ? "libcuda.so.1" : error, ")"));
  }
  CudaDriver driver;
  std::string missing;
  const auto find = [&](const char* symbol) {
    void* const address = ::dlsym(library, symbol);
    if (address == nullptr && missing.empty()) missing = symbol;
    return address;
  };
#define LGPU_CUDA_FIND(name, version, symbol) \
  driver.name = reinterpret_cast<PFN_cu##name##_v##version>(find(symbol));
  LGPU_CUDA_SYMBOLS(LGPU_CUDA_FIND)
#undef LGPU_CUDA_FIND
  // The reference is kept by RTLD_NODELETE: a driver that is unloaded takes the process with it.
  ::dlclose(library);
  if (driver.Init == nullptr || driver.DriverGetVersion == nullptr || driver.GetErrorName == nullptr) {
    return NoDevices(
        absl::StrCat("the libcuda.so.1 that was found is no NVIDIA driver: it has no ", missing));
  }
  if (const absl::Status status = ExplainInit(driver, driver.Init(0)); !status.ok()) return status;
  if (driver.DriverGetVersion(&driver.version) != CUDA_SUCCESS) driver.version = 0;
  if (!missing.empty() || driver.version < kOldestVersion) {
    return NoDevices(absl::StrCat("the NVIDIA driver (", CudaVersionText(driver.version),
                                  ") is too old for this lgpu, which needs ", CudaVersionText(kOldestVersion),
                                  " (R470) or newer", missing.empty() ? "" : ": it has no ", missing,
                                  "; install a newer driver"));
  }
  return driver;
}

std::string CudaVersionText(int version) {
  return absl::StrCat("CUDA ", version / 1000, ".", version % 1000 / 10);
}

std::string CudaUuidText(const CUuuid& uuid, bool is_mig) {
  std::string text = is_mig ? "MIG-" : "GPU-";
  for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    absl::StrAppendFormat(&text, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

bool IsMig(const CudaDriver& driver, CUdevice device) {
  char name[256] = {};
  return driver.DeviceGetName(name, sizeof(name) - 1, device) == CUDA_SUCCESS &&
         std::string_view(name).find(" MIG ") != std::string_view::npos;
}

std::string CudaDriver::Name(CUresult result) const {
  const char* name = nullptr;
  if (GetErrorName == nullptr || GetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
    name = "an unknown result";
  }
  return absl::StrCat(name, " (", static_cast<int>(result), ")");
}

absl::Status CudaDriver::Check(std::string_view call, CUresult result) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const std::string text = absl::StrCat(absl::string_view(call.data(), call.size()), " gave ", Name(result));
  if (!EndsContexts(result)) return absl::InternalError(text);
  {
    MutexLock lock(lost->mutex);
    if (lost->call.empty()) lost->call = text;
  }
  lost->is_lost.store(true, std::memory_order_release);
  return Lost();
}

absl::Status CudaDriver::Lost() const {
  if (!lost->is_lost.load(std::memory_order_acquire)) return absl::OkStatus();
  MutexLock lock(lost->mutex);
  return absl::InternalError(absl::StrCat("the GPU context of this process is lost: ", lost->call,
                                          "; restart the program (`dmesg` may have an Xid that says more)"));
}

}  // namespace lgpu
