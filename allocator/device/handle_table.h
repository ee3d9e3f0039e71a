#ifndef LGPU_ALLOCATOR_DEVICE_HANDLE_TABLE_H_
#define LGPU_ALLOCATOR_DEVICE_HANDLE_TABLE_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/device/backend_checks.h"
#include "base/mutex.h"
#include "lgpu/status.h"

namespace lgpu {

/// A HandleTable keeps the values of one kind that a backend gives handles of. A handle is slot + kLimit *
/// generation; the generation rises with every insertion, so a handle whose value was removed stays NOT_FOUND
/// although its slot is used again. Handle is an Id; Value can be copied, and is cheap to copy.
///
/// Thread-safe; `Contains` takes no lock. The destructor destroys the values that are left.
template <typename Handle, typename Value, std::size_t kLimit>
class HandleTable {
 public:
  explicit HandleTable(const HandleWords& words) : words_(words) {}
  ~HandleTable() {
    for (const std::atomic<Slot*>& block : blocks_) delete[] block.load(std::memory_order_relaxed);
  }
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  /// RESOURCE_EXHAUSTED when there are kLimit values.
  absl::StatusOr<Handle> Insert(Value value) {
    MutexLock lock(mutex_);
    std::size_t index = used_;
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else if (index == kLimit) {
      return TooManyHandlesError(words_, kLimit);
    } else {
      if (index % kBlock == 0) blocks_[index / kBlock].store(new Slot[kBlock], std::memory_order_release);
      ++used_;
    }
    Slot& slot = SlotAt(index);
    slot.value = std::move(value);
    const Handle handle{++generation_ * kLimit + index};
    slot.handle.store(handle.value, std::memory_order_release);
    return handle;
  }

  /// NOT_FOUND for a handle without a value.
  absl::Status Contains(Handle handle) const {
    const Slot* const block = blocks_[handle.value % kLimit / kBlock].load(std::memory_order_acquire);
    const bool known = handle && block != nullptr &&
                       block[handle.value % kBlock].handle.load(std::memory_order_acquire) == handle.value;
    return known ? absl::OkStatus() : UnknownHandleError(words_, handle.value);
  }

  /// A copy of the value.
  absl::StatusOr<Value> Find(Handle handle) const {
    MutexLock lock(mutex_);
    LGPU_RETURN_IF_ERROR(Contains(handle));
    return SlotAt(handle.value % kLimit).value;
  }

  /// Takes the value out.
  absl::StatusOr<Value> Remove(Handle handle) {
    return RemoveIf(handle, [](const Value&) { return absl::OkStatus(); });
  }
  /// Takes the value out, if `check(value)` is OK; else its error. `check` runs under the table's lock.
  template <typename Check>
  absl::StatusOr<Value> RemoveIf(Handle handle, Check check) {
    MutexLock lock(mutex_);
    LGPU_RETURN_IF_ERROR(Contains(handle));
    Slot& slot = SlotAt(handle.value % kLimit);
    LGPU_RETURN_IF_ERROR(check(std::as_const(slot.value)));
    slot.handle.store(0, std::memory_order_release);
    free_.push_back(handle.value % kLimit);
    return std::exchange(slot.value, Value());
  }

  /// Runs `change(value)` under the table's lock; its status.
  template <typename Change>
  absl::Status Update(Handle handle, Change change) {
    MutexLock lock(mutex_);
    LGPU_RETURN_IF_ERROR(Contains(handle));
    return change(SlotAt(handle.value % kLimit).value);
  }

  /// All values with their handles, copied.
  std::vector<std::pair<Handle, Value>> All() const {
    MutexLock lock(mutex_);
    std::vector<std::pair<Handle, Value>> all;
    for (std::size_t i = 0; i < used_; ++i) {
      const Handle handle{SlotAt(i).handle.load(std::memory_order_relaxed)};
      if (handle) all.emplace_back(handle, SlotAt(i).value);
    }
    return all;
  }

  /// Never destroys the values: for a forked child, which has none of the objects that they own. Takes no
  /// lock, because the lock's owner may not exist in this process. No other call follows.
  void Forget() {
    for (std::atomic<Slot*>& block : blocks_) block.store(nullptr, std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t kBlock = std::min<std::size_t>(kLimit, 1024);
  static_assert(std::has_single_bit(kLimit));
  struct Slot {
    std::atomic<std::uint64_t> handle{0};
    Value value{};  // guarded by the table's mutex_
  };

  Slot& SlotAt(std::size_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return blocks_[index / kBlock].load(std::memory_order_relaxed)[index % kBlock];
  }

  const HandleWords words_;
  // Slots are made block by block and stay where they are.
  std::array<std::atomic<Slot*>, kLimit / kBlock> blocks_{};
  mutable Mutex mutex_;
  std::size_t used_ ABSL_GUARDED_BY(mutex_) = 0;  // slots that ever had a value
  std::vector<std::size_t> free_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_HANDLE_TABLE_H_
