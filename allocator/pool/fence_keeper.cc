#include "allocator/pool/fence_keeper.h"

#include <bit>
#include <optional>
#include <utility>
#include <vector>

#include "base/interrupt.h"
#include "lgpu/status.h"

namespace lgpu {

absl::Status FenceKeeper::Record() {
  for (;;) {
    std::optional<StreamOrder::Closing> closing;
    {
      MutexLock lock(state_.mutex);
      state_.RebaseStamps();
      closing = state_.order.Close();
    }
    if (!closing) return absl::OkStatus();
    std::vector<StreamOrder::Fence> recorded;
    absl::Status status;
    for (StreamOrder::Streams left = state_.fences != nullptr ? closing->streams : 0;
         left != 0 && status.ok(); left &= left - 1) {
      const auto stream = static_cast<StreamId>(std::countr_zero(left));
      const absl::StatusOr<std::uint64_t> value = state_.fences->Record(stream);
      status = value.status();
      if (value.ok()) recorded.push_back({stream, *value});
    }
    MutexLock lock(state_.mutex);
    state_.counts.fences_recorded += recorded.size();
    state_.fence_recorded.NotifyAll();
    if (!status.ok()) {
      state_.order.Unrecorded(closing->stamp);
      return status;
    }
    state_.order.Recorded(closing->stamp, std::move(recorded));
  }
}

void FenceKeeper::AwaitRecording() {
  MutexLock lock(state_.mutex);
  while (state_.order.is_recording()) {
    state_.fence_recorded.Wait(state_.mutex);  // the other thread waits for nothing meanwhile
  }
}

absl::Status FenceKeeper::Poll() {
  LGPU_RETURN_IF_ERROR(Record());
  for (;;) {
    std::optional<StreamOrder::Waiting> oldest;
    {
      MutexLock lock(state_.mutex);
      oldest = state_.order.Oldest();
    }
    if (!oldest) return absl::OkStatus();
    for (const StreamOrder::Fence& fence : oldest->fences) {
      LGPU_ASSIGN_OR_RETURN(const bool passed, state_.fences->HasPassed(fence.stream, fence.value));
      if (!passed) return absl::OkStatus();
    }
    MutexLock lock(state_.mutex);
    state_.order.Passed(*oldest);
    state_.ReleaseReady();
  }
}

absl::Status FenceKeeper::Await() {
  LGPU_RETURN_IF_ERROR(Poll());
  std::uint32_t target = 0;
  std::uint64_t rebases = ~std::uint64_t{0};
  for (;;) {
    std::optional<StreamOrder::Waiting> oldest;
    {
      MutexLock lock(state_.mutex);
      if (rebases != state_.order.rebases()) {
        rebases = state_.order.rebases();
        target = state_.order.stamp() - 1;
      }
      if (!state_.order.has_batches() || state_.order.passed() >= target) return absl::OkStatus();
      oldest = state_.order.Oldest();
      if (!oldest && state_.order.IsRecordingOldest()) {
        state_.fence_recorded.Wait(state_.mutex);  // the other thread waits for nothing meanwhile
      }
    }
    if (!oldest) {
      LGPU_RETURN_IF_ERROR(Record());
      continue;
    }
    Interrupt::BeforeWait();
    for (const StreamOrder::Fence& fence : oldest->fences) {
      LGPU_RETURN_IF_ERROR(state_.fences->Wait(fence.stream, fence.value));
    }
    MutexLock lock(state_.mutex);
    ++state_.counts.fence_waits;
    state_.order.Passed(*oldest);
    state_.ReleaseReady();
  }
}

bool FenceKeeper::IsOrdered(StreamId stream, Suballocator::Stamp stamp) {
  MutexLock lock(state_.mutex);
  return state_.order.IsOrdered(stream, stamp);
}

absl::Status FenceKeeper::OrderAfterHome(StreamId stream, Suballocator::Stamp stamp) {
  if (IsOrdered(stream, stamp)) return absl::OkStatus();
  LGPU_RETURN_IF_ERROR(Poll());
  if (IsOrdered(stream, stamp)) return absl::OkStatus();
  std::optional<StreamOrder::HomeFence> fence;
  std::uint32_t closed = 0;
  std::uint64_t rebases = 0;
  {
    MutexLock lock(state_.mutex);
    fence = state_.order.LastHomeFence();
    closed = state_.order.stamp() - 1;
    rebases = state_.order.rebases();
  }
  if (!fence || fence->stamp < stamp) {
    // Another thread is about to record that stamp's fence; this call records one of its own.
    LGPU_ASSIGN_OR_RETURN(const std::uint64_t value, state_.fences->Record(StreamOrder::kHome));
    fence = StreamOrder::HomeFence{closed, value};
  }
  LGPU_RETURN_IF_ERROR(state_.fences->Order(stream, StreamOrder::kHome, fence->value));
  MutexLock lock(state_.mutex);
  state_.order.NoteOrdered(stream, fence->stamp, rebases);
  return absl::OkStatus();
}

}  // namespace lgpu
