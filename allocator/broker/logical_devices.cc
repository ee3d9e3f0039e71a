#include "allocator/broker/logical_devices.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {

absl::StatusOr<LogicalId> LogicalDevices::Reserve(const BrokerLock& lock, const Broker::DeviceSpec& spec,
                                                  Broker::TimePoint deadline) {
  const Bytes guarantee = spec.preallocate ? spec.limit : spec.guarantee;
  const Ledger::LogicalOptions size{.limit = spec.limit, .guarantee = guarantee};
  LGPU_RETURN_IF_ERROR(core_.tables.ledger.CheckSize(spec.card, size));
  LogicalId id;
  const auto add = [&]() -> absl::Status {
    core_.mutex.AssertHeld();
    LGPU_ASSIGN_OR_RETURN(id, core_.tables.ledger.AddLogical(spec.card, size));
    core_.tables.devices[id].spec = spec;
    return absl::OkStatus();
  };
  const absl::Status added = core_.rooms.TakeFromTicket(spec, guarantee)
                                 ? add()
                                 : reservations_.Wait(lock, spec.card, spec.owner, guarantee, deadline, add);
  // The ticket may have set aside less than the device needs: that is free again.
  if (!added.ok() && spec.room) core_.scheduler.Serve(spec.card);
  if (absl::IsResourceExhausted(added)) return RefusalStatus(core_.refusals.OfNewDevice(spec, guarantee));
  LGPU_RETURN_IF_ERROR(added);
  if (!spec.preallocate) return id;
  const Bytes bytes = core_.tables.LimitOf(id);
  if (core_.tables.ledger.Request(id, bytes).shortage != Ledger::Shortage::kNone) {
    const Refusal refusal = core_.refusals.OfNewDevice(spec, guarantee);
    core_.tables.devices.erase(id);
    LGPU_RETURN_IF_ERROR(core_.tables.ledger.RemoveLogical(id));
    return RefusalStatus(refusal);
  }
  core_.tables.devices.at(id).charged = bytes;
  return id;
}

absl::StatusOr<LogicalId> LogicalDevices::Add(const Broker::DeviceSpec& spec, Broker::TimePoint deadline) {
  LogicalId id;
  Bytes preallocated;
  {
    BrokerLock lock(core_);
    LGPU_ASSIGN_OR_RETURN(id, Reserve(lock, spec, deadline));
    preallocated = core_.tables.devices.at(id).charged;
  }
  if (!spec.preallocate) return id;
  const absl::Status made = Made(spare_.Make({.device = id, .bytes = preallocated, .deadline = deadline}));
  if (made.ok()) return id;
  Remove(id);
  return made;
}

absl::Status LogicalDevices::Resize(LogicalId logical, Bytes limit, Bytes guarantee,
                                    Broker::TimePoint deadline) {
  std::optional<Bytes> missing = Bytes();
  std::vector<ChunkId> excess;
  Ledger::LogicalOptions before;
  bool grows = false;
  {
    BrokerLock lock(core_);
    const DeviceEntry& device = core_.tables.devices.at(logical);
    const Ledger::LogicalView view = core_.tables.ledger.View(logical);
    const Ledger::LogicalOptions size{.limit = limit,
                                      .guarantee = device.spec.preallocate ? limit : guarantee};
    LGPU_RETURN_IF_ERROR(core_.tables.ledger.CheckResize(logical, size));
    const Bytes more = SaturatingSub(size.guarantee, std::max(view.guarantee, view.held()));
    const absl::Status resized = reservations_.Wait(lock, view.card, device.spec.owner, more, deadline, [&] {
      core_.mutex.AssertHeld();
      const Ledger::LogicalView now = core_.tables.ledger.View(logical);
      // The ledger keeps guarantees rounded up.
      before = {.limit = now.limit, .guarantee = std::min(now.guarantee, now.limit)};
      return core_.tables.ledger.Resize(logical, size);
    });
    if (absl::IsResourceExhausted(resized)) {
      return RefusalStatus(
          core_.refusals.OfDevice(logical, {.reason = RefusalReason::kCard, .asked = size.guarantee}));
    }
    LGPU_RETURN_IF_ERROR(resized);
    excess = TakeExcess(logical);
    grows = limit > before.limit;
    if (device.spec.preallocate) missing = ChargeMissing(logical, grows ? deadline : core_.now());
    if (!missing && grows) {
      // It cannot fail: the smaller size takes nothing of the card.
      LGPU_CHECK(core_.tables.ledger.Resize(logical, before).ok());
      const std::vector<ChunkId> more_excess = core_.chunks.TakeExcessSpare(logical);
      excess.insert(excess.end(), more_excess.begin(), more_excess.end());
    }
    core_.scheduler.Serve(view.card);
  }
  reclaimer_.Reclaim(excess);
  if (!missing && grows) {
    return absl::UnavailableError(
        "the device's own memory is still on its way back from a process that used it; try again later");
  }
  if (!missing || missing->is_zero()) return absl::OkStatus();
  const absl::Status made = Made(spare_.Make({.device = logical,
                                              .bytes = *missing,
                                              .deadline = core_.now(),
                                              .size_before = grows ? std::optional(before) : std::nullopt}));
  // A device that does not grow lacked these chunks before, and has its new size without them.
  return grows ? made : absl::OkStatus();
}

