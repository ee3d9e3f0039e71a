// Preallocated devices: chunks that nobody holds yet.

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "allocator/check.h"
#include "daemon/broker.h"

namespace lgpu::daemon {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void Broker::TakeSpare(GrowId id, Waiter& waiter) {
  Device& device = devices_.at(waiter.spec.device);
  const Ledger::LogicalView view = ledger_.View(waiter.spec.device);
  const Bytes limit = RoundUp(view.limit, cards_.at(device.spec.card).device.granularity);
  const Bytes room = SaturatingSub(limit, view.held() - device.spare_bytes);
  const std::vector<ChunkId> picked = PickSpare(device, waiter.spec.at_least, waiter.spec.wanted, room);
  if (!picked.empty()) {
    waiter.phase = Waiter::Phase::kTaken;
    for (const ChunkId chunk : picked) {
      ChunkEntry& entry = chunks_.at(chunk);
      TakeFromSpare(chunk, entry);
      GiveTo(waiter.spec.session, chunk, entry);
      waiter.taken.push_back({.id = chunk, .bytes = entry.bytes});
    }
    return;
  }
  if (std::min(device.spare_bytes, room) >= waiter.spec.at_least) {
    // After the limit was lowered: there is memory for it, in a chunk that is more than the limit has room
    // for.
    const Bytes granule = cards_.at(device.spec.card).device.granularity;
    const auto smallest_large = std::find_if(device.spare.rbegin(), device.spare.rend(),
                                             [&](const auto& spare) { return spare.first > granule; });
    LGPU_CHECK(smallest_large != device.spare.rend());
    waiter.phase = Waiter::Phase::kTooLarge;
    waiter.too_large = *smallest_large->second.begin();
    ChunkEntry& chunk = chunks_.at(waiter.too_large);
    TakeFromSpare(waiter.too_large, chunk);
    StartLeaving(chunk, ChunkState::kReturning);
    return;
  }
  const Bytes possible = std::min(device.spare_bytes, room) + device.draining + view.leaving;
  if (possible >= waiter.spec.at_least && Clock::now() < waiter.spec.deadline) {
    waiter.phase = Waiter::Phase::kLimit;
    device.limit_waiters.push_back(id);
  } else {
    Refuse(waiter, {.reason = RefusalReason::kLimit});
  }
}

std::vector<ChunkId> Broker::PickSpare(const Device& device, Bytes at_least, Bytes wanted, Bytes room) const {
  const Bytes available = std::min(device.spare_bytes, room);
  if (available < at_least) {
    return {};
  }
  const Bytes target = std::max(at_least, std::min(wanted, available));
  // Large ones as long as they fit, small ones for the rest, so that small ones stay for small requests.
  std::vector<ChunkId> picked;
  std::map<Bytes, std::size_t> passed_over;
  Bytes sum;
  for (const auto& [bytes, chunks] : device.spare) {
    auto chunk = chunks.begin();
    for (; chunk != chunks.end() && sum + bytes <= target; ++chunk) {
      picked.push_back(*chunk);
      sum += bytes;
    }
    passed_over[bytes] = static_cast<std::size_t>(std::distance(chunk, chunks.end()));
  }
  // No small ones left: the smallest large one that the limit has room for.
  for (const auto& [bytes, count] : passed_over) {
    auto chunk = device.spare.at(bytes).rbegin();
    for (std::size_t i = 0; i < count && sum < at_least && sum + bytes <= room; ++i, ++chunk) {
      picked.push_back(*chunk);
      sum += bytes;
    }
  }
  return sum < at_least ? std::vector<ChunkId>() : picked;
}

Broker::GrowAnswer Broker::CutSpare(GrowId id, Waiter mine) {
  const LogicalId logical = mine.spec.device;
  Reclaim({mine.too_large});
  std::optional<Bytes> missing;
  {
    MutexLock lock(mutex_);
    missing = ChargeMissing(logical, devices_.at(logical));
  }
  GrowAnswer answer;
  if (missing && !missing->is_zero()) {
    answer.status = MakeSpare(logical, *missing, mine.spec.deadline);
    if (!answer.status.ok()) {
      return answer;
    }
  }
  Wakes wakes;
  std::optional<Making> making;
  {
    MutexLock lock(mutex_);
    mine.phase = Waiter::Phase::kNew;
    making = Place(id, mine, answer, wakes);
  }
  WakeAll(wakes);
  return making ? Make(id, std::move(mine), *making) : answer;
}

void Broker::MakeItSpare(ChunkId id, ChunkEntry& chunk) {
  Device& device = devices_.at(chunk.device);
  TakeFromSession(id, chunk);
  chunk.state = ChunkState::kSpare;
  device.spare[chunk.bytes].insert(id);
  device.spare_bytes += chunk.bytes;
}

void Broker::TakeFromSpare(ChunkId id, const ChunkEntry& chunk) {
  Device& device = devices_.at(chunk.device);
  const auto of_its_size = device.spare.find(chunk.bytes);
  of_its_size->second.erase(id);
  if (of_its_size->second.empty()) {
    device.spare.erase(of_its_size);
  }
  device.spare_bytes -= chunk.bytes;
}

bool Broker::BecomesSpare(const ChunkEntry& chunk) const {
  const Device& device = devices_.at(chunk.device);
  if (!device.spec.preallocate || device.removed) {
    return false;
  }
  // Over a lowered limit, only as much stays as the limit promises.
  const Ledger::LogicalView view = ledger_.View(chunk.device);
  return SaturatingSub(view.granted, chunk.bytes) <
         RoundUp(view.limit, cards_.at(device.spec.card).device.granularity);
}

std::vector<ChunkId> Broker::TakeSurplus(Device& device, Bytes at_most) {
  std::vector<ChunkId> taken;
  Bytes sum;
  for (const auto& [bytes, chunks] : device.spare) {
    for (auto chunk = chunks.begin(); chunk != chunks.end() && sum + bytes <= at_most; ++chunk) {
      sum += bytes;
      taken.push_back(*chunk);
    }
  }
  for (const ChunkId id : taken) {
    ChunkEntry& chunk = chunks_.at(id);
    TakeFromSpare(id, chunk);
    StartLeaving(chunk, ChunkState::kReturning);
  }
  return taken;
}

}  // namespace lgpu::daemon
