// Cases of any_client in the ways of known programs: llama.cpp's pool, ffmpeg's copies, green contexts, and
// null where a call writes its result.

#include <cstring>
#include <vector>

#include "tests/fake_cuda/any_client.h"

namespace any_client {
namespace {

CUmemAllocationProp OnDevice() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return prop;
}

// llama.cpp maps piece after piece, and lets go of all by one call.
void ManyMappingsAtOnce() {
  Start();
  const std::size_t before = Free();
  const CUmemAllocationProp prop = OnDevice();
  CUdeviceptr address = 0;
  OK(cuMemAddressReserve(&address, std::size_t{32} << 30, 0, 0, 0));
  for (int i = 0; i < 3; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    OK(cuMemCreate(&handle, 10 * kMiB, &prop, 0));
    OK(cuMemMap(address + static_cast<std::size_t>(i) * 10 * kMiB, 10 * kMiB, 0, handle, 0));
    OK(cuMemRelease(handle));
  }
  EXPECT(Taken(before) == 30 * kMiB);
  EXPECT(cuMemUnmap(address, 25 * kMiB) == CUDA_ERROR_INVALID_VALUE);  // in the middle of a mapping
  EXPECT(cuMemUnmap(address, 40 * kMiB) == CUDA_ERROR_INVALID_VALUE);  // beyond the last one
  EXPECT(Taken(before) == 30 * kMiB);
  OK(cuMemUnmap(address, 30 * kMiB));
  EXPECT(Taken(before) == 0);
  OK(cuMemAddressFree(address, std::size_t{32} << 30));
}

// ffmpeg frees a frame of pageable memory as soon as the call returns.
void PageableCopiesAreDoneAtOnce() {
  Start();
  constexpr std::size_t kWidth = 1000, kHeight = 30, kPitch = 1024;
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr frame = 0;
  OK(cuMemAlloc_v2(&frame, kPitch * kHeight));
  std::vector<char> host(kWidth * kHeight, 'a');
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host.data();
  copy.srcPitch = kWidth;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = frame;
  copy.dstPitch = kPitch;
  copy.WidthInBytes = kWidth;
  copy.Height = kHeight;
  for (int i = 0; i < 100; ++i) {
    std::memset(host.data(), 'a', host.size());
    OK(cuMemcpy2DAsync_v2(&copy, stream));
    std::memset(host.data(), 'b', host.size());  // it is the program's again
    CUDA_MEMCPY2D back{};
    back.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    back.srcDevice = frame;
    back.srcPitch = kPitch;
    back.dstMemoryType = CU_MEMORYTYPE_HOST;
    back.dstHost = host.data();
    back.dstPitch = kWidth;
    back.WidthInBytes = kWidth;
    back.Height = kHeight;
    OK(cuMemcpy2DAsync_v2(&back, stream));
    EXPECT(host.front() == 'a' && host.back() == 'a');
  }
  OK(cuMemFree_v2(frame));
  OK(cuStreamDestroy_v2(stream));
}

void GreenContexts() {
  Start();
  CUdevResource all{}, part{}, rest{};
  unsigned count = 1;
  CUdevResourceDesc description = nullptr;
  OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
  OK(cuDevSmResourceSplitByCount(&part, &count, &all, &rest, 0, 16));
  OK(cuDevResourceGenerateDesc(&description, &part, 1));
  CUgreenCtx green = nullptr;
  OK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  CUcontext seen = nullptr, current = nullptr;
  OK(cuCtxFromGreenCtx(&seen, green));
  OK(cuCtxPushCurrent_v2(seen));
  OK(cuCtxGetCurrent(&current));
  EXPECT(current == seen);
  EXPECT(cuCtxDestroy_v2(seen) == CUDA_ERROR_INVALID_CONTEXT);
  CUdeviceptr address = 0;
  const std::size_t before = Free();
  OK(cuMemAlloc_v2(&address, 4 * kMiB));
  CUstream stream = nullptr;
  OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  CUgreenCtx of_stream = nullptr;
  OK(cuStreamGetGreenCtx(stream, &of_stream));
  EXPECT(of_stream == green);
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuGreenCtxRecordEvent(green, event));
  OK(cuGreenCtxWaitEvent(green, event));
  OK(cuEventDestroy_v2(event));
  OK(cuStreamDestroy_v2(stream));
  OK(cuCtxPopCurrent_v2(&current));
  OK(cuGreenCtxDestroy(green));
  EXPECT(cuGreenCtxDestroy(green) == CUDA_ERROR_INVALID_CONTEXT);
  EXPECT(Taken(before) == 4 * kMiB);  // the primary context has it
  OK(cuMemFree_v2(address));
  EXPECT(Taken(before) == 0);
}

