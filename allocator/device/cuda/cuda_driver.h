#ifndef LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_DRIVER_H_
#define LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_DRIVER_H_

// For the CUDA backend and tools. A new line of LGPU_CUDA_SYMBOLS is declared in base/cuda/cuda.h, too.

#include <cuda.h>
#include <cudaTypedefs.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace lgpu {

// Every call of the driver that lgpu makes: the name after "cu", the version whose type it has, and the
// symbol that has had this type since then (a plain name may be older than the header's type).
#define LGPU_CUDA_SYMBOLS(X)                                                               \
  X(Init, 2000, "cuInit")                                                                  \
  X(DriverGetVersion, 2020, "cuDriverGetVersion")                                          \
  X(GetErrorName, 6000, "cuGetErrorName")                                                  \
  X(DeviceGetCount, 2000, "cuDeviceGetCount")                                              \
  X(DeviceGet, 2000, "cuDeviceGet")                                                        \
  X(DeviceGetName, 2000, "cuDeviceGetName")                                                \
  X(DeviceGetUuid, 11040, "cuDeviceGetUuid_v2")                                            \
  X(DeviceTotalMem, 3020, "cuDeviceTotalMem_v2")                                           \
  X(DeviceGetAttribute, 2000, "cuDeviceGetAttribute")                                      \
  X(DeviceGetPCIBusId, 4010, "cuDeviceGetPCIBusId")                                        \
  X(MemGetAllocationGranularity, 10020, "cuMemGetAllocationGranularity")                   \
  X(MemCreate, 10020, "cuMemCreate")                                                       \
  X(MemRelease, 10020, "cuMemRelease")                                                     \
  X(MemExportToShareableHandle, 10020, "cuMemExportToShareableHandle")                     \
  X(MemImportFromShareableHandle, 10020, "cuMemImportFromShareableHandle")                 \
  X(MemRetainAllocationHandle, 11000, "cuMemRetainAllocationHandle")                       \
  X(MemGetAllocationPropertiesFromHandle, 10020, "cuMemGetAllocationPropertiesFromHandle") \
  X(MemAddressReserve, 10020, "cuMemAddressReserve")                                       \
  X(MemAddressFree, 10020, "cuMemAddressFree")                                             \
  X(MemMap, 10020, "cuMemMap")                                                             \
  X(MemUnmap, 10020, "cuMemUnmap")                                                         \
  X(MemSetAccess, 10020, "cuMemSetAccess")                                                 \
  X(DevicePrimaryCtxRetain, 7000, "cuDevicePrimaryCtxRetain")                              \
  X(DevicePrimaryCtxRelease, 11000, "cuDevicePrimaryCtxRelease_v2")                        \
  X(CtxGetCurrent, 4000, "cuCtxGetCurrent")                                                \
  X(CtxPushCurrent, 4000, "cuCtxPushCurrent_v2")                                           \
  X(CtxPopCurrent, 4000, "cuCtxPopCurrent_v2")                                             \
  X(CtxSynchronize, 2000, "cuCtxSynchronize")                                              \
  X(CtxGetStreamPriorityRange, 5050, "cuCtxGetStreamPriorityRange")                        \
  X(StreamCreateWithPriority, 5050, "cuStreamCreateWithPriority")                          \
  X(StreamGetCtx, 9020, "cuStreamGetCtx")                                                  \
  X(StreamDestroy, 4000, "cuStreamDestroy_v2")                                             \
  X(StreamSynchronize, 2000, "cuStreamSynchronize")                                        \
  X(StreamWaitEvent, 3020, "cuStreamWaitEvent")                                            \
  X(EventCreate, 2000, "cuEventCreate")                                                    \
  X(EventRecord, 2000, "cuEventRecord")                                                    \
  X(EventQuery, 2000, "cuEventQuery")                                                      \
  X(EventSynchronize, 2000, "cuEventSynchronize")                                          \
  X(EventElapsedTime, 2000, "cuEventElapsedTime")                                          \
  X(EventDestroy, 4000, "cuEventDestroy_v2")                                               \
  X(MemcpyHtoDAsync, 3020, "cuMemcpyHtoDAsync_v2")                                         \
  X(MemcpyDtoHAsync, 3020, "cuMemcpyDtoHAsync_v2")                                         \
  X(MemcpyDtoDAsync, 3020, "cuMemcpyDtoDAsync_v2")                                         \
  X(PointerGetAttribute, 4000, "cuPointerGetAttribute")                                    \
  X(MemHostAlloc, 2020, "cuMemHostAlloc")                                                  \
  X(MemFreeHost, 2000, "cuMemFreeHost")                                                    \
  X(DeviceCanAccessPeer, 4000, "cuDeviceCanAccessPeer")                                    \
  X(ModuleLoadData, 2000, "cuModuleLoadData")                                              \
  X(ModuleUnload, 2000, "cuModuleUnload")                                                  \
  X(ModuleGetFunction, 2000, "cuModuleGetFunction")                                        \
  X(LaunchKernel, 4000, "cuLaunchKernel")

/// The CUDA driver's calls, each with the type of one version for good. A value; it stays valid, because the
/// driver is never closed (that is not safe).
struct CudaDriver {
#define LGPU_CUDA_FIELD(name, version, symbol) PFN_cu##name##_v##version name = nullptr;
  LGPU_CUDA_SYMBOLS(LGPU_CUDA_FIELD)
#undef LGPU_CUDA_FIELD
  int version = 0;  // as cuDriverGetVersion says it: 13000
  /// The oldest driver that has every call and compiles lgpu's PTX: CUDA 11.4, R470.
  static constexpr int kOldestVersion = 11040;

  /// Opens libcuda.so.1 and starts it (cuInit, which reads CUDA_VISIBLE_DEVICES for the process's life).
  /// FAILED_PRECONDITION "no CUDA devices: ..." with the cause and what to do: no driver, the toolkit's stub,
  /// a driver too old, no device, a driver that does not start.
  static absl::StatusOr<CudaDriver> Open();

  /// "CUDA_ERROR_OUT_OF_MEMORY (2)".
  std::string Name(CUresult result) const;
  /// INTERNAL with the call and its result; OK for CUDA_SUCCESS. A result after which no context of this
  /// process works is kept: see Lost.
  absl::Status Check(std::string_view call, CUresult result) const;
  /// OK until a call had a result that ends the process's contexts (an illegal address, an ECC error). From
  /// then on INTERNAL with that call: later results of the driver mean nothing. Shared by all copies.
  absl::Status Lost() const;

  struct LostBy {
    Mutex mutex;
    std::string call ABSL_GUARDED_BY(mutex);  // "cuStreamSynchronize gave ..."
    std::atomic<bool> is_lost{false};
  };
  std::shared_ptr<LostBy> lost = std::make_shared<LostBy>();
};

/// "CUDA 11.4" of 11040.
std::string CudaVersionText(int version);
/// As NVML writes it: "GPU-..." or "MIG-...".
std::string CudaUuidText(const CUuuid& uuid, bool is_mig);
/// The driver gives a MIG instance's own UUID, and says only in its name that it is one.
bool IsMig(const CudaDriver& driver, CUdevice device);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_DRIVER_H_
