// The calls of the fake driver for green contexts. A kernel runs as fast on few multiprocessors as on many.

#include <cuda.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "tests/fake_cuda/fake_calls.h"

using namespace lgpu::fake_cuda;

namespace {

// As cuda.h has it for compute capability 9: at least 8, in steps of 8.
constexpr unsigned kStep = 8;

/// Null: there is no such green context now.
Context* FindGreen(Process& process, CUgreenCtx handle) {
  const auto found =
      std::find_if(process.made_contexts.begin(), process.made_contexts.end(), [=](const auto& made) {
        return made.get() == reinterpret_cast<Context*>(handle) && made->primary != nullptr &&
               made->retained > 0;
      });
  return found == process.made_contexts.end() ? nullptr : found->get();
}

template <typename Run>
CUresult Within(CUgreenCtx green, Run run) {
  CUcontext context = nullptr;
  if (const CUresult known = cuCtxFromGreenCtx(&context, green); known != CUDA_SUCCESS) return known;
  if (const CUresult pushed = cuCtxPushCurrent_v2(context); pushed != CUDA_SUCCESS) return pushed;
  const CUresult result = run();
  cuCtxPopCurrent_v2(&context);
  return result;
}

}  // namespace

FAKE_EXPORT CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource,
                                            CUdevResourceType type) {
  int count = 0;
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
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

// A green context has a name of its own as a context; its memory is that of the primary context, of which it
// holds a reference.
FAKE_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx* green, CUdevResourceDesc, CUdevice device, unsigned flags) {
  if (green == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  CUcontext primary = nullptr;
  if (const CUresult kept = cuDevicePrimaryCtxRetain(&primary, device); kept != CUDA_SUCCESS) return kept;
  FAKE_ENTER("cuGreenCtxCreate");
  auto made = std::make_unique<Context>();
  made->card = CardOf(device);
  made->retained = 1;
  made->primary = reinterpret_cast<Context*>(primary);
  *green = reinterpret_cast<CUgreenCtx>(made.get());
  process.made_contexts.push_back(std::move(made));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx handle) {
  CUdevice device = 0;
  std::shared_ptr<Stream> stream;  // which ends when the lock is free
  {
    FAKE_ENTER("cuGreenCtxDestroy");
    Context* const context = FindGreen(process, handle);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    process.WaitForContext(lock, context);
    context->retained = 0;
    stream = std::exchange(context->default_stream, nullptr);
    device = process.OrdinalOf(context->card);
  }
  return cuDevicePrimaryCtxRelease_v2(device);
}

FAKE_EXPORT CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green) {
  FAKE_ENTER("cuCtxFromGreenCtx");
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = reinterpret_cast<CUcontext>(FindGreen(process, green));
  return *context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource* resource,
                                              CUdevResourceType type) {
  CUcontext context = nullptr;
  const CUresult known = cuCtxFromGreenCtx(&context, green);
  return known == CUDA_SUCCESS ? cuCtxGetDevResource(context, resource, type) : known;
}
FAKE_EXPORT CUresult cuCtxGetDevResource(CUcontext context, CUdevResource* resource, CUdevResourceType type) {
  CUdevice device = 0;
  const CUresult known = cuCtxGetDevice_v2(&device, context);
  return known == CUDA_SUCCESS ? cuDeviceGetDevResource(device, resource, type) : known;
}

FAKE_EXPORT CUresult cuGreenCtxGetId(CUgreenCtx green, unsigned long long* id) {
  CUcontext context = nullptr;
  const CUresult known = cuCtxFromGreenCtx(&context, green);
  return known == CUDA_SUCCESS ? cuCtxGetId(context, id) : known;
}

FAKE_EXPORT CUresult cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) {
  return Within(green, [event] { return cuEventRecord(event, nullptr); });
}
FAKE_EXPORT CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
  return Within(green, [event] { return cuStreamWaitEvent(nullptr, event, 0); });
}
FAKE_EXPORT CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx green, unsigned flags,
                                            int priority) {
  return Within(green, [&] { return cuStreamCreateWithPriority(stream, flags, priority); });
}

FAKE_EXPORT CUresult cuStreamGetGreenCtx(CUstream stream, CUgreenCtx* green) {
  CUcontext context = nullptr;
  if (green == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult known = cuStreamGetCtx(stream, &context);
  const bool is_green =
      known == CUDA_SUCCESS && reinterpret_cast<const Context*>(context)->primary != nullptr;
  *green = is_green ? reinterpret_cast<CUgreenCtx>(context) : nullptr;
  return known;
}
