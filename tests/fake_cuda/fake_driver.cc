// The calls of the fake driver: start, devices, contexts.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "lgpu/visibility.h"
#include "tests/fake_cuda/fake_calls.h"
#include "tests/fake_cuda/fake_libraries.h"

namespace lgpu::fake_cuda {

CUresult Enter(const char* call) {
  Process& process = Process::This();
  if (process.file == nullptr) return CUDA_ERROR_NO_DEVICE;
  const int pid = ::getpid();
  if (process.pid == 0) {
    // cuda.h: every call but cuInit gives NOT_INITIALIZED before cuInit.
    process.Break("call-before-init", call);
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  if (process.pid != pid) {
    // A driver that was started does not work in forked children.
    process.Break("call-after-fork", call);
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  const StateFile::Lock lock(*process.file);
  return static_cast<CUresult>(process.file->TakeFault(call));
}

int EnterLibrary(const char* call) {
  if (const CUresult entered = Enter(call); entered != CUDA_SUCCESS) return static_cast<int>(entered);
  Process& process = Process::This();
  const std::lock_guard lock(process.mutex);
  Context* context = nullptr;
  return static_cast<int>(process.CurrentContext(&context, call));
}

bool HasContext() {
  Process& process = Process::This();
  const std::lock_guard lock(process.mutex);
  return std::any_of(process.contexts.begin(), process.contexts.end(),
                     [](const auto& context) { return context.second->retained > 0; });
}

void BreakRule(const char* rule, const std::string& text) {
  Process& process = Process::This();
  if (process.file != nullptr) process.Break(rule, text);
}

int CardOf(int ordinal) {
  const std::vector<int>& cards = Process::This().cards;
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= cards.size()) return -1;
  return cards[static_cast<std::size_t>(ordinal)];
}

namespace {

// The cards in the order of CUDA_DEVICE_ORDER, as CUDA_VISIBLE_DEVICES leaves them.
std::vector<int> VisibleCards(const State& state) {
  std::vector<int> order;
  for (int i = 0; i < state.card_count; ++i) order.push_back(i);
  const char* const order_text = std::getenv("CUDA_DEVICE_ORDER");
  if (ParseDeviceOrder(order_text == nullptr ? std::nullopt : std::optional<std::string_view>(order_text)) ==
      DeviceOrder::kFastestFirst) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return state.cards[a].speed > state.cards[b].speed; });
  }
  std::vector<std::string> uuids;
  for (const int card : order) uuids.push_back(UuidText(state.cards[card]));
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<int> cards;
  for (const int position :
       VisibleDevices(visible == nullptr ? std::nullopt : std::optional<std::string_view>(visible), uuids)) {
    cards.push_back(order[static_cast<std::size_t>(position)]);
  }
  return cards;
}

const Card* FindCard(CUdevice device) {
  const int card = CardOf(device);
  return card < 0 ? nullptr : &Process::This().file->state().cards[card];
}

CUresult NewContext(Process& process, Context& context) {
  const UniqueFd memory = process.file->OpenMemory(context.card);
  if (!memory) return CUDA_ERROR_OPERATING_SYSTEM;
  const StateFile::Lock lock(*process.file);
  const Slot* const slot = process.file->Allocate(
      context.card, process.file->state().cards[context.card].context_bytes, true, memory.get());
  if (slot == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  context.memory = Allocation::Hold(memory.get(), *slot);
  ProcessContexts& counted = process.file->ContextsOfThisProcess();
  ++counted.created;
  ++counted.live;
  return context.memory == nullptr ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

}  // namespace
}  // namespace lgpu::fake_cuda

using namespace lgpu::fake_cuda;

