#include "allocator/broker/guarantees.h"

#include <algorithm>

#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {

absl::Status Guarantees::SetAside(WaiterId id, Waiter& waiter) {
  switch (waiter.guarantee->what) {
    case GuaranteeWish::For::kNewDevice:
      LGPU_RETURN_IF_ERROR(MakeDevice(waiter));
      break;
    case GuaranteeWish::For::kResize:
      LGPU_RETURN_IF_ERROR(ResizeDevice(waiter));
      break;
    case GuaranteeWish::For::kReservation:
      LGPU_RETURN_IF_ERROR(SetAsideForLease(id, waiter));
      break;
  }
  waiter.guarantee->is_set_aside = true;
  return absl::OkStatus();
}

absl::Status Guarantees::MakeDevice(Waiter& waiter) {
  const GuaranteeWish& wish = *waiter.guarantee;
  LGPU_ASSIGN_OR_RETURN(const LogicalId made, tables_.ledger.AddLogical(waiter.card, wish.size));
  DeviceEntry& device = tables_.devices[made];
  device.spec = wish.spec;
  device.preempted.runs_since = tables_.now();
  if (wish.spec.preallocate) {
    const Bytes bytes = tables_.LimitOf(made);
    if (tables_.ledger.Request(made, bytes).shortage != Ledger::Shortage::kNone) {
      tables_.devices.erase(made);
      LGPU_RETURN_IF_ERROR(tables_.ledger.RemoveLogical(made));
      return absl::ResourceExhaustedError("the card has too little for the chunks of a preallocated device");
    }
    device.booked = bytes;
    waiter.booked = bytes;
  }
  waiter.spec.device = made;
  return absl::OkStatus();
}

absl::Status Guarantees::ResizeDevice(Waiter& waiter) {
  const Ledger::LogicalView now = tables_.ledger.View(waiter.spec.device);
  // The ledger keeps guarantees rounded up.
  waiter.guarantee->before = {.limit = now.limit, .guarantee = std::min(now.guarantee, now.limit)};
  return tables_.ledger.Resize(waiter.spec.device, waiter.guarantee->size);
}

void Guarantees::Undo(const Waiter& waiter) {
  // It cannot fail: the smaller size takes nothing of the card.
  LGPU_CHECK(tables_.ledger.Resize(waiter.spec.device, waiter.guarantee->before).ok());
}

absl::Status Guarantees::SetAsideForLease(WaiterId id, const Waiter& waiter) {
  const Bytes bytes = waiter.spec.at_least;
  LGPU_ASSIGN_OR_RETURN(const LogicalId made,
                        tables_.ledger.AddLogical(waiter.card, {.limit = bytes, .guarantee = bytes}));
  tables_.devices[made].spec = {.card = waiter.card,
                                .limit = bytes,
                                .guarantee = bytes,
                                .lease = {},
                                .lease_name = waiter.guarantee->spec.lease_name,
                                .owner = waiter.user};
  tables_.devices[made].is_aside_for_preemptible = preemptible_.CanBeTakenBack(waiter);
  waiting_.set_aside.emplace(id, made);
  return absl::OkStatus();
}

bool Guarantees::Free(WaiterId request) {
  const auto found = waiting_.set_aside.find(request);
  if (found == waiting_.set_aside.end()) return false;
  tables_.devices.at(found->second).removed = true;
  tables_.ForgetIfEmpty(found->second);
  waiting_.set_aside.erase(found);
  return true;
}

void Guarantees::SetMoreAside(WaiterId id, Waiter& waiter, Bytes more) {
  waiter.aside += more;
  const Ledger::LogicalOptions size{.limit = waiter.aside, .guarantee = waiter.aside};
  if (const auto found = waiting_.set_aside.find(id); found != waiting_.set_aside.end()) {
    LGPU_CHECK(tables_.ledger.Resize(found->second, size).ok());
    return;
  }
  const absl::StatusOr<LogicalId> made = tables_.ledger.AddLogical(waiter.card, size);
  LGPU_CHECK(made.ok());
  DeviceEntry& device = tables_.devices[*made];
  device.spec = {.card = waiter.card, .limit = waiter.aside, .guarantee = waiter.aside, .lease = {}};
  device.spec.owner = waiter.user;
  device.is_aside_for_preemptible = preemptible_.CanBeTakenBack(waiter);
  if (waiter.guarantee) device.spec.lease_name = waiter.guarantee->spec.lease_name;
  if (waiter.spec.device) device.spec.lease_name = tables_.devices.at(waiter.spec.device).spec.lease_name;
  waiting_.set_aside.emplace(id, *made);
}

bool Guarantees::TakeFrom(const Broker::DeviceSpec& spec, Bytes guarantee) {
  const auto found = waiting_.set_aside.find(spec.room);
  if (found == waiting_.set_aside.end() || tables_.CardOf(found->second) != spec.card) return false;
  const Bytes rounded = RoundUp(guarantee, tables_.GranuleOf(spec.card));
  const Bytes there = tables_.ledger.View(found->second).guarantee;
  if (there <= rounded) {
    Free(spec.room);
    return there == rounded;
  }
  const Bytes rest = there - rounded;
  LGPU_CHECK(tables_.ledger.Resize(found->second, {.limit = rest, .guarantee = rest}).ok());
  return true;
}

}  // namespace lgpu
