// The calls of the fake driver on contexts. A context takes memory of its card. As cuda.h says, its end frees
// its plain allocations, streams, events and modules.

#include <algorithm>
#include <iterator>
#include <utility>

#include "tests/fake_cuda/fake_blocks.h"
#include "tests/fake_cuda/fake_calls.h"

namespace lgpu::fake_cuda {
namespace {

// Whether the card's compute mode leaves no room for a context of this process.
bool IsTaken(Process& process, int card) {
  constexpr int kProhibited = 2, kOneProcess = 3;
  const int mode = process.file->state().compute_mode;
  if (mode != kOneProcess) return mode == kProhibited;
  const StateFile::Lock lock(*process.file);
  process.file->Sweep();
  const auto& slots = process.file->state().slots;
  return std::any_of(std::begin(slots), std::end(slots), [card, own = process.file->pid()](const Slot& slot) {
    return slot.used && slot.is_context && slot.card == card && slot.pid != own;
  });
}

std::uint64_t SizeOfNext(Process& process, int index) {
  const StateFile::Lock lock(*process.file);
  Card& card = process.file->state().cards[index];
  return card.context_bytes + card.context_step * card.contexts_made++;
}

CUresult Start(Process& process, Context& context) {
  if (IsTaken(process, context.card)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  if (const CUresult made = NewAllocation(process, context.card, SizeOfNext(process, context.card),
                                          StateFile::Kind::kContext, &context.memory);
      made != CUDA_SUCCESS) {
    return made;
  }
  context.blocks = std::make_shared<Blocks>(context.card, kGranularity);
  const StateFile::Lock lock(*process.file);
  ProcessContexts& counted = process.file->ContextsOfThisProcess();
  ++counted.created;
  ++counted.live;
  return CUDA_SUCCESS;
}

void End(Process& process, std::unique_lock<std::mutex>& lock, Context* context) {
  context->retained = 0;
  // Held until the lock is not: the end of a stream waits for its work, which takes the lock.
  std::vector<std::shared_ptr<Stream>> streams = process.StreamsOf(context);
  process.WaitForContext(lock, context);
  context->default_stream.reset();
  if (process.file->state().any_program) {
    std::erase_if(process.streams, [&](const auto& entry) { return entry.second->context == context; });
    std::erase_if(process.modules, [&](const auto& entry) { return entry.second->context == context; });
  }
  std::erase_if(process.pieces, [&](const auto& entry) {
    const Piece& piece = entry.second;
    if (piece.context == context && piece.mapping != 0) UnmapMemory(process, piece.mapping);
    return piece.context == context;
  });
  if (context->blocks != nullptr) context->blocks->Clear(process);
  context->memory.reset();
  context->code.reset();
  context->limits.clear();
  context->limit_memory.clear();
  {
    const StateFile::Lock state(*process.file);
    --process.file->ContextsOfThisProcess().live;
  }
  lock.unlock();
  streams.clear();
  lock.lock();
}

CUresult Create(CUcontext* result, unsigned flags, CUdevice device) {
  FAKE_ENTER("cuCtxCreate");
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int card = CardOf(device);
  if (card < 0) return CUDA_ERROR_INVALID_DEVICE;
  auto made = std::make_unique<Context>();
  made->card = card;
  made->flags = flags;
  Contexts& stack = Process::ContextStack();
  if (stack.size == Contexts::kMost) return CUDA_ERROR_OUT_OF_MEMORY;
  if (const CUresult started = Start(process, *made); started != CUDA_SUCCESS) return started;
  made->retained = 1;
  *result = reinterpret_cast<CUcontext>(made.get());
  stack.items[stack.size++] = made.get();
  process.made_contexts.push_back(std::move(made));
  return CUDA_SUCCESS;
}

// A context of this process, alive or dead; the current one for null.
CUresult Find(Process& process, CUcontext handle, Context** found, const char* call) {
  if (handle == nullptr) return process.CurrentContext(found, call);
  auto* const context = reinterpret_cast<Context*>(handle);
  const bool is_made = std::any_of(process.made_contexts.begin(), process.made_contexts.end(),
                                   [=](const auto& made) { return made.get() == context; });
  const bool is_primary = std::any_of(process.contexts.begin(), process.contexts.end(),
                                      [=](const auto& entry) { return entry.second.get() == context; });
  if (!is_made && !is_primary) return CUDA_ERROR_INVALID_CONTEXT;
  *found = context;
  return context->retained > 0 ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult ReleasePrimary(CUdevice device, bool wholly) {
  FAKE_ENTER("cuDevicePrimaryCtxRelease");
  const int card = CardOf(device);
  if (card < 0) return CUDA_ERROR_INVALID_DEVICE;
  const auto context = process.contexts.find(card);
  if (context == process.contexts.end() || context->second->retained == 0) {
    return wholly ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  }
  if (wholly || context->second->retained == 1) {
    End(process, lock, context->second.get());
  } else {
    --context->second->retained;
  }
  return CUDA_SUCCESS;
}

std::size_t DefaultLimit(CUlimit limit) {
  switch (static_cast<int>(limit)) {
    case CU_LIMIT_STACK_SIZE:
      return 1024;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      return std::size_t{1} << 20;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
      return std::size_t{8} << 20;
    default:
      return 0;
  }
}

}  // namespace
}  // namespace lgpu::fake_cuda

using namespace lgpu::fake_cuda;

FAKE_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* result, CUdevice device) {
  FAKE_ENTER("cuDevicePrimaryCtxRetain");
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int card = CardOf(device);
  if (card < 0) return CUDA_ERROR_INVALID_DEVICE;
  std::unique_ptr<Context>& context = process.contexts[card];
  if (context == nullptr) {
    context = std::make_unique<Context>();
    context->card = card;
    context->is_primary = true;
  }
  if (context->retained == 0) {
    if (const CUresult made = Start(process, *context); made != CUDA_SUCCESS) return made;
  }
  ++context->retained;
  *result = reinterpret_cast<CUcontext>(context.get());
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return ReleasePrimary(device, false); }
FAKE_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return ReleasePrimary(device, false); }
FAKE_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { return ReleasePrimary(device, true); }
FAKE_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) { return ReleasePrimary(device, true); }