FAKE_EXPORT CUresult cuInit(unsigned flags) {
  Process& process = Process::This();
  if (process.file == nullptr) return CUDA_ERROR_NO_DEVICE;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(process.mutex);
  if (const int result = process.file->state().init_result; result != 0) return static_cast<CUresult>(result);
  if (process.pid != 0) return process.pid == ::getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
  process.cards = VisibleCards(process.file->state());
  if (process.cards.empty()) return CUDA_ERROR_NO_DEVICE;
  process.pid = ::getpid();
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDriverGetVersion(int* version) {
  const Process& process = Process::This();
  *version = process.file == nullptr ? 13000 : process.file->state().driver_version.load();
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGetErrorName(CUresult error, const char** name) {
  switch (static_cast<int>(error)) {
    case CUDA_SUCCESS:
      *name = "CUDA_SUCCESS";
      return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_VALUE:
      *name = "CUDA_ERROR_INVALID_VALUE";
      return CUDA_SUCCESS;
    case CUDA_ERROR_OUT_OF_MEMORY:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return CUDA_SUCCESS;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      return CUDA_SUCCESS;
    case CUDA_ERROR_LAUNCH_FAILED:
      *name = "CUDA_ERROR_LAUNCH_FAILED";
      return CUDA_SUCCESS;
    case CUDA_ERROR_UNKNOWN:
      *name = "CUDA_ERROR_UNKNOWN";
      return CUDA_SUCCESS;
    default:
      *name = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
}

FAKE_EXPORT CUresult cuDeviceGetCount(int* count) {
  FAKE_ENTER("cuDeviceGetCount");
  *count = static_cast<int>(process.cards.size());
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  FAKE_ENTER("cuDeviceGet");
  if (CardOf(ordinal) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  FAKE_ENTER("cuDeviceGetName");
  const Card* const card = FindCard(device);
  if (card == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<std::size_t>(length), "%s", card->name);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  FAKE_ENTER("cuDeviceGetUuid");
  const Card* const card = FindCard(device);
  if (card == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(uuid->bytes, card->uuid, sizeof(card->uuid));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  FAKE_ENTER("cuDeviceTotalMem");
  const Card* const card = FindCard(device);
  if (card == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = card->total;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice reader, CUdevice owner) {
  FAKE_ENTER("cuDeviceCanAccessPeer");
  if (CardOf(reader) < 0 || CardOf(owner) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *can = reader != owner && process.file->state().peers ? 1 : 0;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  FAKE_ENTER("cuDeviceGetAttribute");
  const Card* const card = FindCard(device);
  if (card == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  switch (static_cast<int>(attribute)) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = card->compute_major;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = card->compute_minor;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 132;
      break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      *value = 1;
      break;
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
      *value = process.file->state().reads_pageable ? 1 : 0;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  FAKE_ENTER("cuDeviceGetPCIBusId");
  const Card* const card = FindCard(device);
  if (card == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0", card->pci_bus);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* result, CUdevice device) {
  FAKE_ENTER("cuDevicePrimaryCtxRetain");
  const int card = CardOf(device);
  if (card < 0) return CUDA_ERROR_INVALID_DEVICE;
  std::unique_ptr<Context>& context = process.contexts[card];
  if (context == nullptr) {
    context = std::make_unique<Context>();
    context->card = card;
  }
  if (context->retained == 0) {
    if (const CUresult made = NewContext(process, *context); made != CUDA_SUCCESS) return made;
  }
  ++context->retained;
  *result = reinterpret_cast<CUcontext>(context.get());
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  FAKE_ENTER("cuDevicePrimaryCtxRelease");
  const auto context = process.contexts.find(CardOf(device));
  if (context == process.contexts.end() || context->second->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--context->second->retained == 0) {
    context->second->memory.reset();
    const StateFile::Lock state(*process.file);
    --process.file->ContextsOfThisProcess().live;
  }
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  FAKE_ENTER("cuCtxGetCurrent");
  const Contexts& stack = Process::ContextStack();
  *context = stack.empty() ? nullptr : reinterpret_cast<CUcontext>(stack.back());
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

FAKE_EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_ENTER("cuCtxGetStreamPriorityRange");
  Context* context = nullptr;
  if (const CUresult current = process.CurrentContext(&context, "cuCtxGetStreamPriorityRange");
      current != CUDA_SUCCESS) {
    return current;
  }
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}
