// The shim's own declarations of the driver's interface are those of the toolkit's cuda.h. cuda_headers_test
// has those of base/cuda.

#include <cuda.h>
#include <gtest/gtest.h>

#include "client/driver/cuda_abi.h"

namespace lgpu::shim {
namespace {

#define SAME_FIELD(ours, our_field, theirs, their_field)                     \
  static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field)); \
  static_assert(sizeof(ours::our_field) == sizeof(theirs::their_field))

#if CUDA_VERSION >= 13000
static_assert(kAllocationManaged == CU_MEM_ALLOCATION_TYPE_MANAGED);
#endif
static_assert(kLimitKernelHeap == CU_LIMIT_MALLOC_HEAP_SIZE);
static_assert(kPoolReservedCurrent == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
static_assert(kGraphUpload == CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
static_assert(offsetof(CUDA_GRAPH_INSTANTIATE_PARAMS, flags) == 0);
static_assert(kGraphUsedCurrent == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
static_assert(kGraphReservedCurrent == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
static_assert(kGraphNodeChild == CU_GRAPH_NODE_TYPE_GRAPH);
static_assert(kGraphNodeMemAlloc == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
static_assert(kArrayWithoutMemory == (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING));
static_assert(kPerThreadStream == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
static_assert(kNotCapturing == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(sizeof(DevicePtr) == sizeof(CUdeviceptr));
static_assert(sizeof(IpcMemHandle) == sizeof(CUipcMemHandle));

static_assert(sizeof(MemPoolProps) == sizeof(CUmemPoolProps));
static_assert(kNotFound == CUDA_ERROR_NOT_FOUND);
static_assert(kSymbolFound == CU_GET_PROC_ADDRESS_SUCCESS);
static_assert(kSymbolNotFound == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
static_assert(kArrayMappedLater == CUDA_ARRAY3D_DEFERRED_MAPPING);
static_assert(sizeof(ArrayMemoryRequirements) == sizeof(CUDA_ARRAY_MEMORY_REQUIREMENTS));
SAME_FIELD(ArrayMemoryRequirements, size, CUDA_ARRAY_MEMORY_REQUIREMENTS, size);
SAME_FIELD(MemPoolProps, location, CUmemPoolProps, location);
SAME_FIELD(MemPoolProps, max_size, CUmemPoolProps, maxSize);
static_assert(sizeof(ArrayDescriptor) == sizeof(CUDA_ARRAY_DESCRIPTOR));
SAME_FIELD(ArrayDescriptor, format, CUDA_ARRAY_DESCRIPTOR, Format);
SAME_FIELD(ArrayDescriptor, channels, CUDA_ARRAY_DESCRIPTOR, NumChannels);
static_assert(sizeof(Array3dDescriptor) == sizeof(CUDA_ARRAY3D_DESCRIPTOR));
SAME_FIELD(Array3dDescriptor, depth, CUDA_ARRAY3D_DESCRIPTOR, Depth);
SAME_FIELD(Array3dDescriptor, flags, CUDA_ARRAY3D_DESCRIPTOR, Flags);
static_assert(kArrayOfLayers == (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP));
static_assert(kMapOperation == CU_MEM_OPERATION_TYPE_MAP);
static_assert(kMipTail == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL);
static_assert(offsetof(CUarrayMapInfo, subresource.miptail.offset) -
                  offsetof(CUarrayMapInfo, subresource.miptail.layer) ==
              8);
static_assert(sizeof(ArrayMapInfo) == sizeof(CUarrayMapInfo));
SAME_FIELD(ArrayMapInfo, resource, CUarrayMapInfo, resource);
SAME_FIELD(ArrayMapInfo, subresource_type, CUarrayMapInfo, subresourceType);
SAME_FIELD(ArrayMapInfo, subresource, CUarrayMapInfo, subresource);
SAME_FIELD(ArrayMapInfo, operation, CUarrayMapInfo, memOperationType);
SAME_FIELD(ArrayMapInfo, handle, CUarrayMapInfo, memHandle);
static_assert(sizeof(MemAllocNodeParams) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS));
SAME_FIELD(MemAllocNodeParams, bytes, CUDA_MEM_ALLOC_NODE_PARAMS, bytesize);

TEST(CudaAbiTest, FormatsHaveTheNumbersThatTheShimCountsBy) {
  EXPECT_EQ(CU_AD_FORMAT_UNSIGNED_INT8, 0x01);
  EXPECT_EQ(CU_AD_FORMAT_SIGNED_INT8, 0x08);
  EXPECT_EQ(CU_AD_FORMAT_UNSIGNED_INT16, 0x02);
  EXPECT_EQ(CU_AD_FORMAT_SIGNED_INT16, 0x09);
  EXPECT_EQ(CU_AD_FORMAT_HALF, 0x10);
}

}  // namespace
}  // namespace lgpu::shim
