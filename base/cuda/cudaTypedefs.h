#ifndef LGPU_BASE_CUDA_CUDATYPEDEFS_H_
#define LGPU_BASE_CUDA_CUDATYPEDEFS_H_

#include <cuda.h>

// The type of each call, by the version of CUDA that has had it since.
typedef decltype(&cuInit) PFN_cuInit_v2000;
typedef decltype(&cuDriverGetVersion) PFN_cuDriverGetVersion_v2020;
typedef decltype(&cuGetErrorName) PFN_cuGetErrorName_v6000;
typedef decltype(&cuDeviceGetCount) PFN_cuDeviceGetCount_v2000;
typedef decltype(&cuDeviceGet) PFN_cuDeviceGet_v2000;
typedef decltype(&cuDeviceGetName) PFN_cuDeviceGetName_v2000;
typedef decltype(&cuDeviceGetUuid_v2) PFN_cuDeviceGetUuid_v11040;
typedef decltype(&cuDeviceTotalMem_v2) PFN_cuDeviceTotalMem_v3020;
typedef decltype(&cuDeviceGetAttribute) PFN_cuDeviceGetAttribute_v2000;
typedef decltype(&cuDeviceGetPCIBusId) PFN_cuDeviceGetPCIBusId_v4010;
typedef decltype(&cuMemGetAllocationGranularity) PFN_cuMemGetAllocationGranularity_v10020;
typedef decltype(&cuMemCreate) PFN_cuMemCreate_v10020;
typedef decltype(&cuMemRelease) PFN_cuMemRelease_v10020;
typedef decltype(&cuMemExportToShareableHandle) PFN_cuMemExportToShareableHandle_v10020;
typedef decltype(&cuMemImportFromShareableHandle) PFN_cuMemImportFromShareableHandle_v10020;
typedef decltype(&cuMemRetainAllocationHandle) PFN_cuMemRetainAllocationHandle_v11000;
typedef decltype(&cuMemGetAllocationPropertiesFromHandle) PFN_cuMemGetAllocationPropertiesFromHandle_v10020;
typedef decltype(&cuMemAddressReserve) PFN_cuMemAddressReserve_v10020;
typedef decltype(&cuMemAddressFree) PFN_cuMemAddressFree_v10020;
typedef decltype(&cuMemMap) PFN_cuMemMap_v10020;
typedef decltype(&cuMemUnmap) PFN_cuMemUnmap_v10020;
typedef decltype(&cuMemSetAccess) PFN_cuMemSetAccess_v10020;
typedef decltype(&cuDevicePrimaryCtxRetain) PFN_cuDevicePrimaryCtxRetain_v7000;
typedef decltype(&cuDevicePrimaryCtxRelease_v2) PFN_cuDevicePrimaryCtxRelease_v11000;
typedef decltype(&cuCtxGetCurrent) PFN_cuCtxGetCurrent_v4000;
typedef decltype(&cuCtxPushCurrent_v2) PFN_cuCtxPushCurrent_v4000;
typedef decltype(&cuCtxPopCurrent_v2) PFN_cuCtxPopCurrent_v4000;
typedef decltype(&cuCtxSynchronize) PFN_cuCtxSynchronize_v2000;
typedef decltype(&cuCtxGetStreamPriorityRange) PFN_cuCtxGetStreamPriorityRange_v5050;
typedef decltype(&cuStreamCreateWithPriority) PFN_cuStreamCreateWithPriority_v5050;
typedef decltype(&cuStreamGetCtx) PFN_cuStreamGetCtx_v9020;
typedef decltype(&cuStreamDestroy_v2) PFN_cuStreamDestroy_v4000;
typedef decltype(&cuStreamSynchronize) PFN_cuStreamSynchronize_v2000;
typedef decltype(&cuStreamWaitEvent) PFN_cuStreamWaitEvent_v3020;
typedef decltype(&cuEventCreate) PFN_cuEventCreate_v2000;
typedef decltype(&cuEventRecord) PFN_cuEventRecord_v2000;
typedef decltype(&cuEventQuery) PFN_cuEventQuery_v2000;
typedef decltype(&cuEventSynchronize) PFN_cuEventSynchronize_v2000;
typedef decltype(&cuEventElapsedTime) PFN_cuEventElapsedTime_v2000;
typedef decltype(&cuEventDestroy_v2) PFN_cuEventDestroy_v4000;
typedef decltype(&cuMemcpyHtoDAsync_v2) PFN_cuMemcpyHtoDAsync_v3020;
typedef decltype(&cuMemcpyDtoHAsync_v2) PFN_cuMemcpyDtoHAsync_v3020;
typedef decltype(&cuMemcpyDtoDAsync_v2) PFN_cuMemcpyDtoDAsync_v3020;
typedef decltype(&cuPointerGetAttribute) PFN_cuPointerGetAttribute_v4000;
typedef decltype(&cuMemHostAlloc) PFN_cuMemHostAlloc_v2020;
typedef decltype(&cuMemFreeHost) PFN_cuMemFreeHost_v2000;
typedef decltype(&cuDeviceCanAccessPeer) PFN_cuDeviceCanAccessPeer_v4000;
typedef decltype(&cuModuleLoadData) PFN_cuModuleLoadData_v2000;
typedef decltype(&cuModuleUnload) PFN_cuModuleUnload_v2000;
typedef decltype(&cuModuleGetFunction) PFN_cuModuleGetFunction_v2000;
typedef decltype(&cuLaunchKernel) PFN_cuLaunchKernel_v4000;

#endif  // LGPU_BASE_CUDA_CUDATYPEDEFS_H_
