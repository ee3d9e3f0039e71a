// The calls of the fake NVML. It knows all cards, also those hidden by CUDA_VISIBLE_DEVICES, and lists the
// processes that have a context, with all their memory. What it shows of memory may be late
// (State::nvml_late).

#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "allocator/device/cuda/nvml_abi.h"
#include "tests/fake_cuda/fake_state.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

using lgpu::fake_cuda::Card;
using lgpu::fake_cuda::State;
using lgpu::fake_cuda::StateFile;
using lgpu::nvml::DeviceHandle;
using lgpu::nvml::MemoryV2;
using lgpu::nvml::PciInfoV3;
using lgpu::nvml::ProcessInfoLong;
using lgpu::nvml::Result;

namespace {

constexpr Result kUninitialised = 1, kInvalidArgument = 2, kNotFound = 6, kInsufficientSize = 7,
                 kDriverNotLoaded = 9;

// A handle is the card's number, from 1 on.
const Card* CardOf(DeviceHandle handle) {
  StateFile* const file = StateFile::OfThisProcess();
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (file == nullptr || number == 0 || number > static_cast<unsigned>(file->state().card_count)) {
    return nullptr;
  }
  return &file->state().cards[number - 1];
}

Result Copy(const char* text, char* to, unsigned length) {
  return static_cast<unsigned>(std::snprintf(to, length, "%s", text)) < length ? lgpu::nvml::kSuccess
                                                                               : kInsufficientSize;
}

}  // namespace

FAKE_EXPORT Result nvmlInit_v2() {
  StateFile* const file = StateFile::OfThisProcess();
  return file == nullptr || file->state().nvml_absent ? kDriverNotLoaded : lgpu::nvml::kSuccess;
}
FAKE_EXPORT Result nvmlShutdown() { return lgpu::nvml::kSuccess; }
FAKE_EXPORT const char* nvmlErrorString(Result result) {
  return result == lgpu::nvml::kSuccess ? "Success" : "An error of the fake NVML";
}
FAKE_EXPORT Result nvmlSystemGetDriverVersion(char* text, unsigned length) {
  StateFile* const file = StateFile::OfThisProcess();
  const int branch = file == nullptr ? 580 : file->state().driver_branch.load();
  return Copy((std::to_string(branch) + ".00.fake").c_str(), text, length);
}

FAKE_EXPORT Result nvmlDeviceGetCount_v2(unsigned* count) {
  StateFile* const file = StateFile::OfThisProcess();
  if (file == nullptr) return kUninitialised;
  *count = static_cast<unsigned>(file->state().card_count);
  return lgpu::nvml::kSuccess;
}

FAKE_EXPORT Result nvmlDeviceGetHandleByIndex_v2(unsigned index, DeviceHandle* handle) {
  auto* const made = reinterpret_cast<DeviceHandle>(std::uintptr_t{index} + 1);
  if (CardOf(made) == nullptr) return kInvalidArgument;
  *handle = made;
  return lgpu::nvml::kSuccess;
}

FAKE_EXPORT Result nvmlDeviceGetHandleByUUID(const char* uuid, DeviceHandle* handle) {
  StateFile* const file = StateFile::OfThisProcess();
  if (file == nullptr) return kUninitialised;
  for (int i = 0; i < file->state().card_count; ++i) {
    if (lgpu::fake_cuda::UuidText(file->state().cards[i]) == uuid) {
      return nvmlDeviceGetHandleByIndex_v2(static_cast<unsigned>(i), handle);
    }
  }
  return kNotFound;
}

FAKE_EXPORT Result nvmlDeviceGetUUID(DeviceHandle handle, char* text, unsigned length) {
  const Card* const card = CardOf(handle);
  return card == nullptr ? kInvalidArgument : Copy(lgpu::fake_cuda::UuidText(*card).c_str(), text, length);
}

FAKE_EXPORT Result nvmlDeviceGetName(DeviceHandle handle, char* text, unsigned length) {
  const Card* const card = CardOf(handle);
  return card == nullptr ? kInvalidArgument : Copy(card->name, text, length);
}

