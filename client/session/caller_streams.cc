#include "client/session/caller_streams.h"

#include <algorithm>

#include "base/this_thread.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

constexpr std::uintptr_t kLegacyStream = 1;
constexpr std::uintptr_t kPerThreadStream = 2;
// No address of a program has it.
constexpr std::uint64_t kThreadBit = std::uint64_t{1} << 63;

}  // namespace

std::uint64_t CallerStreams::KeyOf(void* stream) {
  const auto value = reinterpret_cast<std::uintptr_t>(stream);
  if (value == 0) return kLegacyStream;
  return value == kPerThreadStream ? kThreadBit | ThisThread::Number() : value;
}

// Number 0 is taken from its stream by Forget alone, which no use of the stream runs beside: it needs no pin.
bool CallerStreams::FindKnown(std::uint64_t key, Use& use) {
  const StreamId end = end_.load(std::memory_order_acquire);
  for (StreamId id = 0; id < end; ++id) {
    Slot& slot = slots_[id];
    if (slot.key.load(std::memory_order_acquire) != key) continue;
    use.id_ = id;
    if (id == 0) return true;
    // A thread that takes the number clears the key before it reads the pins.
    slot.pins.fetch_add(1, std::memory_order_seq_cst);
    if (slot.key.load(std::memory_order_seq_cst) == key) {
      use.pins_ = &slot.pins;
      slot.used_at.store(tick_.load(std::memory_order_relaxed), std::memory_order_relaxed);
      return true;
    }
    slot.pins.fetch_sub(1, std::memory_order_release);
  }
  return false;
}

absl::Status CallerStreams::Find(void* stream, Use& use) {
  const std::uint64_t key = KeyOf(stream);
  if (FindKnown(key, use)) [[likely]]
    return absl::OkStatus();
  const MutexLock lock(mutex_);
  if (FindKnown(key, use)) return absl::OkStatus();
  tick_.fetch_add(1, std::memory_order_relaxed);
  LGPU_ASSIGN_OR_RETURN(const StreamHandle handle, backend_.AdoptStream(device_, stream));
  absl::StatusOr<StreamId> id = pool_.AddStream(handle);
  while (absl::IsResourceExhausted(id.status())) {
    const absl::StatusOr<bool> removed = RemoveOldest();
    if (!removed.ok() || !*removed) {
      id = removed.ok() ? id.status() : removed.status();
      break;
    }
    id = pool_.AddStream(handle);
  }
  if (!id.ok()) {
    backend_.DestroyStream(handle).IgnoreError();
    return id.status();
  }
  Slot& slot = slots_[*id];
  slot.handle = handle;
  slot.stream = stream;
  slot.used_at.store(tick_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  use.id_ = *id;
  if (*id != 0) {
    slot.pins.fetch_add(1, std::memory_order_relaxed);
    use.pins_ = &slot.pins;
  }
  slot.key.store(key, std::memory_order_release);
  end_.store(std::max(end_.load(std::memory_order_relaxed), *id + 1), std::memory_order_release);
  return absl::OkStatus();
}

// A drained stream has no work left to be ordered behind: the next stream with
// the number need not wait for it.
absl::Status CallerStreams::Remove(StreamId id, std::uint64_t key) {
  Slot& slot = slots_[id];
  const absl::Status drained = pool_.RemoveStream(id);
  if (!drained.ok()) {
    slot.key.store(key, std::memory_order_release);
    return drained;
  }
  slot.stream = nullptr;
  return backend_.DestroyStream(std::exchange(slot.handle, {}));
}

absl::StatusOr<bool> CallerStreams::RemoveOldest() {
  // Copies: other threads go on using their streams, and a sort needs an order that stays.
  std::vector<std::pair<std::uint32_t, StreamId>> by_age;
  for (StreamId id = 1; id < end_.load(std::memory_order_relaxed); ++id) {
    const Slot& slot = slots_[id];
    if (slot.key.load(std::memory_order_relaxed) == kNoKey) continue;
    by_age.emplace_back(slot.used_at.load(std::memory_order_relaxed), id);
  }
  std::sort(by_age.begin(), by_age.end());
  for (const auto& [used_at, id] : by_age) {
    Slot& slot = slots_[id];
    const std::uint64_t key = slot.key.exchange(kNoKey, std::memory_order_seq_cst);
    if (slot.pins.load(std::memory_order_seq_cst) == 0) {
      LGPU_RETURN_IF_ERROR(Remove(id, key));
      return true;
    }
    slot.key.store(key, std::memory_order_release);
  }
  return false;
}

absl::Status CallerStreams::Drain(void* stream) {
  LGPU_ASSIGN_OR_RETURN(const StreamHandle handle, backend_.AdoptStream(device_, stream));
  absl::Status drained = backend_.Drain(handle);
  drained.Update(backend_.DestroyStream(handle));
  return drained;
}

absl::Status CallerStreams::Forget(void* stream) {
  const std::uint64_t key = KeyOf(stream);
  const MutexLock lock(mutex_);
  for (StreamId id = 0; id < end_.load(std::memory_order_relaxed); ++id) {
    Slot& slot = slots_[id];
    if (slot.key.load(std::memory_order_relaxed) != key) continue;
    slot.key.store(kNoKey, std::memory_order_seq_cst);
    return Remove(id, key);
  }
  return absl::OkStatus();
}

absl::Status CallerStreams::RemoveAll() {
  const MutexLock lock(mutex_);
  absl::Status status;
  for (StreamId id = 0; id < end_.load(std::memory_order_relaxed); ++id) {
    const std::uint64_t key = slots_[id].key.exchange(kNoKey, std::memory_order_seq_cst);
    if (key != kNoKey) status.Update(Remove(id, key));
  }
  return status;
}

std::vector<void*> CallerStreams::Streams() const {
  const MutexLock lock(mutex_);
  std::vector<void*> streams;
  for (StreamId id = 0; id < end_.load(std::memory_order_relaxed); ++id) streams.push_back(slots_[id].stream);
  return streams;
}

}  // namespace lgpu
