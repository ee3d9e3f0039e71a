#include <algorithm>
#include <utility>

#include "daemon/broker.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

absl::StatusOr<LogicalId> Broker::AddDevice(const DeviceSpec& spec, TimePoint deadline) {
  LogicalId id;
  Bytes preallocated;
  {
    MutexLock lock(mutex_);
    const Bytes guarantee = spec.preallocate ? spec.limit : spec.guarantee;
    absl::StatusOr<LogicalId> added =
        ledger_.AddLogical(spec.card, {.limit = spec.limit, .guarantee = guarantee});
    while (absl::IsResourceExhausted(added.status()) && !Leaving(spec.card).is_zero() && !stopping_ &&
           Clock::now() < deadline) {
      freed_.WaitUntil(mutex_, deadline);
      added = ledger_.AddLogical(spec.card, {.limit = spec.limit, .guarantee = guarantee});
    }
    if (!added.ok()) {
      return absl::IsResourceExhausted(added.status()) ? RefusalStatus(RefuseDevice(spec, guarantee))
                                                       : added.status();
    }
    id = *added;
    Device& device = devices_[id];
    device.spec = spec;
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

absl::Status Broker::ResizeDevice(LogicalId logical, Bytes limit, Bytes guarantee) {
  Wakes wakes;
  Bytes missing;
  std::vector<ChunkId> surplus;
  Ledger::LogicalView before;
  {
    MutexLock lock(mutex_);
    Device& device = devices_.at(logical);
    before = ledger_.View(logical);
    if (device.spec.preallocate) {
      guarantee = limit;
    }
    if (absl::Status status = ledger_.Resize(logical, {.limit = limit, .guarantee = guarantee});
        !status.ok()) {
      return absl::IsResourceExhausted(status)
                 ? RefusalStatus(
                       MakeRefusal(device, logical, {.reason = RefusalReason::kCard, .asked = limit}))
                 : status;
    }
    if (device.spec.preallocate) {
      const Bytes rounded = RoundUp(limit, cards_.at(device.spec.card).device.granularity);
      missing = SaturatingSub(rounded, before.held());
      if (!missing.is_zero() && ledger_.Request(logical, missing).shortage == Ledger::Shortage::kNone) {
        device.charged += missing;
      } else {
        missing = Bytes();
      }
      surplus = TakeSurplus(device, SaturatingSub(before.held(), rounded));
    }
    Serve(device.spec.card, wakes);
  }
  WakeAll(wakes);
  Reclaim(surplus);
  if (missing.is_zero()) {
    return absl::OkStatus();
  }
  absl::Status made = MakeSpare(logical, missing, Clock::now());
  if (!made.ok()) {
    MutexLock lock(mutex_);
    // Going back to what was there cannot fail: it takes less than what was just possible.
    ledger_.Resize(logical, {.limit = before.limit, .guarantee = before.guarantee}).IgnoreError();
  }
  return made;
}

void Broker::RemoveDevice(LogicalId logical) {
  std::vector<ChunkId> spare;
  {
    MutexLock lock(mutex_);
    Device& device = devices_.at(logical);
    device.removed = true;
    spare = TakeSurplus(device, device.spare_bytes);
    ForgetIfEmpty(logical);
  }
  Reclaim(spare);
}

std::optional<Broker::DeviceInfo> Broker::Find(LogicalId logical) const {
  MutexLock lock(mutex_);
  const auto device = devices_.find(logical);
  if (device == devices_.end()) {
    return std::nullopt;
  }
  const Ledger::LogicalView view = ledger_.View(logical);
  return DeviceInfo{.limit = view.limit,
                    .guarantee = view.guarantee,
                    .held = view.held(),
                    .leaving = view.leaving + device->second.draining,
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
    infos.push_back({.id = id,
                     .card = card,
                     .view = ledger_.View(id),
                     .draining = Leaving(id),
                     .waiting = ledger_.QueueOf(id).size()});
  }
  return infos;
}

void Broker::StopWaiting() {
  MutexLock lock(mutex_);
  stopping_ = true;
  freed_.NotifyAll();
}

Broker::Counters Broker::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

}  // namespace lgpu::daemon
