// The calls of the fake driver for green contexts. They are all the same to it: a kernel runs as fast on few
// multiprocessors as on many.

#include <cuda.h>

#include <algorithm>

#include "tests/fake_cuda/fake_calls.h"

using namespace lgpu::fake_cuda;

namespace {

// As cuda.h has it for compute capability 9: at least 8, in steps of 8.
constexpr unsigned kStep = 8;

}  // namespace

FAKE_EXPORT CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource,
                                            CUdevResourceType type) {
  int count = 0;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  const CUresult known = cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  if (known != CUDA_SUCCESS) return known;
  *resource = {};
  resource->type = type;
  resource->sm.smCount = static_cast<unsigned>(count);
  resource->sm.minSmPartitionSize = kStep;
  resource->sm.smCoscheduledAlignment = kStep;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDevSmResourceSplitByCount(CUdevResource* parts, unsigned* count,
                                                 const CUdevResource* all, CUdevResource* rest, unsigned,
                                                 unsigned least) {
  const unsigned each = std::max((least + kStep - 1) / kStep * kStep, kStep);
  if (*count != 1 || each > all->sm.smCount) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  *parts = *all;
  parts->sm.smCount = each;
  *rest = *all;
  rest->sm.smCount -= each;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* description, CUdevResource* parts,
                                               unsigned count) {
  if (count != 1) return CUDA_ERROR_INVALID_VALUE;
  *description = reinterpret_cast<CUdevResourceDesc>(parts);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx* green, CUdevResourceDesc, CUdevice device, unsigned flags) {
  if (flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  CUcontext context = nullptr;
  const CUresult retained = cuDevicePrimaryCtxRetain(&context, device);
  *green = reinterpret_cast<CUgreenCtx>(context);
  return retained;
}

FAKE_EXPORT CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green) {
  *context = reinterpret_cast<CUcontext>(green);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx green, unsigned flags,
                                            int priority) {
  CUcontext context = reinterpret_cast<CUcontext>(green);
  if (const CUresult pushed = cuCtxPushCurrent_v2(context); pushed != CUDA_SUCCESS) return pushed;
  const CUresult made = cuStreamCreateWithPriority(stream, flags, priority);
  cuCtxPopCurrent_v2(&context);
  return made;
}
