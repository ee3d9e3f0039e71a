#include <algorithm>
#include <utility>

#include "allocator/broker/broker.h"
#include "lgpu/status.h"

namespace lgpu {
absl::StatusOr<LogicalId> Broker::AddDevice(const DeviceSpec& spec, TimePoint deadline) {
  LogicalId id;
  Bytes preallocated;
  {
    MutexLock lock(mutex_);
    const Bytes guarantee = spec.preallocate ? spec.limit : spec.guarantee;
    LGPU_RETURN_IF_ERROR(ledger_.CheckSize(spec.card, {.limit = spec.limit, .guarantee = guarantee}));
    const auto add = [&]() -> absl::Status {
      mutex_.AssertHeld();
      LGPU_ASSIGN_OR_RETURN(id, ledger_.AddLogical(spec.card, {.limit = spec.limit, .guarantee = guarantee}));
      devices_[id].spec = spec;
      return absl::OkStatus();
    };
    const absl::Status added =
        TakeFromRoom(spec, guarantee) ? add() : MakeRoom(spec.card, spec.owner, guarantee, deadline, add);
    if (!added.ok()) {
      return absl::IsResourceExhausted(added) ? RefusalStatus(RefuseDevice(spec, guarantee)) : added;
    }
    Device& device = devices_.at(id);
    if (spec.preallocate) {
      preallocated = RoundUp(spec.limit, cards_.at(spec.card).device.granularity);
      const Ledger::Verdict verdict = ledger_.Request(id, preallocated);
      if (verdict.shortage != Ledger::Shortage::kNone) {
        const Refusal refusal = RefuseDevice(spec, guarantee);
        devices_.erase(id);
        LGPU_RETURN_IF_ERROR(ledger_.RemoveLogical(id));
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

absl::Status Broker::ResizeDevice(LogicalId logical, Bytes limit, Bytes guarantee, TimePoint deadline) {
  Wakes wakes;
  std::optional<Bytes> missing = Bytes();
  std::vector<ChunkId> surplus;
  Ledger::LogicalView before;
  {
    MutexLock lock(mutex_);
    Device& device = devices_.at(logical);
    before = ledger_.View(logical);
    const bool preallocate = device.spec.preallocate;
    if (preallocate) {
      guarantee = limit;
    }
    LGPU_RETURN_IF_ERROR(ledger_.CheckSize(before.card, {.limit = limit, .guarantee = guarantee}));
    const Bytes more = SaturatingSub(guarantee, std::max(before.guarantee, before.held()));
    const absl::Status resized = MakeRoom(before.card, device.spec.owner, more, deadline, [&] {
      mutex_.AssertHeld();
      before = ledger_.View(logical);
      return ledger_.Resize(logical, {.limit = limit, .guarantee = guarantee});
    });
    if (!resized.ok()) {
      return absl::IsResourceExhausted(resized)
                 ? RefusalStatus(
                       MakeRefusal(device, logical, {.reason = RefusalReason::kCard, .asked = limit}))
                 : resized;
    }
    TakeAllowances(before.card, device.spec.lease);
    AskForExcess(logical, wakes);
    if (preallocate) {
      // What is leaving is lost to the device already: only what is granted counts.
      surplus = TakeBeyondLimit(logical, device);
      missing = ChargeMissing(logical, device);
      while (!missing && !stopping_ && now_() < deadline) {
        freed_.WaitUntil(mutex_, deadline);
        missing = ChargeMissing(logical, device);
      }
    }
    Serve(device.spec.card, wakes);
  }
  WakeAll(wakes);
  Reclaim(surplus);
  if (!missing) {
    ResizeBack(logical, before);
    return absl::UnavailableError(
        "the device's own memory is still on its way back from a process that used it; try again later");
  }
  if (missing->is_zero()) {
    return absl::OkStatus();
  }
  absl::Status made = MakeSpare(logical, *missing, now_());
  if (!made.ok()) {
    ResizeBack(logical, before);
  }
  return made;
}

std::optional<Bytes> Broker::ChargeMissing(LogicalId logical, Device& device) {
  const Ledger::LogicalView view = ledger_.View(logical);
  const Bytes rounded = RoundUp(view.limit, cards_.at(device.spec.card).device.granularity);
  const Bytes missing = SaturatingSub(rounded, view.granted + device.coming_again);
  if (missing.is_zero()) {
    return missing;
  }
  if (ledger_.Request(logical, missing).shortage != Ledger::Shortage::kNone) {
    return std::nullopt;
  }
  device.charged += missing;
  return missing;
}

void Broker::ResizeBack(LogicalId logical, const Ledger::LogicalView& before) {
  Wakes wakes;
  std::vector<ChunkId> surplus;
  {
    MutexLock lock(mutex_);
    const auto device = devices_.find(logical);
    if (device == devices_.end()) {
      return;  // it was removed meanwhile
    }
    // It cannot fail: it takes less than what was just possible. (The ledger keeps guarantees rounded up.)
    ledger_.Resize(logical, {.limit = before.limit, .guarantee = std::min(before.guarantee, before.limit)})
        .IgnoreError();
    // Others may have made chunks for the limit that it had meanwhile.
    surplus = TakeBeyondLimit(logical, device->second);
    // Waiting requests may fit into the guarantee that is free now.
    Serve(before.card, wakes);
  }
  WakeAll(wakes);
  Reclaim(surplus);
}

void Broker::RemoveDevice(LogicalId logical) {
  Wakes wakes;
  std::vector<ChunkId> spare;
  {
    MutexLock lock(mutex_);
    Device& device = devices_.at(logical);
    const CardId card = device.spec.card;
    device.removed = true;
    spare = TakeSurplus(device, device.spare_bytes);
    ForgetIfEmpty(logical);
    // A guarantee may be free now that no chunk was made for.
    Serve(card, wakes);
  }
  WakeAll(wakes);
  Reclaim(spare);
}

std::optional<Broker::DeviceInfo> Broker::Find(LogicalId logical) const {
  MutexLock lock(mutex_);
  const auto device = devices_.find(logical);
  if (device == devices_.end()) {
    return std::nullopt;
  }
  const Ledger::LogicalView view = ledger_.View(logical);
  const Bytes all = RoundUp(view.limit, cards_.at(view.card).device.granularity);
  // What is charged is not there yet.
  const Bytes there = view.held() - device->second.charged;
  const bool lacks = device->second.spec.preallocate && now_() >= device->second.last_charge + kBallastRest;
  return DeviceInfo{.limit = view.limit,
                    .guarantee = view.guarantee,
                    .held = view.held(),
                    .leaving = view.leaving,
                    .missing = lacks ? SaturatingSub(all, there) : Bytes(),
                    .charged = device->second.lent,
                    .card = view.card,
                    .card_free = ledger_.View(view.card).free()};
}

Bytes Broker::Held(SessionId session) const {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? Bytes() : found->second.held;
}

std::vector<Broker::CardInfo> Broker::Cards() const {
  std::vector<CardInfo> infos;
  MutexLock lock(mutex_);
  for (const auto& [id, card] : cards_) {
    const auto outsiders = outsiders_.find(id);
    infos.push_back({.id = id,
                     .card = card,
                     .view = ledger_.View(id),
                     .draining = Leaving(id),
                     .queue = QueueOf(id),
                     .observed = outsiders != outsiders_.end(),
                     .outsiders = outsiders == outsiders_.end() ? std::vector<DeviceMemory::ProcessMemory>()
                                                                : outsiders->second});
  }
  return infos;
}

std::size_t Broker::cards() const {
  MutexLock lock(mutex_);
  return cards_.size();
}

Bytes Broker::WholeCard(const CardInfo& card) {
  return RoundDown(SaturatingSub(card.view.total, card.view.reserve), card.view.granularity);
}

std::vector<const Broker::CardInfo*> Broker::ByRoom(std::vector<const CardInfo*> candidates,
                                                    const std::map<CardId, Bytes>& planned) {
  const auto room = [&](const CardInfo* info) {
    const auto found = planned.find(info->id);
    const double taken = found == planned.end() ? 0 : static_cast<double>(found->second.count());
    return static_cast<double>(info->view.free().count()) - taken;
  };
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const CardInfo* a, const CardInfo* b) { return room(a) > room(b); });
  return candidates;
}

void Broker::StopWaiting() {
  MutexLock lock(mutex_);
  stopping_ = true;
  freed_.NotifyAll();
}

Broker::Counters Broker::counters() const {
  MutexLock lock(mutex_);
  Counters counters = counters_;
  counters.trims = trims_.orders();
  return counters;
}

}  // namespace lgpu
