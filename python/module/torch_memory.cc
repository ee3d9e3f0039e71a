#include "python/module/torch_memory.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lgpu/memory.h"
#include "lgpu/refusal.h"
#include "python/module/bind.h"
#include "python/module/errors.h"
#include "python/module/lock.h"
#include "python/module/memory.h"
#include "python/module/torch_errors.h"

namespace lgpu::python {

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

std::string TextOf(const absl::Status& status) { return {status.message().data(), status.message().size()}; }

std::string Hex(const void* address) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "%p", address);
  return text.data();
}

/// A Slot is the memory that a pair of functions works on. It keeps the memory until lgpu.torch has left it
/// and all of its blocks are freed: PyTorch frees tensors of a pool after the pool. Thread-safe; with the
/// interpreter's lock or without it.
class Slot {
 public:
  /// False: it is taken.
  bool Take(std::shared_ptr<const LogicalMemory> memory) {
    const std::lock_guard lock(mutex_);
    if (memory_ != nullptr) return false;
    memory_ = std::move(memory);
    users_ = 1;
    is_left_ = false;
    return true;
  }
  /// Allocates no more. After Take.
  void Leave() {
    {
      const std::lock_guard lock(mutex_);
      is_left_ = true;
    }
    RemoveUser();
  }

  void* Allocate(ssize_t size, void* stream) {
    const LogicalMemory* const memory = AddUser();
    if (memory == nullptr) throw std::runtime_error("this allocator of lgpu.torch has ended");
    const Bytes bytes(static_cast<std::uint64_t>(size));
    absl::StatusOr<Block> block =
        memory->Allocate(bytes, {.stream = stream, .tag = "torch", .only_if_ready = true});
    if (absl::IsResourceExhausted(block.status())) {
      const WithoutLockIfHeld without_lock;
      block = memory->Allocate(bytes, {.stream = stream, .tag = "torch"});
    }
    if (block.ok()) return block->address;
    RemoveUser();
    const std::string text = TextOf(block.status());
    if (GetRefusal(block.status())) ThrowTorchOutOfMemory(text);
    throw std::runtime_error(text);
  }

  // PyTorch frees in destructors, where nothing can be thrown. A forked child has nothing to free.
  void Free(void* address, void* stream) {
    const LogicalMemory* memory = nullptr;
    std::vector<void*> recorded;
    {
      const std::lock_guard lock(mutex_);
      memory = memory_.get();
      if (const auto found = recorded_.find(address); found != recorded_.end()) {
        recorded = std::move(found->second);
        recorded_.erase(found);
      }
    }
    if (memory == nullptr) return Report(address, "this allocator of lgpu.torch has ended");
    absl::Status status;
    {
      const WithoutLockIfHeld without_lock;
      for (void* const other : recorded) status.Update(memory->UseOn(address, other));
      if (status.ok()) status = memory->Free(address, stream);
    }
    if (status.ok()) return RemoveUser();
    if (!absl::IsFailedPrecondition(status)) Report(address, TextOf(status));
  }

  /// Work on `stream` uses the block until it is freed. INVALID_ARGUMENT: it is not a block of this memory.
  absl::Status RecordStream(void* address, void* stream) {
    const std::lock_guard lock(mutex_);
    if (memory_ == nullptr) return absl::InvalidArgumentError("");
    if (const auto found = memory_->Find(address); !found.ok()) return found.status();
    std::vector<void*>& streams = recorded_[address];
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
    return absl::OkStatus();
  }

  void Trim() {
    const LogicalMemory* const memory = AddUser();
    if (memory == nullptr) return;
    {
      const WithoutLockIfHeld without_lock;
      memory->Trim().IgnoreError();  // a hint; nothing is wrong if it was not heard
    }
    RemoveUser();
  }

 private:
  static void Report(const void* address, const std::string& why) {
    std::fprintf(stderr, "lgpu.torch: the memory at %s was not freed: %s\n", Hex(address).c_str(),
                 why.c_str());
  }

  /// The memory, which stays until RemoveUser. Null: lgpu.torch has left it.
  const LogicalMemory* AddUser() {
    const std::lock_guard lock(mutex_);
    if (memory_ == nullptr || is_left_) return nullptr;
    ++users_;
    return memory_.get();
  }
  void RemoveUser() {
    std::shared_ptr<const LogicalMemory> last;
    {
      const std::lock_guard lock(mutex_);
      if (--users_ == 0) last = std::move(memory_);
    }
    if (last != nullptr) LetGo(std::const_pointer_cast<LogicalMemory>(std::move(last)));
  }

  std::mutex mutex_;  // guards what is below
  std::shared_ptr<const LogicalMemory> memory_;
  std::uint64_t users_ = 0;  // lgpu.torch, each block, and calls that run
  bool is_left_ = false;
  std::unordered_map<void*, std::vector<void*>> recorded_;
};

constexpr int kMostDevices = 64;
constexpr std::size_t kPools = 16;

// Tables of the process: the functions have no other way to their memory. Never destroyed, for PyTorch frees
// tensors until the process ends.
std::array<Slot, kMostDevices>& by_device = *new std::array<Slot, kMostDevices>;
std::array<Slot, kPools>& pools = *new std::array<Slot, kPools>;

