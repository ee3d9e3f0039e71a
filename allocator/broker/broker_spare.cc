// Spare chunks: chunks of preallocated devices that no session holds.

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "allocator/broker/broker_impl.h"
#include "base/check.h"

namespace lgpu {
void BrokerImpl::TakeSpare(GrowId id, Waiter& waiter) {
  DeviceEntry& device = core_.tables.devices.at(waiter.spec.device);
  Ledger::LogicalView view = core_.tables.ledger.View(waiter.spec.device);
  const Bytes limit = RoundUp(view.limit, core_.tables.cards.at(device.spec.card).device.granularity);
  Bytes room = SaturatingSub(limit, view.held() - device.spare_bytes);
  if (room < waiter.spec.at_least && TakeAllowances(device.spec.card, device.spec.lease)) {
    view = core_.tables.ledger.View(waiter.spec.device);
    room = SaturatingSub(limit, view.held() - device.spare_bytes);
  }
  if (waiter.spec.ahead && !device.limit_waiters.empty()) {
    Refuse(waiter, {.reason = RefusalReason::kLimit});
    return;
  }
  const std::vector<ChunkId> picked = PickSpare(device, waiter.spec.at_least, waiter.spec.wanted, room);
  if (!picked.empty()) {
    waiter.phase = Waiter::Phase::kTaken;
    for (const ChunkId chunk : picked) {
      ChunkEntry& entry = core_.tables.chunks.at(chunk);
      TakeFromSpare(chunk, entry);
      GiveTo(waiter.spec.session, chunk, entry);
      waiter.taken.push_back({.id = chunk, .bytes = entry.bytes});
    }
    return;
  }
  if (room >= waiter.spec.at_least) {
    // No chunks are there for what the limit has room for, since one that was larger than that was freed.
    waiter.charged = ChargeRoom(waiter.spec.device, device);
    if (!waiter.charged.is_zero()) {
      waiter.phase = Waiter::Phase::kMissing;
      return;
    }
  }
  // After the limit was lowered there may be memory for it in a chunk that is more than the limit has room
  // for.
  if (std::min(device.spare_bytes, room) >= waiter.spec.at_least) {
    const Bytes granule = core_.tables.cards.at(device.spec.card).device.granularity;
    const auto smallest_large = std::find_if(device.spare.rbegin(), device.spare.rend(),
                                             [&](const auto& spare) { return spare.first > granule; });
    LGPU_CHECK(smallest_large != device.spare.rend());
    waiter.phase = Waiter::Phase::kTooLarge;
    waiter.too_large = *smallest_large->second.begin();
    ChunkEntry& chunk = core_.tables.chunks.at(waiter.too_large);
    TakeFromSpare(waiter.too_large, chunk);
    StartLeaving(chunk, ChunkEntry::State::kReturning);
    return;
  }
  const Bytes possible = std::min(device.spare_bytes, room) + view.leaving + device.charged;
  const bool in_time = core_.now() < waiter.spec.deadline;
  if (IsBeingMade(waiter) || (in_time && possible >= waiter.spec.at_least) ||
      (MayAsk(waiter) && AskUnderLimit(waiter, SaturatingSub(waiter.spec.at_least, possible)))) {
    waiter.phase = Waiter::Phase::kLimit;
    device.limit_waiters.push_back(id);
  } else {
    Refuse(waiter, {.reason = RefusalReason::kLimit});
  }
}

bool BrokerImpl::IsBeingMade(const Waiter& waiter) const {
  const DeviceEntry& device = core_.tables.devices.at(waiter.spec.device);
  if (waiter.charge || !device.spec.preallocate || device.charged.is_zero() || waiter.spec.ahead) {
    return false;
  }
  const Ledger::LogicalView view = core_.tables.ledger.View(waiter.spec.device);
  const Bytes limit = RoundUp(view.limit, core_.tables.cards.at(device.spec.card).device.granularity);
  const Bytes to_be_spare = device.spare_bytes + device.charged;
  return std::min(to_be_spare, SaturatingSub(limit, view.held() - to_be_spare)) >= waiter.spec.at_least;
}

std::vector<ChunkId> BrokerImpl::PickSpare(const DeviceEntry& device, Bytes at_least, Bytes wanted,
                                           Bytes room) const {
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

Bytes BrokerImpl::ChargeRoom(LogicalId logical, DeviceEntry& device) {
  const Ledger::LogicalView view = core_.tables.ledger.View(logical);
  const Bytes limit = RoundUp(view.limit, core_.tables.cards.at(device.spec.card).device.granularity);
  const Bytes room = SaturatingSub(limit, view.held());
  if (room.is_zero() || core_.tables.ledger.Request(logical, room).shortage != Ledger::Shortage::kNone) {
    return Bytes();
  }
  device.charged += room;
  return room;
}

BrokerImpl::GrowAnswer BrokerImpl::FillUp(GrowId id, Waiter mine) {
  const LogicalId logical = mine.spec.device;
  if (mine.phase == Waiter::Phase::kTooLarge) {
    FreeTooLarge(mine);
  }
  GrowAnswer answer;
  std::optional<Making> making;
  const auto place = [&]() {
    core_.mutex.AssertHeld();
    mine.phase = Waiter::Phase::kNew;
    making = Place(id, mine, answer);
  };
  if (mine.charged.is_zero()) {
    {
      BrokerLock lock(core_);
      place();
    }
  } else {
    // No waiting: this is the thread that hears the session's client. The request is served from the new
    // chunks before others.
    const absl::Status made = MakeSpare(logical, std::exchange(mine.charged, Bytes()), core_.now(), place);
    if (!made.ok()) {
      return FillUpFailed(id, std::move(mine), made);
    }
  }
  return making ? Make(id, std::move(mine), *making) : answer;
}

void BrokerImpl::FreeTooLarge(Waiter& mine) {
  MemoryHandle memory;
  {
    BrokerLock lock(core_);
    memory = core_.tables.chunks.at(mine.too_large).memory;
  }
  const absl::Status freed = core_.backend.Reclaim(memory);
  {
    BrokerLock lock(core_);
    MissingChunks missing;  // of others: this chunk was no session's
    Settle(mine.too_large, freed, missing);
    // Before waiting requests are looked at: the freed memory belongs to this request.
    DeviceEntry& device = core_.tables.devices.at(mine.spec.device);
    mine.charged = ChargeRoom(mine.spec.device, device);
    Serve(device.spec.card);
  }
}

BrokerImpl::GrowAnswer BrokerImpl::FillUpFailed(GrowId id, Waiter mine, const absl::Status& status) {
  GrowAnswer answer;
  const TimePoint now = core_.now();
  BrokerLock lock(core_);
  if (absl::IsResourceExhausted(status) && !LeavingAnywhere().is_zero() && now < mine.spec.deadline) {
    mine.phase = Waiter::Phase::kBackend;
    mine.retry_at = now + kBackendRetry;
    answer.wait = id;
    answer.next_look = std::min(mine.spec.deadline, mine.retry_at);
    Park(id, std::move(mine));
    return answer;
  }
  answer.status = status;
  if (std::optional<Refusal> refusal = GetRefusal(status)) {
    refusal->asked = mine.spec.at_least;
    answer.status = RefusalStatus(*refusal);
  }
  ++core_.tables.counters.refusals;
  return answer;
}

void BrokerImpl::MakeItSpare(ChunkId id, ChunkEntry& chunk) {
  DeviceEntry& device = core_.tables.devices.at(chunk.device);
  chunk.state = ChunkEntry::State::kSpare;
  device.spare[chunk.bytes].insert(id);
  device.spare_bytes += chunk.bytes;
}

void BrokerImpl::TakeFromSpare(ChunkId id, const ChunkEntry& chunk) {
  DeviceEntry& device = core_.tables.devices.at(chunk.device);
  const auto of_its_size = device.spare.find(chunk.bytes);
  of_its_size->second.erase(id);
  if (of_its_size->second.empty()) {
    device.spare.erase(of_its_size);
  }
  device.spare_bytes -= chunk.bytes;
}

std::vector<ChunkId> BrokerImpl::TakeBeyondLimit(LogicalId logical, DeviceEntry& device) {
  const Ledger::LogicalView view = core_.tables.ledger.View(logical);
  const Bytes limit = RoundUp(view.limit, core_.tables.cards.at(device.spec.card).device.granularity);
  // Charged chunks do not exist yet and may never do. The thread that makes them looks again.
  return TakeSurplus(device, SaturatingSub(view.granted - device.charged, limit));
}

std::vector<ChunkId> BrokerImpl::TakeSurplus(DeviceEntry& device, Bytes at_most) {
  std::vector<ChunkId> taken;
  Bytes sum;
  for (const auto& [bytes, chunks] : device.spare) {
    for (auto chunk = chunks.begin(); chunk != chunks.end() && sum + bytes <= at_most; ++chunk) {
      sum += bytes;
      taken.push_back(*chunk);
    }
  }
  for (const ChunkId id : taken) {
    ChunkEntry& chunk = core_.tables.chunks.at(id);
    TakeFromSpare(id, chunk);
    StartLeaving(chunk, ChunkEntry::State::kReturning);
  }
  return taken;
}

}  // namespace lgpu