FAKE_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  FAKE_ENTER("cuDevicePrimaryCtxGetState");
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CardOf(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  const auto context = process.contexts.find(CardOf(device));
  *flags = context == process.contexts.end() ? 0 : context->second->flags;
  *active = context != process.contexts.end() && context->second->retained > 0 ? 1 : 0;
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned) {
  FAKE_ENTER("cuDevicePrimaryCtxSetFlags");
  return CardOf(device) < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

FAKE_EXPORT CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
  return Create(context, flags, device);
}
FAKE_EXPORT CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int, unsigned flags,
                                    CUdevice device) {
  return Create(context, flags, device);
}
FAKE_EXPORT CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned flags, CUdevice device) {
  return Create(context, flags, device);
}

FAKE_EXPORT CUresult cuCtxDestroy_v2(CUcontext handle) {
  FAKE_ENTER("cuCtxDestroy");
  if (handle == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  Context* context = nullptr;
  if (const CUresult found = Find(process, handle, &context, "cuCtxDestroy"); found != CUDA_SUCCESS) {
    return found;
  }
  if (context->is_primary || context->primary != nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  Contexts& stack = Process::ContextStack();
  if (!stack.empty() && stack.back() == context) --stack.size;
  End(process, lock, context);
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }

FAKE_EXPORT CUresult cuCtxAttach(CUcontext* handle, unsigned) {
  FAKE_ENTER_CONTEXT("cuCtxAttach");
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ++context->retained;
  *handle = reinterpret_cast<CUcontext>(context);
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuCtxDetach(CUcontext handle) {
  {
    FAKE_ENTER("cuCtxDetach");
    Context* context = nullptr;
    if (const CUresult found = Find(process, handle, &context, "cuCtxDetach"); found != CUDA_SUCCESS) {
      return found;
    }
    if (context->retained > 1) {
      --context->retained;
      return CUDA_SUCCESS;
    }
  }
  return cuCtxDestroy_v2(handle);
}

FAKE_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  FAKE_ENTER("cuCtxGetCurrent");
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Contexts& stack = Process::ContextStack();
  *context = stack.empty() ? nullptr : reinterpret_cast<CUcontext>(stack.back());
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxSetCurrent(CUcontext handle) {
  FAKE_ENTER("cuCtxSetCurrent");
  Contexts& stack = Process::ContextStack();
  if (!stack.empty()) --stack.size;
  if (handle == nullptr) return CUDA_SUCCESS;
  stack.items[stack.size++] = reinterpret_cast<Context*>(handle);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
  FAKE_ENTER("cuCtxPushCurrent");
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Contexts& stack = Process::ContextStack();
  if (stack.size == Contexts::kMost) return CUDA_ERROR_OUT_OF_MEMORY;
  stack.items[stack.size++] = reinterpret_cast<Context*>(context);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  FAKE_ENTER("cuCtxPopCurrent");
  Contexts& stack = Process::ContextStack();
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = reinterpret_cast<CUcontext>(stack.back());
  --stack.size;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  FAKE_ENTER_CONTEXT("cuCtxGetDevice");
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = process.OrdinalOf(context->card);
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  FAKE_ENTER("cuCtxGetDevice");
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (const CUresult found = Find(process, handle, &context, "cuCtxGetDevice"); found != CUDA_SUCCESS) {
    return found;
  }
  *device = process.OrdinalOf(context->card);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxSynchronize_v2(CUcontext handle) {
  FAKE_ENTER("cuCtxSynchronize");
  Context* context = nullptr;
  if (const CUresult found = Find(process, handle, &context, "cuCtxSynchronize"); found != CUDA_SUCCESS) {
    return found;
  }
  process.WaitForContext(lock, context);
  process.TrimPools();
  return process.sticky;
}
FAKE_EXPORT CUresult cuCtxSynchronize() { return cuCtxSynchronize_v2(nullptr); }

FAKE_EXPORT CUresult cuCtxGetFlags(unsigned* flags) {
  FAKE_ENTER_CONTEXT("cuCtxGetFlags");
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags;
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  FAKE_ENTER("cuCtxGetId");
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (const CUresult found = Find(process, handle, &context, "cuCtxGetId"); found != CUDA_SUCCESS) {
    return found;
  }
  *id = reinterpret_cast<std::uintptr_t>(context);
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  FAKE_ENTER("cuCtxGetApiVersion");
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (const CUresult found = Find(process, handle, &context, "cuCtxGetApiVersion"); found != CUDA_SUCCESS) {
    return found;
  }
  *version = 3020;
  return CUDA_SUCCESS;
}

// The heap of malloc in kernels, the buffer of printf and the stacks are memory of the card: beyond the
// default they are taken when the limit is set.
FAKE_EXPORT CUresult cuCtxSetLimit(CUlimit limit, std::size_t value) {
  FAKE_ENTER_CONTEXT("cuCtxSetLimit");
  if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  constexpr std::uint64_t kThreads = 132 * 2048;
  const std::size_t old = DefaultLimit(limit);
  const std::uint64_t each = limit == CU_LIMIT_STACK_SIZE ? kThreads : 1;
  const bool is_memory = old != 0;
  const std::uint64_t more = is_memory && value > old ? (value - old) * each : 0;
  std::shared_ptr<Allocation>& taken = context->limit_memory[limit];
  taken.reset();
  if (more != 0) {
    if (const CUresult made = NewAllocation(process, context->card, more, StateFile::Kind::kMemory, &taken);
        made != CUDA_SUCCESS) {
      return made;
    }
  }
  context->limits[limit] = value;
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuCtxGetLimit(std::size_t* value, CUlimit limit) {
  FAKE_ENTER_CONTEXT("cuCtxGetLimit");
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  const auto set = context->limits.find(limit);
  *value = set == context->limits.end() ? DefaultLimit(limit) : set->second;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_ENTER_CONTEXT("cuCtxGetStreamPriorityRange");
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  FAKE_ENTER_CONTEXT("cuCtxGetCacheConfig");
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = CU_FUNC_CACHE_PREFER_NONE;
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuCtxSetCacheConfig(CUfunc_cache) {
  FAKE_ENTER_CONTEXT("cuCtxSetCacheConfig");
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext, unsigned) {
  FAKE_ENTER_CONTEXT("cuCtxEnablePeerAccess");
  return process.file->state().peers ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}
FAKE_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext) {
  FAKE_ENTER_CONTEXT("cuCtxDisablePeerAccess");
  return process.file->state().peers ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