FAKE_EXPORT Result nvmlDeviceGetPciInfo_v3(DeviceHandle handle, PciInfoV3* pci) {
  const Card* const card = CardOf(handle);
  if (card == nullptr) return kInvalidArgument;
  std::memset(pci, 0, sizeof(*pci));
  pci->bus = card->pci_bus;
  std::snprintf(pci->bus_id, sizeof(pci->bus_id), "00000000:%02X:00.0", card->pci_bus);
  return lgpu::nvml::kSuccess;
}

FAKE_EXPORT Result nvmlDeviceGetIndex(DeviceHandle handle, unsigned* index) {
  *index = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(handle)) - 1;
  return CardOf(handle) == nullptr ? kInvalidArgument : lgpu::nvml::kSuccess;
}
FAKE_EXPORT Result nvmlDeviceGetMinorNumber(DeviceHandle handle, unsigned* minor) {
  return nvmlDeviceGetIndex(handle, minor);
}

namespace {

/// What one call of a process found, by card. The machine's lock guards it.
template <typename Found>
class Readings {
 public:
  /// What the call found State::nvml_late calls ago, and until then what its first call found.
  const Found& Shown(const State& state, const Card* card, Found now) {
    std::deque<Found>& found = by_card_[card];
    found.push_back(std::move(now));
    while (found.size() > static_cast<std::size_t>(state.nvml_late) + 1) found.pop_front();
    return found.front();
  }

 private:
  std::map<const Card*, std::deque<Found>> by_card_;
};

Result MemoryInfo(DeviceHandle handle, MemoryV2* memory) {
  const Card* const card = CardOf(handle);
  if (card == nullptr) return kInvalidArgument;
  StateFile& file = *StateFile::OfThisProcess();
  const StateFile::Lock lock(file);
  if (const int result = file.TakeFault("nvmlDeviceGetMemoryInfo"); result != 0) return result;
  file.Sweep();
  ++file.state().calls[file.IndexOfCall("nvmlDeviceGetMemoryInfo")].count;
  static auto* const readings = new Readings<std::uint64_t>;
  memory->total = card->total + card->reserved;
  memory->reserved = card->reserved;
  memory->used = readings->Shown(file.state(), card, card->used);
  memory->free = card->total - memory->used;
  return lgpu::nvml::kSuccess;
}

// The bytes of the card that each process with a context has: contexts and all memory that it made, also
// where another process maps it. Memory that a process without a context made is listed for no process.
std::map<int, std::uint64_t> UseOf(StateFile& file, const Card* card) {
  std::map<int, std::uint64_t> used;
  std::set<int> with_context;
  for (const lgpu::fake_cuda::Slot& slot : file.state().slots) {
    if (!slot.used || &file.state().cards[slot.card] != card) continue;
    used[slot.pid] += slot.charged;
    if (slot.is_context) with_context.insert(slot.pid);
  }
  std::erase_if(used, [&](const auto& entry) { return with_context.count(entry.first) == 0; });
  return used;
}

// Entries of `each` bytes, of which an older one is the first part.
Result Processes(DeviceHandle handle, unsigned* count, void* infos, std::size_t each) {
  const Card* const card = CardOf(handle);
  if (card == nullptr) return kInvalidArgument;
  StateFile& file = *StateFile::OfThisProcess();
  const StateFile::Lock lock(file);
  file.Sweep();
  static auto* const readings = new Readings<std::map<int, std::uint64_t>>;
  unsigned found = 0;
  for (const auto& [pid, bytes] : readings->Shown(file.state(), card, UseOf(file, card))) {
    if (found < *count) {
      const ProcessInfoLong info = {{static_cast<unsigned>(pid), bytes, 0xffffffff, 0xffffffff}, 0};
      std::memcpy(static_cast<char*>(infos) + found * each, &info, each);
    }
    ++found;
  }
  const bool fits = found <= *count;
  *count = found;
  return fits ? lgpu::nvml::kSuccess : kInsufficientSize;
}

Result NoProcesses(DeviceHandle handle, unsigned* count) {
  *count = 0;
  return CardOf(handle) == nullptr ? kInvalidArgument : lgpu::nvml::kSuccess;
}

constexpr std::size_t kInfoV1 = 16;  // pid and bytes

}  // namespace

