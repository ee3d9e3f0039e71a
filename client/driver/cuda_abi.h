#ifndef LGPU_CLIENT_DRIVER_CUDA_ABI_H_
#define LGPU_CLIENT_DRIVER_CUDA_ABI_H_

#include <cuda.h>  // base/cuda

#include <cstddef>
#include <cstdint>

/// The types of the CUDA driver's interface that the shim handles beside those of base/cuda, and short names
/// for both, so that it is built without the CUDA toolkit. A test holds sizes, offsets and numbers against
/// the toolkit's cuda.h.

namespace lgpu::shim {

using Result = int;  // a CUresult; a newer driver has more of them than cuda.h names
inline constexpr Result kSuccess = CUDA_SUCCESS;
inline constexpr Result kInvalidValue = CUDA_ERROR_INVALID_VALUE;
inline constexpr Result kOutOfMemory = CUDA_ERROR_OUT_OF_MEMORY;
inline constexpr Result kNoVisibleDevice = CUDA_ERROR_NO_DEVICE;
inline constexpr Result kNotFound = 500;  // CUDA_ERROR_NOT_FOUND
inline constexpr Result kNotSupported = CUDA_ERROR_NOT_SUPPORTED;

using Device = CUdevice;
inline constexpr Device kNoDevice = -1;
using DevicePtr = std::uint64_t;  // as CUdeviceptr
using DevicePtrV1 = unsigned;
using Handle = CUmemGenericAllocationHandle;
using Flags64 = unsigned long long;
// Opaque in cuda.h as well.
using Context = void*;
using Stream = void*;
using MemPool = void*;
using GreenContext = void*;
using Array = void*;
using MipmappedArray = void*;
using Graph = void*;
using GraphExec = void*;
using GraphNode = void*;

using Uuid = CUuuid;

struct IpcMemHandle {
  char reserved[64];
};

using MemLocation = CUmemLocation;
inline constexpr CUmemLocationType kLocationDevice = CU_MEM_LOCATION_TYPE_DEVICE;
using AllocationProp = CUmemAllocationProp;

struct MemPoolProps {
  int alloc_type;
  int handle_types;
  MemLocation location;
  void* win32;
  std::size_t max_size;
  unsigned short usage;
  unsigned char reserved[54];
};
inline constexpr int kAllocationManaged = 2;    // CU_MEM_ALLOCATION_TYPE_MANAGED, of CUDA 13
inline constexpr int kLimitKernelHeap = 2;      // CU_LIMIT_MALLOC_HEAP_SIZE
inline constexpr int kPoolReservedCurrent = 5;  // CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT

struct ArrayDescriptorV1 {
  unsigned width, height;
  int format;
  unsigned channels;
};
struct ArrayDescriptor {
  std::size_t width, height;
  int format;
  unsigned channels;
};
struct Array3dDescriptorV1 {
  unsigned width, height, depth;
  int format;
  unsigned channels, flags;
};
struct Array3dDescriptor {
  std::size_t width, height, depth;
  int format;
  unsigned channels, flags;
};
// CUDA_ARRAY3D_LAYERED and CUDA_ARRAY3D_CUBEMAP: `depth` is a number of layers, the same in every level.
inline constexpr unsigned kArrayOfLayers = 0x01 | 0x04;
// CUDA_ARRAY3D_SPARSE and CUDA_ARRAY3D_DEFERRED_MAPPING: arrays without memory of their own.
inline constexpr unsigned kArrayWithoutMemory = 0x40 | 0x80;

inline constexpr unsigned kArrayMappedLater = 0x80;  // CUDA_ARRAY3D_DEFERRED_MAPPING
struct ArrayMemoryRequirements {
  std::size_t size;
  std::size_t alignment;
  unsigned reserved[4];
};

/// A part of a sparse array, and the memory that is mapped there.
struct ArrayMapInfo {
  int resource_type;
  void* resource;  // an Array or a MipmappedArray
  int subresource_type;
  std::uint64_t subresource[4];
  int operation;
  int handle_type;
  Handle handle;
  unsigned long long offset;
  unsigned device_mask, flags, reserved[2];
};
inline constexpr int kMapOperation = 1;  // CU_MEM_OPERATION_TYPE_MAP
inline constexpr int kMipTail = 1;       // CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL

struct MemAllocNodeParams {
  MemPoolProps pool;
  const void* access;
  std::size_t access_count;
  std::size_t bytes;
  DevicePtr address;
};
inline constexpr int kGraphNodeChild = 4;
inline constexpr int kGraphNodeMemAlloc = 10;
inline constexpr Flags64 kGraphUpload = 2;       // CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
inline constexpr int kGraphUsedCurrent = 0;      // CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT
inline constexpr int kGraphReservedCurrent = 2;  // CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT

inline constexpr Flags64 kPerThreadStream = 2;  // of cuGetProcAddress
inline constexpr int kSymbolFound = 0;          // CU_GET_PROC_ADDRESS_SUCCESS
inline constexpr int kSymbolNotFound = 1;       // CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
inline constexpr int kNotCapturing = 0;         // CU_STREAM_CAPTURE_STATUS_NONE

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_CUDA_ABI_H_
