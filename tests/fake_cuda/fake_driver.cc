// The calls of the fake driver: start and devices.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "lgpu/visibility.h"
#include "tests/fake_cuda/fake_calls.h"
#include "tests/fake_cuda/fake_checkpoint.h"
#include "tests/fake_cuda/fake_libraries.h"

namespace lgpu::fake_cuda {

Inside::Inside() : result_(Enter()) {}

Inside::Inside(Call& call) : result_(Enter()) {
  Process& process = Process::This();
  if (result_ == CUDA_ERROR_NOT_INITIALIZED) {
    // cuda.h: every call but cuInit gives NOT_INITIALIZED before cuInit. A driver that was started does not
    // work in forked children.
    process.Break(process.pid == 0 ? "call-before-init" : "call-after-fork", call.name);
  }
  if (result_ != CUDA_SUCCESS) return;
  CountCall(*process.file, call);
  if (!process.file->state().has_faults) return;
  const StateFile::Lock lock(*process.file);
  result_ = static_cast<CUresult>(process.file->TakeFault(call.name));
}

Inside::~Inside() {
  if (is_counted_) Process::This().gate.Leave();
}

CUresult Inside::Enter() {
  Process& process = Process::This();
  if (process.file == nullptr) return CUDA_ERROR_NO_DEVICE;
  if (process.pid == 0 || process.epoch.IsForked()) return CUDA_ERROR_NOT_INITIALIZED;
  process.gate.Enter();
  is_counted_ = true;
  return CUDA_SUCCESS;
}

void CountCall(StateFile& file, Call& call) {
  int index = call.index;
  if (index < 0) {
    const StateFile::Lock lock(file);
    call.index = index = file.IndexOfCall(call.name);
  }
  ++file.state().calls[index].count;
}

int EnterLibrary(const char* name) {
  Call call{name};
  const Inside inside(call);
  if (inside.result() != CUDA_SUCCESS) return static_cast<int>(inside.result());
  Process& process = Process::This();
  const std::lock_guard lock(process.mutex);
  Context* context = nullptr;
  return static_cast<int>(process.CurrentContext(&context, name));
}

bool HasContext() {
  Process& process = Process::This();
  const std::lock_guard lock(process.mutex);
  const std::vector<int>& cards = process.cards;
  return std::any_of(cards.begin(), cards.end(), [&](int card) { return process.HasContext(card); });
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
  process.epoch = lgpu::ProcessEpoch();
  ServeCheckpoints(process);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDriverGetVersion(int* version) {
  const Process& process = Process::This();
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = process.file == nullptr ? 13000 : process.file->state().driver_version.load();
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetCount(int* count) {
  FAKE_ENTER("cuDeviceGetCount");
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(process.cards.size());
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  FAKE_ENTER("cuDeviceGet");
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CardOf(ordinal) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  FAKE_ENTER("cuDeviceGetName");
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  const Card* const card = FindCard(device);
  if (card == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<std::size_t>(length), "%s", card->name);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  FAKE_ENTER("cuDeviceGetUuid");
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Card* const card = FindCard(device);
  if (card == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(uuid->bytes, card->uuid, sizeof(card->uuid));
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return cuDeviceGetUuid_v2(uuid, device);
}

FAKE_EXPORT CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  FAKE_ENTER("cuDeviceTotalMem");
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Card* const card = FindCard(device);
  if (card == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = card->total;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice reader, CUdevice owner) {
  FAKE_ENTER("cuDeviceCanAccessPeer");
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CardOf(reader) < 0 || CardOf(owner) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *can = reader != owner && process.file->state().peers ? 1 : 0;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  FAKE_ENTER("cuDeviceGetPCIBusId");
  if (text == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  const Card* const card = FindCard(device);
  if (card == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0", card->pci_bus);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  FAKE_ENTER("cuDeviceGetByPCIBusId");
  if (device == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned domain = 0, bus = 0;
  if (std::sscanf(text, "%x:%x:", &domain, &bus) != 2) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < process.cards.size(); ++i) {
    *device = static_cast<CUdevice>(i);
    if (FindCard(*device)->pci_bus == bus) return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}
