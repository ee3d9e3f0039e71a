#include "allocator/pool/stream_order.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace lgpu {
namespace {

std::uint64_t KeyOf(StreamId stream, std::uint32_t size) { return std::uint64_t{stream} << 32 | size; }

}  // namespace

void StreamOrder::NoteFree(Streams streams) { used_on_ |= streams; }

std::optional<StreamOrder::Closing> StreamOrder::Close() {
  for (Batch& batch : batches_) {
    if (batch.failed) {
      batch.failed = false;
      return Closing{batch.stamp, batch.streams};
    }
  }
  if (used_on_ == 0) return std::nullopt;
  batches_.push_back({.stamp = stamp_, .streams = used_on_});
  used_on_ = 0;
  ++stamp_;
  return Closing{batches_.back().stamp, batches_.back().streams};
}

StreamOrder::Batch* StreamOrder::FindBatch(std::uint32_t stamp) {
  const auto found = std::lower_bound(batches_.begin(), batches_.end(), stamp,
                                      [](const Batch& batch, std::uint32_t s) { return batch.stamp < s; });
  LGPU_CHECK(found != batches_.end() && found->stamp == stamp);
  return &*found;
}

void StreamOrder::Recorded(std::uint32_t stamp, std::vector<Fence> fences) {
  Batch* const batch = FindBatch(stamp);
  batch->fences = std::move(fences);
  batch->recorded = true;
}

void StreamOrder::Unrecorded(std::uint32_t stamp) { FindBatch(stamp)->failed = true; }

bool StreamOrder::is_recording() const {
  return std::any_of(batches_.begin(), batches_.end(),
                     [](const Batch& batch) { return !batch.recorded && !batch.failed; });
}

std::optional<StreamOrder::Waiting> StreamOrder::Oldest() const {
  if (batches_.empty() || !batches_.front().recorded) return std::nullopt;
  return Waiting{batches_.front().stamp, rebases_, batches_.front().fences};
}

void StreamOrder::Rebase(std::uint32_t by) {
  const auto smaller = [by](std::uint32_t stamp) { return stamp - std::min(stamp, by); };
  stamp_ = smaller(stamp_);
  passed_ = smaller(passed_);
  for (Batch& batch : batches_) batch.stamp = smaller(batch.stamp);
  for (Parked& parked : parked_) parked.stamp = smaller(parked.stamp);
  for (std::uint32_t& stamp : ordered_) stamp = smaller(stamp);
  ++rebases_;
}

void StreamOrder::Passed(const Waiting& waiting) {
  const std::uint32_t stamp = waiting.stamp;
  if (waiting.rebases != rebases_) {
    return;  // a rebase changed its number: the stamp is asked about again
  }
  while (!batches_.empty() && batches_.front().recorded && batches_.front().stamp <= stamp) {
    batches_.pop_front();
  }
  passed_ = std::max(passed_, stamp);
}

std::optional<StreamOrder::HomeFence> StreamOrder::LastHomeFence() const {
  for (auto batch = batches_.rbegin(); batch != batches_.rend(); ++batch) {
    for (const Fence& fence : batch->fences) {
      if (batch->recorded && fence.stream == kHome) return HomeFence{batch->stamp, fence.value};
    }
  }
  return std::nullopt;
}

void StreamOrder::Park(std::uint32_t index, std::uint32_t generation, Streams streams, std::uint32_t size) {
  NoteFree(streams);
  const bool of_one = std::has_single_bit(streams);
  const std::uint64_t key = of_one ? KeyOf(static_cast<StreamId>(std::countr_zero(streams)), size) : 0;
  parked_.push_back({index, generation, stamp_, key});
  if (key != 0) by_size_[key].push_back(parked_.back());
}

std::optional<StreamOrder::Parked> StreamOrder::TakeParked(StreamId stream, std::uint32_t size) {
  const auto found = by_size_.find(KeyOf(stream, size));
  if (found == by_size_.end()) return std::nullopt;
  const Parked parked = found->second.back();
  found->second.pop_back();
  if (found->second.empty()) by_size_.erase(found);
  return parked;
}

std::optional<StreamOrder::Parked> StreamOrder::NextReady() {
  while (!parked_.empty() && parked_.front().stamp <= passed_) {
    const Parked ready = parked_.front();
    parked_.pop_front();
    if (ready.key == 0) return ready;
    // If the oldest block of this key that was not taken is another one, this block was taken.
    const auto found = by_size_.find(ready.key);
    if (found != by_size_.end() && found->second.front().index == ready.index &&
        found->second.front().generation == ready.generation) {
      found->second.pop_front();
      if (found->second.empty()) by_size_.erase(found);
      return ready;
    }
  }
  return std::nullopt;
}

}  // namespace lgpu
