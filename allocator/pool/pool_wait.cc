// At the limit, where other threads of the program may free memory: waiting for them.

#include <algorithm>
#include <chrono>

#include "allocator/pool/pool_impl.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

// What other threads free into their caches wakes nobody, so it is looked for.
constexpr std::chrono::milliseconds kFirstLook{1};
constexpr std::chrono::milliseconds kLongestLook{16};

}  // namespace

void Pool::Impl::NoteThread() {
  thread_local const char mark = 0;
  if (last_thread_ == &mark) return;
  if (last_thread_ != nullptr) other_thread_at_ = tick_.load(std::memory_order_relaxed);
  last_thread_ = &mark;
}

// A thread that waits for memory which nobody but itself would free waits in vain.
bool Pool::Impl::MayComeFree(const absl::Status& refused, Bytes bytes, const AllocateOptions& options) const {
  if (options.timeout <= std::chrono::nanoseconds(0)) return false;
  const std::optional<Refusal> refusal = GetRefusal(refused);
  if (!refusal || refusal->reason != RefusalReason::kLimit || bytes > source_->limit()) return false;
  MutexLock lock(mutex_);
  if (!other_thread_at_) return false;
  const std::chrono::milliseconds ago(CoarseMilliseconds() - *other_thread_at_);
  return ago <= options.timeout;
}

absl::Status Pool::Impl::AllocateUncached(Shard* shard, Bytes bytes, const AllocateOptions& options,
                                          std::uint32_t& index) {
  absl::Status status = AllocateOnce(shard, bytes, options, index);
  if (status.ok()) [[likely]] {
    return status;
  }
  if (MayComeFree(status, bytes, options)) status = AwaitFrees(shard, bytes, options, index);
  if (absl::IsResourceExhausted(status) && !options.spare_only) {
    const std::optional<Refusal> known = GetRefusal(status);
    MutexLock lock(mutex_);
    CountRefusal(known ? known->reason : RefusalReason::kUnspecified);
  }
  return status;
}

absl::Status Pool::Impl::AwaitFrees(Shard* shard, Bytes bytes, const AllocateOptions& options,
                                    std::uint32_t& index) {
  const Clock::time_point start = Clock::now();
  const Clock::time_point deadline = DeadlineAfter(options.timeout);
  AllocateOptions again = options;
  Clock::duration look = kFirstLook;
  while (true) {
    {
      MutexLock lock(mutex_);
      ++free_waiters_;
      freed_.WaitUntil(mutex_, std::min(deadline, Clock::now() + look));
      --free_waiters_;
    }
    look = std::min<Clock::duration>(2 * look, kLongestLook);
    const Clock::time_point now = Clock::now();
    again.timeout = std::max<std::chrono::nanoseconds>(deadline - now, {});
    const absl::Status status = AllocateOnce(shard, bytes, again, index);
    std::optional<Refusal> refusal = GetRefusal(status);
    if (!refusal || refusal->reason != RefusalReason::kLimit) return status;
    if (now >= deadline) {
      refusal->waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
      return RefusalStatus(*refusal);
    }
  }
}

}  // namespace lgpu