absl::Status LogicalDevices::CheckSize(LogicalId logical, Bytes limit, Bytes guarantee) const {
  MutexLock lock(core_.mutex);
  return core_.tables.ledger.CheckResize(logical, {.limit = limit, .guarantee = guarantee});
}

std::vector<ChunkId> LogicalDevices::TakeExcess(LogicalId logical) {
  const DeviceEntry& device = core_.tables.devices.at(logical);
  core_.charges.TakeAllowances(device.spec.card, device.spec.lease);
  core_.trims.AskForExcess(logical);
  // Memory that is leaving is lost to the device already: only what is granted counts.
  return device.spec.preallocate ? core_.chunks.TakeExcessSpare(logical) : std::vector<ChunkId>();
}

std::optional<Bytes> LogicalDevices::ChargeMissing(LogicalId logical, Broker::TimePoint deadline) {
  std::optional<Bytes> missing = core_.chunks.ChargeMissing(logical);
  if (missing) return missing;
  // The lock is given up here: sessions ask for memory under the new limit from here on.
  core_.WakeSessions();
  missing = core_.chunks.ChargeMissing(logical);
  while (!missing && !core_.tables.stopping && core_.now() < deadline) {
    core_.tables.freed.WaitUntil(core_.mutex, deadline);
    missing = core_.chunks.ChargeMissing(logical);
  }
  return missing;
}

absl::Status LogicalDevices::Made(const SpareChunks::Made& made) {
  reclaimer_.Reclaim(made.leaving);
  return made.status;
}

absl::Status LogicalDevices::MakeMissing(LogicalId device) { return Made(spare_.MakeMissing(device)); }

void LogicalDevices::Remove(LogicalId logical) {
  std::vector<ChunkId> spare;
  {
    BrokerLock lock(core_);
    const auto device = core_.tables.devices.find(logical);
    if (device == core_.tables.devices.end() || std::exchange(device->second.removed, true)) return;
    const CardId card = core_.tables.CardOf(logical);
    // Nothing is made again for the device: its guarantee is free, and so is each byte of its memory that
    // leaves. It cannot fail: the smaller size takes nothing of the card.
    const Ledger::LogicalView view = core_.tables.ledger.View(logical);
    LGPU_CHECK(core_.tables.ledger.Resize(logical, {.limit = view.limit, .guarantee = Bytes()}).ok());
    spare = core_.chunks.TakeExcessSpare(logical);
    core_.tables.ForgetIfEmpty(logical);
    core_.scheduler.Serve(card);
  }
  reclaimer_.Reclaim(spare);
}

std::optional<Broker::DeviceInfo> LogicalDevices::Find(LogicalId logical) const {
  MutexLock lock(core_.mutex);
  const auto device = core_.tables.devices.find(logical);
  if (device == core_.tables.devices.end()) return std::nullopt;
  const Ledger::LogicalView view = core_.tables.ledger.View(logical);
  // What is charged is not there yet.
  const Bytes there = view.held() - device->second.charged;
  const bool lacks = device->second.spec.preallocate && !device->second.removed &&
                     core_.now() >= device->second.last_charge + BrokerTables::kBallastRest;
  return Broker::DeviceInfo{.limit = view.limit,
                            .guarantee = view.guarantee,
                            .held = view.held(),
                            .leaving = view.leaving,
                            .missing = lacks ? SaturatingSub(core_.tables.LimitOf(logical), there) : Bytes(),
                            .charged = device->second.lent,
                            .card = view.card,
                            .card_free = core_.tables.ledger.View(view.card).free()};
}

}  // namespace lgpu
