#ifndef LGPU_CLIENT_DRIVER_SURFACE_H_
#define LGPU_CLIENT_DRIVER_SURFACE_H_

#include "client/driver/cuda_abi.h"

// Every call of the CUDA driver that the shim changes. The exports of libcuda.so.1, the answers of
// cuGetProcAddress and the table of docs/unmodified.md come from here; tests compare them.
//
// X(symbol, name, version, stream, parameter types...): `name` and `version` are those of a look-up
// by cuGetProcAddress; `stream` is kPerThread for the twin with the per-thread default stream, kLegacy for
// one that has such a twin, kNone for the rest.
// clang-format off
#define LGPU_SHIM_SURFACE(X)                                                                                   \
  X(cuInit,                            "cuInit",                       2000,  kNone,      unsigned)             \
  X(cuGetProcAddress,                  "cuGetProcAddress",             11030, kNone,      const char*, void**, int, Flags64) \
  X(cuGetProcAddress_v2,               "cuGetProcAddress",             12000, kNone,      const char*, void**, int, Flags64, int*) \
  X(cuDeviceTotalMem,                  "cuDeviceTotalMem",             2000,  kNone,      unsigned*, Device)    \
  X(cuDeviceTotalMem_v2,               "cuDeviceTotalMem",             3020,  kNone,      std::size_t*, Device) \
  X(cuMemGetInfo,                      "cuMemGetInfo",                 2000,  kNone,      unsigned*, unsigned*) \
  X(cuMemGetInfo_v2,                   "cuMemGetInfo",                 3020,  kNone,      std::size_t*, std::size_t*) \
  X(cuMemAlloc,                        "cuMemAlloc",                   2000,  kNone,      DevicePtrV1*, unsigned) \
  X(cuMemAlloc_v2,                     "cuMemAlloc",                   3020,  kNone,      DevicePtr*, std::size_t) \
  X(cuMemAllocPitch,                   "cuMemAllocPitch",              2000,  kNone,      DevicePtrV1*, unsigned*, unsigned, unsigned, unsigned) \
  X(cuMemAllocPitch_v2,                "cuMemAllocPitch",              3020,  kNone,      DevicePtr*, std::size_t*, std::size_t, std::size_t, unsigned) \
  X(cuMemAllocManaged,                 "cuMemAllocManaged",            6000,  kNone,      DevicePtr*, std::size_t, unsigned) \
  X(cuMemFree,                         "cuMemFree",                    2000,  kNone,      DevicePtrV1)          \
  X(cuMemFree_v2,                      "cuMemFree",                    3020,  kNone,      DevicePtr)            \
  X(cuMemAllocAsync,                   "cuMemAllocAsync",              11020, kLegacy,    DevicePtr*, std::size_t, Stream) \
  X(cuMemAllocAsync_ptsz,              "cuMemAllocAsync",              11020, kPerThread, DevicePtr*, std::size_t, Stream) \
  X(cuMemAllocFromPoolAsync,           "cuMemAllocFromPoolAsync",      11020, kLegacy,    DevicePtr*, std::size_t, MemPool, Stream) \
  X(cuMemAllocFromPoolAsync_ptsz,      "cuMemAllocFromPoolAsync",      11020, kPerThread, DevicePtr*, std::size_t, MemPool, Stream) \
  X(cuMemFreeAsync,                    "cuMemFreeAsync",               11020, kLegacy,    DevicePtr, Stream)    \
  X(cuMemFreeAsync_ptsz,               "cuMemFreeAsync",               11020, kPerThread, DevicePtr, Stream)    \
  X(cuMemPoolCreate,                   "cuMemPoolCreate",              11020, kNone,      MemPool*, const MemPoolProps*) \
  X(cuMemPoolDestroy,                  "cuMemPoolDestroy",             11020, kNone,      MemPool)              \
  X(cuMemGetDefaultMemPool,            "cuMemGetDefaultMemPool",       13000, kNone,      MemPool*, MemLocation*, int) \
  X(cuMemGetMemPool,                   "cuMemGetMemPool",              13000, kNone,      MemPool*, MemLocation*, int) \
  X(cuMemPoolTrimTo,                   "cuMemPoolTrimTo",              11020, kNone,      MemPool, std::size_t) \
  X(cuMemCreate,                       "cuMemCreate",                  10020, kNone,      Handle*, std::size_t, const AllocationProp*, Flags64) \
  X(cuMemRelease,                      "cuMemRelease",                 10020, kNone,      Handle)               \
  X(cuMemRetainAllocationHandle,       "cuMemRetainAllocationHandle",  11000, kNone,      Handle*, void*)       \
  X(cuMemMap,                          "cuMemMap",                     10020, kNone,      DevicePtr, std::size_t, std::size_t, Handle, Flags64) \
  X(cuMemUnmap,                        "cuMemUnmap",                   10020, kNone,      DevicePtr, std::size_t) \
  X(cuMemMapArrayAsync,                "cuMemMapArrayAsync",           11010, kLegacy,    ArrayMapInfo*, unsigned, Stream) \
  X(cuMemMapArrayAsync_ptsz,           "cuMemMapArrayAsync",           11010, kPerThread, ArrayMapInfo*, unsigned, Stream) \
  X(cuMulticastCreate,                 "cuMulticastCreate",            12010, kNone,      Handle*, const void*) \
  X(cuMulticastBindMem,                "cuMulticastBindMem",           12010, kNone,      Handle, std::size_t, Handle, std::size_t, std::size_t, Flags64) \
  X(cuMulticastBindAddr,               "cuMulticastBindAddr",          12010, kNone,      Handle, std::size_t, DevicePtr, std::size_t, Flags64) \
  X(cuMulticastUnbind,                 "cuMulticastUnbind",            12010, kNone,      Handle, Device, std::size_t, std::size_t) \
  X(cuMemExportToShareableHandle,      "cuMemExportToShareableHandle", 10020, kNone,      void*, Handle, int, Flags64) \
  X(cuMemImportFromShareableHandle,    "cuMemImportFromShareableHandle", 10020, kNone,    Handle*, void*, int)  \
  X(cuMemPoolExportToShareableHandle,  "cuMemPoolExportToShareableHandle", 11020, kNone,  void*, MemPool, int, Flags64) \
  X(cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 11020, kNone, MemPool*, void*, int, Flags64) \
  X(cuIpcGetMemHandle,                 "cuIpcGetMemHandle",            4010,  kNone,      IpcMemHandle*, DevicePtr) \
  X(cuIpcOpenMemHandle,                "cuIpcOpenMemHandle",           4010,  kNone,      DevicePtr*, IpcMemHandle, unsigned) \
  X(cuIpcOpenMemHandle_v2,             "cuIpcOpenMemHandle",           11000, kNone,      DevicePtr*, IpcMemHandle, unsigned) \
  X(cuIpcCloseMemHandle,               "cuIpcCloseMemHandle",          4010,  kNone,      DevicePtr)            \
  X(cuArrayCreate,                     "cuArrayCreate",                2000,  kNone,      Array*, const ArrayDescriptorV1*) \
  X(cuArrayCreate_v2,                  "cuArrayCreate",                3020,  kNone,      Array*, const ArrayDescriptor*) \
  X(cuArray3DCreate,                   "cuArray3DCreate",              2000,  kNone,      Array*, const Array3dDescriptorV1*) \
  X(cuArray3DCreate_v2,                "cuArray3DCreate",              3020,  kNone,      Array*, const Array3dDescriptor*) \
  X(cuMipmappedArrayCreate,            "cuMipmappedArrayCreate",       5000,  kNone,      MipmappedArray*, const Array3dDescriptor*, unsigned) \
  X(cuArrayDestroy,                    "cuArrayDestroy",               2000,  kNone,      Array)                \
  X(cuMipmappedArrayDestroy,           "cuMipmappedArrayDestroy",      5000,  kNone,      MipmappedArray)       \
  X(cuGraphInstantiate,                "cuGraphInstantiate",           10000, kNone,      GraphExec*, Graph, GraphNode*, char*, std::size_t) \
  X(cuGraphInstantiate_v2,             "cuGraphInstantiate",           11000, kNone,      GraphExec*, Graph, GraphNode*, char*, std::size_t) \
  X(cuGraphInstantiateWithFlags,       "cuGraphInstantiateWithFlags",  11040, kNone,      GraphExec*, Graph, Flags64) \
  X(cuGraphInstantiateWithParams,      "cuGraphInstantiateWithParams", 12000, kLegacy,    GraphExec*, Graph, void*) \
  X(cuGraphInstantiateWithParams_ptsz, "cuGraphInstantiateWithParams", 12000, kPerThread, GraphExec*, Graph, void*) \
  X(cuGraphUpload,                     "cuGraphUpload",                11010, kLegacy,    GraphExec, Stream)    \
  X(cuGraphUpload_ptsz,                "cuGraphUpload",                11010, kPerThread, GraphExec, Stream)    \
  X(cuGraphLaunch,                     "cuGraphLaunch",                10000, kLegacy,    GraphExec, Stream)    \
  X(cuGraphLaunch_ptsz,                "cuGraphLaunch",                10000, kPerThread, GraphExec, Stream)    \
  X(cuGraphExecDestroy,                "cuGraphExecDestroy",           10000, kNone,      GraphExec)            \
  X(cuDeviceGraphMemTrim,              "cuDeviceGraphMemTrim",         11040, kNone,      Device)               \
  X(cuCtxSetLimit,                     "cuCtxSetLimit",                3010,  kNone,      int, std::size_t)      \
  X(cuCtxAttach,                       "cuCtxAttach",                  2000,  kNone,      Context*, unsigned)    \
  X(cuCtxDetach,                       "cuCtxDetach",                  2000,  kNone,      Context)              \
  X(cuCtxDestroy,                      "cuCtxDestroy",                 2000,  kNone,      Context)              \
  X(cuCtxDestroy_v2,                   "cuCtxDestroy",                 4000,  kNone,      Context)              \
  X(cuGreenCtxCreate,                  "cuGreenCtxCreate",             12040, kNone,      GreenContext*, void*, Device, unsigned) \
  X(cuGreenCtxDestroy,                 "cuGreenCtxDestroy",            12040, kNone,      GreenContext)         \
  X(cuDevicePrimaryCtxRelease,         "cuDevicePrimaryCtxRelease",    7000,  kNone,      Device)               \
  X(cuDevicePrimaryCtxRelease_v2,      "cuDevicePrimaryCtxRelease",    11000, kNone,      Device)               \
  X(cuDevicePrimaryCtxReset,           "cuDevicePrimaryCtxReset",      7000,  kNone,      Device)               \
  X(cuDevicePrimaryCtxReset_v2,        "cuDevicePrimaryCtxReset",      11000, kNone,      Device)