void PoolsOfTheHost() {
  Start();
  const std::size_t before = Free();
  CUmemLocation host{};
  host.type = CU_MEM_LOCATION_TYPE_HOST;
  CUmemoryPool pool = nullptr, again = nullptr;
  OK(cuMemGetDefaultMemPool(&pool, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
  OK(cuMemGetMemPool(&again, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
  EXPECT(pool == again);
  CUdeviceptr address = 0;
  OK(cuMemAllocFromPoolAsync(&address, 40 * kMiB, pool, nullptr));
  EXPECT(Taken(before) == 0);
  OK(cuMemFreeAsync(address, nullptr));
  OK(cuCtxSynchronize());
}

void NullWhereAResultGoes() {
  Start();
  const CUmemAllocationProp prop = OnDevice();
  CUmemoryPool pool = nullptr;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  const CUresult results[] = {cuDeviceGetCount(nullptr),
                              cuDeviceGet(nullptr, 0),
                              cuDeviceGetName(nullptr, 10, 0),
                              cuDeviceGetUuid_v2(nullptr, 0),
                              cuDriverGetVersion(nullptr),
                              cuDeviceTotalMem_v2(nullptr, 0),
                              cuDevicePrimaryCtxRetain(nullptr, 0),
                              cuCtxGetCurrent(nullptr),
                              cuCtxGetDevice(nullptr),
                              cuCtxGetLimit(nullptr, CU_LIMIT_STACK_SIZE),
                              cuMemAlloc_v2(nullptr, kMiB),
                              cuMemCreate(nullptr, 2 * kMiB, &prop, 0),
                              cuMemGetAllocationGranularity(nullptr, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                              cuMemAddressReserve(nullptr, 2 * kMiB, 0, 0, 0),
                              cuMemSetAccess(0, 2 * kMiB, nullptr, 1),
                              cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, nullptr),
                              cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, nullptr),
                              cuDeviceGetMemPool(nullptr, 0),
                              cuMemGetDefaultMemPool(nullptr, nullptr, CU_MEM_ALLOCATION_TYPE_PINNED),
                              cuMemcpy2DAsync_v2(nullptr, nullptr),
                              cuStreamGetCtx(nullptr, nullptr),
                              cuGreenCtxCreate(nullptr, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM),
                              cuStreamGetGreenCtx(nullptr, nullptr),
                              cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0)};
  for (const CUresult result : results) EXPECT(result == CUDA_ERROR_INVALID_VALUE);
  OK(cuMemGetInfo_v2(nullptr, nullptr));
}

// Of an H100, as NVIDIA documents it.
void Attributes() {
  Start();
  const auto is = [](CUdevice_attribute attribute, int expected) {
    int value = -1;
    OK(cuDeviceGetAttribute(&value, attribute, 0));
    return value == expected;
  };
  EXPECT(is(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 64 * 32));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 228 * 1024));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 227 * 1024));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 * 1024));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 50 * 1024 * 1024));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131072));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS, 2046));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0));
  EXPECT(is(CU_DEVICE_ATTRIBUTE_INTEGRATED, 0));  // known, and in no table
  int value = -1;
  EXPECT(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX, 0) == CUDA_ERROR_INVALID_VALUE && value == -1);
}

void ChunksWithoutAContext() {
  OK(cuInit(0));
  const CUmemGenericAllocationHandle first = Create(2 * kMiB), second = Create(4 * kMiB);
  OK(cuMemRelease(first));
  const CUmemGenericAllocationHandle third = Create(2 * kMiB);
  Start();
  const std::size_t before = Free();
  const CUmemGenericAllocationHandle fourth = Create(8 * kMiB);
  EXPECT(Taken(before) == 8 * kMiB);
  OK(cuDevicePrimaryCtxReset_v2(0));
  const CUmemGenericAllocationHandle fifth = Create(2 * kMiB);
  for (const CUmemGenericAllocationHandle handle : {second, third, fourth, fifth}) OK(cuMemRelease(handle));
}

}  // namespace

const std::map<std::string, std::function<void()>>& WideCases() {
  static const std::map<std::string, std::function<void()>> cases = {
      {"many-mappings-at-once", ManyMappingsAtOnce},
      {"pageable-copies", PageableCopiesAreDoneAtOnce},
      {"green-contexts", GreenContexts},
      {"pools-of-the-host", PoolsOfTheHost},
      {"attributes", Attributes},
      {"chunks-without-a-context", ChunksWithoutAContext},
      {"null", NullWhereAResultGoes},
  };
  return cases;
}

}  // namespace any_client