Slot& SlotOf(int device) {
  if (device >= 0 && device < kMostDevices) return by_device[static_cast<std::size_t>(device)];
  throw std::runtime_error("PyTorch names CUDA device " + std::to_string(device) +
                           "; lgpu.torch knows 0 to 63");
}

template <std::size_t kPool>
void* AllocateInPool(ssize_t size, void* stream) {
  return size == 0 ? nullptr : pools[kPool].Allocate(size, stream);
}

/// Takes the functions of a free pool; the result is the pool's index.
int TakePool(const PyMemory& memory) {
  for (std::size_t i = 0; i < kPools; ++i) {
    if (pools[i].Take(memory.get())) return static_cast<int>(i);
  }
  throw StatusError(
      absl::ResourceExhaustedError("16 pools of lgpu.torch are in use, and there are no more; a pool is free "
                                   "again when its Context is gone and "
                                   "its tensors are"));
}

/// Memory of others is not looked after here, as PyTorch's own allocator ignores it.
void RecordStream(void* address, void* stream) {
  if (address == nullptr) return;
  for (Slot& slot : by_device) {
    const absl::Status status = slot.RecordStream(address, stream);
    if (status.ok()) return;
    if (!absl::IsInvalidArgument(status)) throw std::runtime_error(TextOf(status));
  }
}

}  // namespace

void BindTorch(nb::module_& module) {
  module.def(
      "torch_find_errors",
      [](const std::vector<std::string>& libraries) { Check(FindTorchErrors(libraries)); }, "libraries"_a,
      "Finds PyTorch's out-of-memory error in its loaded libraries.");
  module.def(
      "torch_use",
      [](int device, const PyMemory& memory) {
        if (SlotOf(device).Take(memory.get())) return;
        throw StatusError(absl::FailedPreconditionError("lgpu.torch has memory of CUDA device " +
                                                        std::to_string(device) + " already"));
      },
      "device"_a, "memory"_a, "lgpu_torch_malloc gives this memory for a CUDA device.");
  module.def(
      "torch_leave", [](int device) { SlotOf(device).Leave(); }, "device"_a,
      "lgpu_torch_malloc gives memory for the device no more. After torch_use.");
  module.def("torch_take_pool", &TakePool, "memory"_a, "The number of a pair of functions for a MemPool.");
  module.def(
      "torch_leave_pool", [](int pool) { pools.at(static_cast<std::size_t>(pool)).Leave(); }, "pool"_a,
      "The functions give no more memory. After torch_take_pool.");
}

}  // namespace lgpu::python

void* lgpu_torch_malloc(ssize_t size, int device, void* stream) {
  return size == 0 ? nullptr : lgpu::python::SlotOf(device).Allocate(size, stream);
}
void lgpu_torch_free(void* address, ssize_t /*size*/, int device, void* stream) {
  if (address != nullptr) lgpu::python::SlotOf(device).Free(address, stream);
}
// PyTorch does not say the device here.
void lgpu_torch_record_stream(void* address, void* stream) { lgpu::python::RecordStream(address, stream); }
void lgpu_torch_empty_cache() {
  for (lgpu::python::Slot& slot : lgpu::python::by_device) slot.Trim();
}
void lgpu_torch_memory_fraction(double /*fraction*/, int device) {
  throw std::runtime_error(
      "set_per_process_memory_fraction does not go with lgpu.torch.enable: the limit of CUDA device " +
      std::to_string(device) + " is its logical GPU's; change it with Context.resize");
}
void lgpu_torch_no_pools() {
  throw std::runtime_error(
      "CUDA graphs and MemPools do not go with lgpu.torch.enable, which would hand their memory out again; "
      "use "
      "lgpu.torch.pool instead");
}

#define LGPU_TORCH_POOL(n)                                                                                \
  extern "C" LGPU_TORCH_EXPORT void* lgpu_torch_pool_malloc_##n(ssize_t size, int, void* stream) {        \
    return lgpu::python::AllocateInPool<n>(size, stream);                                                 \
  }                                                                                                       \
  extern "C" LGPU_TORCH_EXPORT void lgpu_torch_pool_free_##n(void* address, ssize_t, int, void* stream) { \
    if (address != nullptr) lgpu::python::pools[n].Free(address, stream);                                 \
  }
LGPU_TORCH_POOL(0)
LGPU_TORCH_POOL(1)
LGPU_TORCH_POOL(2)
LGPU_TORCH_POOL(3)
LGPU_TORCH_POOL(4)
LGPU_TORCH_POOL(5)
LGPU_TORCH_POOL(6)
LGPU_TORCH_POOL(7)
LGPU_TORCH_POOL(8)
LGPU_TORCH_POOL(9)
LGPU_TORCH_POOL(10)
LGPU_TORCH_POOL(11)
LGPU_TORCH_POOL(12)
LGPU_TORCH_POOL(13)
LGPU_TORCH_POOL(14)
LGPU_TORCH_POOL(15)
#undef LGPU_TORCH_POOL