FAKE_EXPORT Result nvmlDeviceGetMemoryInfo(DeviceHandle handle, lgpu::nvml::MemoryV1* memory) {
  MemoryV2 all{};
  if (memory == nullptr) return kInvalidArgument;
  if (const Result result = MemoryInfo(handle, &all); result != lgpu::nvml::kSuccess) return result;
  *memory = {all.total, all.free, all.used + all.reserved};
  return lgpu::nvml::kSuccess;
}
FAKE_EXPORT Result nvmlDeviceGetComputeRunningProcesses(DeviceHandle handle, unsigned* count, void* infos) {
  return Processes(handle, count, infos, kInfoV1);
}
FAKE_EXPORT Result nvmlDeviceGetComputeRunningProcesses_v2(DeviceHandle handle, unsigned* count,
                                                           void* infos) {
  return Processes(handle, count, infos, sizeof(ProcessInfoLong::info));
}
// A library of its own, built with LGPU_FAKE_NVML_OLD, is one of before R510.
#ifndef LGPU_FAKE_NVML_OLD
FAKE_EXPORT Result nvmlDeviceGetMemoryInfo_v2(DeviceHandle handle, MemoryV2* memory) {
  const bool is_known = memory != nullptr && memory->version == MemoryV2::kVersion;
  return is_known ? MemoryInfo(handle, memory) : kInvalidArgument;
}
FAKE_EXPORT Result nvmlDeviceGetComputeRunningProcesses_v3(DeviceHandle handle, unsigned* count,
                                                           void* infos) {
  const bool is_long = StateFile::OfThisProcess()->state().long_process_entries;
  return Processes(handle, count, infos, is_long ? sizeof(ProcessInfoLong) : sizeof(ProcessInfoLong::info));
}
FAKE_EXPORT Result nvmlDeviceGetGraphicsRunningProcesses_v3(DeviceHandle handle, unsigned* count, void*) {
  return NoProcesses(handle, count);
}
FAKE_EXPORT Result nvmlDeviceGetMPSComputeRunningProcesses_v3(DeviceHandle handle, unsigned* count, void*) {
  return NoProcesses(handle, count);
}
#endif
FAKE_EXPORT Result nvmlDeviceGetGraphicsRunningProcesses(DeviceHandle handle, unsigned* count, void*) {
  return NoProcesses(handle, count);
}

FAKE_EXPORT Result nvmlSystemGetCudaDriverVersion_v2(int* version) {
  StateFile* const file = StateFile::OfThisProcess();
  if (file == nullptr) return kUninitialised;
  *version = file->state().driver_version;
  return lgpu::nvml::kSuccess;
}
FAKE_EXPORT Result nvmlSystemGetCudaDriverVersion(int* version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}
FAKE_EXPORT Result nvmlSystemGetNVMLVersion(char* text, unsigned length) {
  return Copy("13.580.00", text, length);
}
FAKE_EXPORT Result nvmlInit() { return nvmlInit_v2(); }
FAKE_EXPORT Result nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }
FAKE_EXPORT Result nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }
FAKE_EXPORT Result nvmlDeviceGetHandleByIndex(unsigned index, DeviceHandle* handle) {
  return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

FAKE_EXPORT Result nvmlDeviceGetCudaComputeCapability(DeviceHandle handle, int* major, int* minor) {
  const Card* const card = CardOf(handle);
  if (card == nullptr) return kInvalidArgument;
  *major = card->compute_major;
  *minor = card->compute_minor;
  return lgpu::nvml::kSuccess;
}

FAKE_EXPORT Result nvmlDeviceGetComputeMode(DeviceHandle handle, int* mode) {
  if (CardOf(handle) == nullptr) return kInvalidArgument;
  *mode = StateFile::OfThisProcess()->state().compute_mode;
  return lgpu::nvml::kSuccess;
}