// Calls of the driver that the shim makes for itself.
#define LGPU_SHIM_OWN_USE(X)                                                            \
  X(cuCtxGetDevice,               Device*)                                               \
  X(cuCtxGetCurrent,              Context*)                                              \
  X(cuDeviceGetUuid,              Uuid*, Device)                                         \
  X(cuDeviceGetUuid_v2,           Uuid*, Device)                                         \
  X(cuDeviceGetCount,             int*)                                                  \
  X(cuDeviceGetMemPool,           MemPool*, Device)                                      \
  X(cuDeviceGetDefaultMemPool,    MemPool*, Device)                                      \
  X(cuStreamGetDevice,            Stream, Device*)                                       \
  X(cuStreamGetCtx,               Stream, Context*)                                      \
  X(cuCtxPushCurrent_v2,          Context)                                               \
  X(cuCtxPopCurrent_v2,           Context*)                                              \
  X(cuMemPoolGetAttribute,        MemPool, int, void*)                                   \
  X(cuMemGetAllocationPropertiesFromHandle, AllocationProp*, Handle)                     \
  X(cuCtxFromGreenCtx,            Context*, GreenContext)                                \
  X(cuArrayGetMemoryRequirements, ArrayMemoryRequirements*, Array, Device)               \
  X(cuMipmappedArrayGetMemoryRequirements, ArrayMemoryRequirements*, MipmappedArray, Device) \
  X(cuStreamIsCapturing,          Stream, int*)                                          \
  X(cuStreamIsCapturing_ptsz,     Stream, int*)                                          \
  X(cuDevicePrimaryCtxRetain,     Context*, Device)                                      \
  X(cuDevicePrimaryCtxGetState,   Device, unsigned*, int*)                               \
  X(cuGraphGetNodes,              Graph, GraphNode*, std::size_t*)                       \
  X(cuGraphNodeGetType,           GraphNode, int*)                                       \
  X(cuGraphChildGraphNodeGetGraph, GraphNode, Graph*)                                    \
  X(cuGraphMemAllocNodeGetParams, GraphNode, MemAllocNodeParams*)                        \
  X(cuDeviceGetGraphMemAttribute, Device, int, void*)
// clang-format on

#define LGPU_SHIM_EXPORT extern "C" __attribute__((visibility("default")))

namespace lgpu::shim {
#define LGPU_SHIM_DECLARE(symbol, name, version, stream, ...) LGPU_SHIM_EXPORT Result symbol(__VA_ARGS__);
LGPU_SHIM_SURFACE(LGPU_SHIM_DECLARE)
#undef LGPU_SHIM_DECLARE
}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_SURFACE_H_
