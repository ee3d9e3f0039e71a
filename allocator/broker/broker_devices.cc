#include <algorithm>
#include <utility>

#include "allocator/broker/broker_impl.h"
#include "lgpu/status.h"

namespace lgpu {
absl::StatusOr<LogicalId> BrokerImpl::AddDevice(const DeviceSpec& spec, TimePoint deadline) {
  LogicalId id;
  Bytes preallocated;
  {
    BrokerLock lock(core_);
    const Bytes guarantee = spec.preallocate ? spec.limit : spec.guarantee;
    LGPU_RETURN_IF_ERROR(
        core_.tables.ledger.CheckSize(spec.card, {.limit = spec.limit, .guarantee = guarantee}));
    const auto add = [&]() -> absl::Status {
      core_.mutex.AssertHeld();
      LGPU_ASSIGN_OR_RETURN(
          id, core_.tables.ledger.AddLogical(spec.card, {.limit = spec.limit, .guarantee = guarantee}));
      core_.tables.devices[id].spec = spec;
      return absl::OkStatus();
    };
    const absl::Status added =
        TakeFromRoom(spec, guarantee) ? add() : MakeRoom(spec.card, spec.owner, guarantee, deadline, add);
    if (!added.ok()) {
      return absl::IsResourceExhausted(added) ? RefusalStatus(RefuseDevice(spec, guarantee)) : added;
    }
    DeviceEntry& device = core_.tables.devices.at(id);
    if (spec.preallocate) {
      preallocated = RoundUp(spec.limit, core_.tables.cards.at(spec.card).device.granularity);
      const Ledger::Verdict verdict = core_.tables.ledger.Request(id, preallocated);
      if (verdict.shortage != Ledger::Shortage::kNone) {
        const Refusal refusal = RefuseDevice(spec, guarantee);
        core_.tables.devices.erase(id);
        LGPU_RETURN_IF_ERROR(core_.tables.ledger.RemoveLogical(id));
        return RefusalStatus(refusal);
      }
      device.charged = preallocated;
    }
  }
  if (preallocated.is_zero()) {
    return id;
  }
  if (absl::Status made = MakeSpare(id, preallocated, deadline); !made.ok()) {
    RemoveDevice(id);
    return made;
  }
  return id;
}

absl::Status BrokerImpl::ResizeDevice(LogicalId logical, Bytes limit, Bytes guarantee, TimePoint deadline) {
  std::optional<Bytes> missing = Bytes();
  std::vector<ChunkId> surplus;
  Ledger::LogicalView before;
  {
    BrokerLock lock(core_);
    DeviceEntry& device = core_.tables.devices.at(logical);
    before = core_.tables.ledger.View(logical);
    const bool preallocate = device.spec.preallocate;
    if (preallocate) {
      guarantee = limit;
    }
    LGPU_RETURN_IF_ERROR(
        core_.tables.ledger.CheckSize(before.card, {.limit = limit, .guarantee = guarantee}));
    const Bytes more = SaturatingSub(guarantee, std::max(before.guarantee, before.held()));
    const absl::Status resized = MakeRoom(before.card, device.spec.owner, more, deadline, [&] {
      core_.mutex.AssertHeld();
      before = core_.tables.ledger.View(logical);
      return core_.tables.ledger.Resize(logical, {.limit = limit, .guarantee = guarantee});
    });
    if (!resized.ok()) {
      return absl::IsResourceExhausted(resized)
                 ? RefusalStatus(
                       MakeRefusal(device, logical, {.reason = RefusalReason::kCard, .asked = limit}))
                 : resized;
    }
    TakeAllowances(before.card, device.spec.lease);
    AskForExcess(logical);
    if (preallocate) {
      // What is leaving is lost to the device already: only what is granted
      // counts.
      surplus = TakeBeyondLimit(logical, device);
      missing = ChargeMissing(logical, device);
      while (!missing && !core_.tables.stopping && core_.now() < deadline) {
        core_.tables.freed.WaitUntil(core_.mutex, deadline);
        missing = ChargeMissing(logical, device);
      }
    }
    Serve(device.spec.card);
  }
  Reclaim(surplus);
  if (!missing) {
    ResizeBack(logical, before);
    return absl::UnavailableError(
        "the device's own memory is still on its way back from a process that "
        "used it; try again later");
  }
  if (missing->is_zero()) {
    return absl::OkStatus();
  }
  absl::Status made = MakeSpare(logical, *missing, core_.now(), {}, &before);
  if (!made.ok()) {
    ResizeBack(logical, before);
  }
  return made;
}

std::optional<Bytes> BrokerImpl::ChargeMissing(LogicalId logical, DeviceEntry& device) {
  const Ledger::LogicalView view = core_.tables.ledger.View(logical);
  const Bytes rounded = RoundUp(view.limit, core_.tables.cards.at(device.spec.card).device.granularity);
  const Bytes missing = SaturatingSub(rounded, view.granted + device.coming_again);
  if (missing.is_zero()) {
    return missing;
  }
  if (core_.tables.ledger.Request(logical, missing).shortage != Ledger::Shortage::kNone) {
    return std::nullopt;
  }
  device.charged += missing;
  return missing;
}

void BrokerImpl::ResizeBack(LogicalId logical, const Ledger::LogicalView& before) {
  std::vector<ChunkId> surplus;
  {
    BrokerLock lock(core_);
    const auto device = core_.tables.devices.find(logical);
    if (device == core_.tables.devices.end()) {
      return;  // it was removed meanwhile
    }
    // It cannot fail: it takes less than what was just possible. (The ledger
    // keeps guarantees rounded up.)
    core_.tables.ledger
        .Resize(logical, {.limit = before.limit, .guarantee = std::min(before.guarantee, before.limit)})
        .IgnoreError();
    // Others may have made chunks for the limit that it had meanwhile.
    surplus = TakeBeyondLimit(logical, device->second);
    // Waiting requests may fit into the guarantee that is free now.
    Serve(before.card);
  }
  Reclaim(surplus);
}

void BrokerImpl::RemoveDevice(LogicalId logical) {
  std::vector<ChunkId> spare;
  {
    BrokerLock lock(core_);
    DeviceEntry& device = core_.tables.devices.at(logical);
    const CardId card = device.spec.card;
    device.removed = true;
    spare = TakeSurplus(device, device.spare_bytes);
    ForgetIfEmpty(logical);
    // A guarantee may be free now that no chunk was made for.
    Serve(card);
  }
  Reclaim(spare);
}

std::optional<BrokerImpl::DeviceInfo> BrokerImpl::Find(LogicalId logical) const {
  MutexLock lock(core_.mutex);
  const auto device = core_.tables.devices.find(logical);
  if (device == core_.tables.devices.end()) {
    return std::nullopt;
  }
  const Ledger::LogicalView view = core_.tables.ledger.View(logical);
  const Bytes all = RoundUp(view.limit, core_.tables.cards.at(view.card).device.granularity);
  // What is charged is not there yet.
  const Bytes there = view.held() - device->second.charged;
  const bool lacks =
      device->second.spec.preallocate && core_.now() >= device->second.last_charge + kBallastRest;
  return DeviceInfo{.limit = view.limit,
                    .guarantee = view.guarantee,
                    .held = view.held(),
                    .leaving = view.leaving,
                    .missing = lacks ? SaturatingSub(all, there) : Bytes(),
                    .charged = device->second.lent,
                    .card = view.card,
                    .card_free = core_.tables.ledger.View(view.card).free()};
}

Bytes BrokerImpl::Held(SessionId session) const {
  MutexLock lock(core_.mutex);
  const auto found = core_.tables.sessions.find(session);
  return found == core_.tables.sessions.end() ? Bytes() : found->second.held;
}

std::vector<BrokerImpl::CardInfo> BrokerImpl::Cards() const {
  std::vector<CardInfo> infos;
  MutexLock lock(core_.mutex);
  for (const auto& [id, card] : core_.tables.cards) {
    const auto outsiders = outsiders_.find(id);
    infos.push_back({.id = id,
                     .card = card,
                     .view = core_.tables.ledger.View(id),
                     .draining = Leaving(id),
                     .queue = QueueOf(id),
                     .observed = outsiders != outsiders_.end(),
                     .outsiders = outsiders == outsiders_.end() ? std::vector<DeviceMemory::ProcessMemory>()
                                                                : outsiders->second});
  }
  return infos;
}

std::size_t BrokerImpl::cards() const {
  MutexLock lock(core_.mutex);
  return core_.tables.cards.size();
}

void BrokerImpl::StopWaiting() {
  BrokerLock lock(core_);
  core_.tables.stopping = true;
  core_.tables.freed.NotifyAll();
}

BrokerImpl::Counters BrokerImpl::counters() const {
  MutexLock lock(core_.mutex);
  Counters counters = core_.tables.counters;
  counters.trims = trims_.orders();
  return counters;
}

}  // namespace lgpu
