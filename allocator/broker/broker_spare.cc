// Spare chunks: chunks of preallocated devices that no session holds.

#include <algorithm>
#include <iterator>
#include <map>

#include "allocator/broker/broker_impl.h"

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
    waiter.taken = GrantSpare(waiter.spec.session, picked);
    return;
  }
  const Bytes lack = SaturatingSub(waiter.spec.at_least, device.spare_bytes);
  if (room >= waiter.spec.at_least && !lack.is_zero() &&
      core_.tables.ledger.Request(waiter.spec.device, lack).shortage == Ledger::Shortage::kNone) {
    // The device lacks chunks: those that the spare ones are too few for are
    // made for this request.
    waiter.taken = GrantSpare(waiter.spec.session, AllSpare(device));
    waiter.phase = Waiter::Phase::kCharged;
    waiter.charged = lack;
    device.charged += lack;
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
  // Large ones as long as they fit, small ones for the rest, so that small ones
  // stay for small requests.
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

std::vector<ChunkId> BrokerImpl::AllSpare(const DeviceEntry& device) {
  std::vector<ChunkId> all;
  for (const auto& [bytes, chunks] : device.spare) all.insert(all.end(), chunks.begin(), chunks.end());
  return all;
}

std::vector<Chunk> BrokerImpl::GrantSpare(SessionId session, const std::vector<ChunkId>& spare) {
  std::vector<Chunk> granted;
  granted.reserve(spare.size());
  for (const ChunkId id : spare) {
    ChunkEntry& chunk = core_.tables.chunks.at(id);
    TakeFromSpare(id, chunk);
    GiveTo(session, id, chunk);
    granted.push_back({.id = id, .bytes = chunk.bytes});
  }
  return granted;
}

std::vector<ChunkId> BrokerImpl::UndoGrant(const Waiter& mine) {
  std::vector<ChunkId> undo;
  DeviceEntry& device = core_.tables.devices.at(mine.spec.device);
  for (const Chunk& taken : mine.taken) {
    ChunkEntry& chunk = core_.tables.chunks.at(taken.id);
    // The chunks of a session that ended meanwhile are draining.
    if (chunk.state != ChunkEntry::State::kGranted) continue;
    if (device.spec.preallocate) {
      TakeFromSession(taken.id, chunk);
      MakeItSpare(taken.id, chunk);
    } else {
      StartLeaving(chunk, ChunkEntry::State::kReturning);
      undo.push_back(taken.id);
    }
  }
  if (device.spec.preallocate) undo = TakeExcessSpare(mine.spec.device, device);
  return undo;
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
  // Charged chunks do not exist yet and may never do. The thread that makes
  // them looks again.
  const Bytes excess = SaturatingSub(view.granted - device.charged, limit);
  std::vector<ChunkId> taken = TakeSurplus(device, excess);
  Bytes rest = excess;
  for (const ChunkId id : taken) rest -= core_.tables.chunks.at(id).bytes;
  if (!rest.is_zero() && !device.spare.empty()) {
    // This chunk lies partly beyond the limit. What the limit has room for is
    // made again in its place.
    const ChunkId id = *device.spare.rbegin()->second.begin();
    ChunkEntry& chunk = core_.tables.chunks.at(id);
    TakeFromSpare(id, chunk);
    GiveBack(chunk, ChunkEntry::State::kReturning);
    taken.push_back(id);
  }
  return taken;
}

std::vector<ChunkId> BrokerImpl::TakeExcessSpare(LogicalId logical, DeviceEntry& device) {
  return device.removed ? TakeSurplus(device, device.spare_bytes) : TakeBeyondLimit(logical, device);
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
