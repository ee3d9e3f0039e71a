#include "allocator/broker/logical_devices.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

Waiter NewRequest(Broker::TimePoint now, const Broker::DeviceSpec& spec, const Broker::Patience& patience) {
  Waiter waiter;
  waiter.spec.asked_at = now;
  waiter.spec.deadline = patience.deadline;
  waiter.card = spec.card;
  waiter.user = spec.owner;
  waiter.waker = patience.waker;
  waiter.is_patient = false;
  return waiter;
}

}  // namespace

Broker::Answer LogicalDevices::Add(const Broker::DeviceSpec& spec, const Broker::Patience& patience) {
  Broker::Answer answer;
  WaiterId id;
  Waiter mine;
  {
    BrokerLock lock(core_);
    const Bytes guarantee = spec.preallocate ? spec.limit : spec.guarantee;
    const Ledger::LogicalOptions size{.limit = spec.limit, .guarantee = guarantee};
    answer.status = core_.tables.ledger.CheckSize(spec.card, size);
    if (!answer.status.ok()) return answer;
    id = core_.waiting.NewWaiter();
    mine = NewRequest(core_.now(), spec, patience);
    mine.spec.at_least = RoundUp(guarantee, core_.tables.GranuleOf(spec.card));
    mine.guarantee = {.what = GuaranteeWish::For::kNewDevice, .spec = spec, .size = size};
    if (core_.guarantees.TakeFrom(spec, guarantee)) {
      core_.admission.SetAside(id, mine);
      // Programs outside lgpu may have taken what was set aside.
      if (mine.phase == Waiter::Phase::kNew) core_.admission.Refuse(mine, {.reason = RefusalReason::kCard});
    } else if (!core_.requests.Settle(id, mine)) {
      answer.wait = id;
      return answer;
    }
    // For its lease less may have been set aside than the device needs: that is free again.
    if (mine.phase == Waiter::Phase::kRefused && spec.room) core_.scheduler.Serve(spec.card);
  }
  return Finish(id, std::move(mine));
}

Broker::Answer LogicalDevices::Resize(LogicalId logical, Bytes limit, Bytes guarantee,
                                      const Broker::Patience& patience) {
  Broker::Answer answer;
  WaiterId id;
  Waiter mine;
  {
    BrokerLock lock(core_);
    const Broker::DeviceSpec& spec = core_.tables.devices.at(logical).spec;
    const Ledger::LogicalView view = core_.tables.ledger.View(logical);
    const Ledger::LogicalOptions size{.limit = limit, .guarantee = spec.preallocate ? limit : guarantee};
    answer.status = core_.tables.ledger.CheckResize(logical, size);
    if (!answer.status.ok()) return answer;
    id = core_.waiting.NewWaiter();
    mine = NewRequest(core_.now(), spec, patience);
    mine.spec.device = logical;
    mine.spec.at_least = RoundUp(SaturatingSub(size.guarantee, std::max(view.guarantee, view.held())),
                                 core_.tables.GranuleOf(view.card));
    mine.guarantee = {.what = GuaranteeWish::For::kResize, .spec = spec, .size = size};
    if (!core_.requests.Settle(id, mine)) {
      answer.wait = id;
      return answer;
    }
  }
  return Finish(id, std::move(mine));
}

Broker::Answer LogicalDevices::Take(WaiterId id) {
  Waiter mine;
  {
    BrokerLock lock(core_);
    if (!core_.requests.Take(id, mine)) return {.wait = id};
  }
  return Finish(id, std::move(mine));
}

Broker::Answer LogicalDevices::Finish(WaiterId id, Waiter mine) {
  const GuaranteeWish& wish = *mine.guarantee;
  const bool is_resize = wish.what == GuaranteeWish::For::kResize;
  if (mine.phase == Waiter::Phase::kRefused) {
    if (wish.IsUndoneWhenRefused()) ReturnExcess(mine.spec.device);
    return {.status = std::move(mine.refusal)};
  }
  if (mine.phase == Waiter::Phase::kBooked) return MakeChunks(id, std::move(mine));
  if (is_resize) return FinishResize(id, std::move(mine));
  return {.device = mine.spec.device};
}

Broker::Answer LogicalDevices::FinishResize(WaiterId id, Waiter mine) {
  const LogicalId logical = mine.spec.device;
  const bool grows = mine.guarantee->size.limit > mine.guarantee->before.limit;
  std::vector<ChunkId> excess;
  bool waits = false;
  {
    BrokerLock lock(core_);
    excess = TakeExcess(logical);
    if (mine.guarantee->spec.preallocate) {
      // A device that does not grow lacked these chunks before.
      if (!grows) mine.spec.deadline = core_.now();
      core_.admission.Admit(id, mine);
    }
    waits = mine.Waits();
    if (waits) core_.requests.Park(id, std::move(mine));
    core_.scheduler.Serve(core_.tables.CardOf(logical));
  }
  reclaimer_.Reclaim(excess);
  if (waits) return {.wait = id};
  if (mine.phase == Waiter::Phase::kBooked) return MakeChunks(id, std::move(mine));
  if (mine.phase != Waiter::Phase::kRefused || !grows) return {.device = logical};
  ReturnExcess(logical);
  return {.status = std::move(mine.refusal)};
}

void LogicalDevices::ReturnExcess(LogicalId logical) {
  std::vector<ChunkId> excess;
  {
    BrokerLock lock(core_);
    excess = core_.chunks.TakeExcessSpare(logical);
    core_.scheduler.Serve(core_.tables.CardOf(logical));
  }
  reclaimer_.Reclaim(excess);
}

Broker::Answer LogicalDevices::MakeChunks(WaiterId id, Waiter mine) {
  GuaranteeWish& wish = *mine.guarantee;
  const LogicalId logical = mine.spec.device;
  const bool is_new = wish.what == GuaranteeWish::For::kNewDevice;
  const bool grows = is_new || wish.size.limit > wish.before.limit;
  SpareChunks::Order order{.device = logical,
                           .bytes = mine.booked,
                           .sizes = std::move(wish.chunk_sizes),
                           .made = std::move(wish.made),
                           .deadline = is_new ? mine.spec.deadline : core_.now(),
                           .size_before = !is_new && grows ? std::optional(wish.before) : std::nullopt};
  const std::optional<SpareChunks::Made> made = spare_.Make(order);
  if (!made) {
    wish.chunk_sizes = std::move(order.sizes);
    wish.made = std::move(order.made);
    BrokerLock lock(core_);
    core_.requests.PutOff(id, std::move(mine));
    return {.wait = id};
  }
  const absl::Status status = Made(*made);
  if (status.ok() || !grows) return {.device = logical};
  if (is_new) Remove(logical);
  return {.status = status};
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
    core_.tables.suspensions.erase(device->second.spec.lease);  // a lease ends with all of its devices
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
  // What is booked is not there yet.
  const Bytes there = view.held() - device->second.booked;
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
