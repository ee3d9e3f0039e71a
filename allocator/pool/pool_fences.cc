// Memory that streams are not done with yet. The fences are called without the pool's lock.

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/pool/pool_impl.h"
#include "lgpu/status.h"

namespace lgpu {

absl::Status Pool::Impl::CheckOtherStream(StreamId stream) const {
  if (stream < kMaxStreams && fences_ != nullptr) {
    return absl::OkStatus();
  }
  if (fences_ == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("stream ", stream,
                     " was named, but this pool knows one stream only, 0: it was made without "
                     "PoolOptions.fences"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("stream ", stream, " was named; numbers of streams are below ", kMaxStreams));
}

absl::Status Pool::Impl::UseOn(const Block& block, StreamId stream) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  LGPU_RETURN_IF_ERROR(CheckStreamId(stream));
  if (LiveWord(block) == 0) {
    return NotLive(block);
  }
  Node& node = nodes_[block.node];
  if (BlockEntry::StreamOf(node.behind) == stream) {
    return absl::OkStatus();
  }
  MutexLock lock(mutex_);
  other_streams_ = true;
  std::uint32_t word = Node::Word(block.generation, Node::kLive);
  if (!node.word.compare_exchange_strong(word, Node::Word(block.generation, Node::kShared)) &&
      word != Node::Word(block.generation, Node::kShared)) {
    return NotLive(block);
  }
  shared_[block.node] |= StreamOrder::Only(stream);
  return absl::OkStatus();
}

void Pool::Impl::Park(std::uint32_t index, bool is_shared, StreamId stream) {
  Node& node = nodes_[index];
  Streams streams = StreamOrder::Only(stream);
  if (is_shared) {
    const auto shared = shared_.find(index);
    streams |= shared->second;
    shared_.erase(shared);
  }
  const std::uint32_t generation = node.generation();
  node.word.store(Node::Word(generation, Node::kFenced), std::memory_order_release);
  order_.Park(index, generation, streams, node.size);
  fenced_.fetch_add((Suballocator::kGranule * node.size).count(), std::memory_order_relaxed);
  ++fenced_blocks_;
}

void Pool::Impl::Unpark(std::uint32_t index) {
  fenced_.fetch_sub((Suballocator::kGranule * nodes_[index].size).count(), std::memory_order_relaxed);
  --fenced_blocks_;
}

std::uint32_t Pool::Impl::TakeParked(Bytes requested, const AllocateOptions& options) {
  const std::uint64_t size = RoundUp(requested, Suballocator::kGranule) / Suballocator::kGranule;
  if (options.alignment > Suballocator::kGranule || size > ~std::uint32_t{0}) {
    return 0;
  }
  const auto parked = order_.TakeParked(options.stream, static_cast<std::uint32_t>(size));
  if (!parked) {
    return 0;
  }
  Unpark(parked->index);
  if (by_address_.is_on()) {
    by_address_.Erase(nodes_[parked->index].offset);
  }
  return HandOut(blocks_.Rename(blocks_.HandleAt(parked->index)), requested, options);
}

void Pool::Impl::ReleaseReady() {
  while (const auto ready = order_.NextReady()) {
    Unpark(ready->index);
    Release(ready->index, ready->stamp);
  }
}

absl::Status Pool::Impl::RecordFences() {
  for (;;) {
    std::optional<StreamOrder::Closing> closing;
    {
      MutexLock lock(mutex_);
      RebaseStamps();
      closing = order_.Close();
    }
    if (!closing) {
      return absl::OkStatus();
    }
    std::vector<StreamOrder::Fence> recorded;
    absl::Status status;
    for (Streams left = fences_ != nullptr ? closing->streams : 0; left != 0 && status.ok();
         left &= left - 1) {
      const auto stream = static_cast<StreamId>(std::countr_zero(left));
      const absl::StatusOr<std::uint64_t> value = fences_->Record(stream);
      status = value.status();
      if (value.ok()) {
        recorded.push_back({stream, *value});
      }
    }
    MutexLock lock(mutex_);
    fences_recorded_ += recorded.size();
    fence_recorded_.NotifyAll();
    if (!status.ok()) {
      order_.Unrecorded(closing->stamp);
      return status;
    }
    order_.Recorded(closing->stamp, std::move(recorded));
  }
}

void Pool::Impl::RebaseStamps() {
  const std::uint32_t by = order_.SmallerBy();
  if (by == 0) [[likely]] {
    return;
  }
  order_.Rebase(by);
  blocks_.RebaseStamps(by);
  for (Mark& mark : marks_) {
    mark.stamp -= std::min(mark.stamp, by);
  }
}

absl::Status Pool::Impl::PollFences() {
  LGPU_RETURN_IF_ERROR(RecordFences());
  for (;;) {
    std::optional<StreamOrder::Waiting> oldest;
    {
      MutexLock lock(mutex_);
      oldest = order_.Oldest();
    }
    if (!oldest) {
      return absl::OkStatus();
    }
    for (const StreamOrder::Fence& fence : oldest->fences) {
      LGPU_ASSIGN_OR_RETURN(const bool passed, fences_->HasPassed(fence.stream, fence.value));
      if (!passed) {
        return absl::OkStatus();
      }
    }
    MutexLock lock(mutex_);
    order_.Passed(*oldest);
    ReleaseReady();
  }
}

absl::Status Pool::Impl::AwaitFences() {
  LGPU_RETURN_IF_ERROR(PollFences());
  std::uint32_t target = 0;
  std::uint64_t rebases = ~std::uint64_t{0};
  for (;;) {
    std::optional<StreamOrder::Waiting> oldest;
    {
      MutexLock lock(mutex_);
      if (rebases != order_.rebases()) {
        rebases = order_.rebases();
        target = order_.stamp() - 1;
      }
      if (!order_.has_batches() || order_.passed() >= target) {
        return absl::OkStatus();
      }
      oldest = order_.Oldest();
      if (!oldest && order_.IsRecording()) {
        fence_recorded_.Wait(mutex_);  // by another thread, which waits for nothing
      }
    }
    if (!oldest) {
      LGPU_RETURN_IF_ERROR(RecordFences());
      continue;
    }
    for (const StreamOrder::Fence& fence : oldest->fences) {
      LGPU_RETURN_IF_ERROR(fences_->Wait(fence.stream, fence.value));
    }
    MutexLock lock(mutex_);
    ++fence_waits_;
    order_.Passed(*oldest);
    ReleaseReady();
  }
}

Suballocator::Stamp Pool::Impl::SettledStamp() const {
  return fences_ == nullptr ? Suballocator::kYoungest : order_.passed();
}

// Asking costs nothing and may be enough; waiting is the last thing before a refusal.
bool Pool::Impl::WaitForFences(Attempt& attempt) {
  const bool asks = !std::exchange(attempt.fences_asked, !attempt.fences_asked);
  attempt.fences_passed = attempt.fences_passed || !asks;
  attempt.status = asks ? PollFences() : AwaitFences();
  return attempt.status.ok();
}

absl::Status Pool::Impl::OrderAfterHome(StreamId stream, Suballocator::Stamp stamp) {
  const auto is_ordered = [&] {
    MutexLock lock(mutex_);
    return order_.IsOrdered(stream, stamp);
  };
  if (is_ordered()) {
    return absl::OkStatus();
  }
  LGPU_RETURN_IF_ERROR(PollFences());
  if (is_ordered()) {
    return absl::OkStatus();
  }
  std::optional<StreamOrder::HomeFence> fence;
  std::uint32_t closed = 0;
  std::uint64_t rebases = 0;
  {
    MutexLock lock(mutex_);
    fence = order_.LastHomeFence();
    closed = order_.stamp() - 1;
    rebases = order_.rebases();
  }
  if (!fence || fence->stamp < stamp) {
    // Another thread is about to record it.
    LGPU_ASSIGN_OR_RETURN(const std::uint64_t value, fences_->Record(StreamOrder::kHome));
    fence = StreamOrder::HomeFence{closed, value};
  }
  LGPU_RETURN_IF_ERROR(fences_->Order(stream, StreamOrder::kHome, fence->value));
  MutexLock lock(mutex_);
  order_.NoteOrdered(stream, fence->stamp, rebases);
  return absl::OkStatus();
}

}  // namespace lgpu
