#include "allocator/device/backend_fences.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

namespace lgpu {

absl::StatusOr<StreamId> BackendFences::Add(StreamHandle stream) {
  const MutexLock lock(mutex_);
  const auto free = std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.stream; });
  const auto id = static_cast<StreamId>(free - slots_.begin());
  if (id == kMaxStreams) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this device has ", kMaxStreams,
                     " streams already, which is the most\n"
                     "  try: give up a stream that is not used any more, or use one of them again"));
  }
  if (free == slots_.end()) slots_.emplace_back();
  slots_[id].stream = stream;
  return id;
}

absl::Status BackendFences::Remove(StreamId stream) {
  LGPU_ASSIGN_OR_RETURN(const Slot slot, Find(stream));
  if (!slot.stream) return absl::InvalidArgumentError(absl::StrCat("number ", stream, " has no stream"));
  LGPU_RETURN_IF_ERROR(backend_.Drain(slot.stream));
  const MutexLock lock(mutex_);
  Slot& removed = slots_[stream];
  removed.last = std::max(removed.last, removed.base);
  removed.base = removed.last + 1;
  removed.stream = {};
  return absl::OkStatus();
}

// Waits for fences, because the pool's next Record on a stream without later work returns the same fence.
// After a Drain that fence would be new, and the driver may not know yet that it has passed.
absl::Status BackendFences::WaitForAll() {
  std::size_t streams = 0;
  {
    const MutexLock lock(mutex_);
    streams = slots_.size();
  }
  for (std::size_t i = 0; i < streams; ++i) {
    const auto stream = static_cast<StreamId>(i);
    LGPU_ASSIGN_OR_RETURN(const std::uint64_t value, Record(stream));
    LGPU_RETURN_IF_ERROR(Wait(stream, value));
  }
  return absl::OkStatus();
}

absl::StatusOr<BackendFences::Slot> BackendFences::Find(StreamId stream) const {
  const MutexLock lock(mutex_);
  if (stream < slots_.size()) return slots_[stream];
  return absl::InvalidArgumentError(
      absl::StrCat("stream ", stream, " was named; this device has ", slots_.size()));
}

// Another thread may have removed the stream during the call of the backend.
bool BackendFences::IsOfRemoved(StreamId stream, std::uint64_t value) const {
  const MutexLock lock(mutex_);
  return value < slots_[stream].base;
}

absl::StatusOr<std::uint64_t> BackendFences::Record(StreamId stream) {
  LGPU_ASSIGN_OR_RETURN(const Slot slot, Find(stream));
  if (!slot.stream) return slot.last;
  const absl::StatusOr<Fence> fence = backend_.Record(slot.stream);
  const MutexLock lock(mutex_);
  Slot& now = slots_[stream];
  if (now.base != slot.base) return now.base - 1;  // the stream was removed after all its work was done
  if (!fence.ok()) return fence.status();
  now.last = std::max(now.last, slot.base + fence->sequence);
  return slot.base + fence->sequence;
}

absl::StatusOr<bool> BackendFences::HasPassed(StreamId stream, std::uint64_t value) {
  LGPU_ASSIGN_OR_RETURN(const Slot slot, Find(stream));
  if (value < slot.base) return true;
  const absl::StatusOr<bool> passed = backend_.HasPassed({slot.stream, value - slot.base});
  if (!passed.ok() && IsOfRemoved(stream, value)) return true;
  return passed;
}

absl::Status BackendFences::Wait(StreamId stream, std::uint64_t value) {
  LGPU_ASSIGN_OR_RETURN(const Slot slot, Find(stream));
  if (value < slot.base) return absl::OkStatus();
  const absl::Status status = backend_.Wait({slot.stream, value - slot.base});
  return IsOfRemoved(stream, value) ? absl::OkStatus() : status;
}

absl::Status BackendFences::Order(StreamId waiter, StreamId stream, std::uint64_t value) {
  LGPU_ASSIGN_OR_RETURN(const Slot slot, Find(stream));
  LGPU_ASSIGN_OR_RETURN(const Slot waiting, Find(waiter));
  if (value < slot.base) return absl::OkStatus();
  const absl::Status status = backend_.WaitOnStream(waiting.stream, {slot.stream, value - slot.base});
  return IsOfRemoved(stream, value) ? absl::OkStatus() : status;
}

}  // namespace lgpu
