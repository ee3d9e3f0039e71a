#include "allocator/broker/refusal_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/refusal_text.h"

namespace lgpu {
namespace {

// The largest ones; a refusal has to fit into the 8 KiB of metadata that gRPC carries.
constexpr std::size_t kMaxHolders = 10;

std::string Seconds(std::chrono::steady_clock::duration time) {
  return absl::StrFormat("%.1f s", std::max(0.0, std::chrono::duration<double>(time).count()));
}

std::string CardText(const BrokerCard& card) {
  return absl::StrCat("GPU ", card.index, " (", card.device.simulated ? "simulated" : card.device.name, ")");
}

/// What `owner` may do about the holders of a card: end a lease of their own, or ask the others.
std::string HolderAdvice(const Refusal& refusal, const std::string& owner) {
  const Refusal::Holder* other = nullptr;
  for (const Refusal::Holder& holder : refusal.holders) {
    if (holder.lease == refusal.lease && holder.owner == owner) continue;
    if (holder.owner == owner) return absl::StrCat("end a lease of yours: lgpu rm ", holder.lease);
    // Idle memory is the first to ask for.
    if (other == nullptr || (IdleRemark(*other).empty() && !IdleRemark(holder).empty())) other = &holder;
  }
  if (other == nullptr) return "wait longer";
  return absl::StrCat("ask ", other->owner, " to free memory of lease ", other->lease, IdleRemark(*other),
                      ", or wait longer");
}

}  // namespace

RefusalCause RefusalCause::OfBackend(const absl::Status& status, Bytes asked) {
  const std::optional<Refusal> refusal = GetRefusal(status);
  const bool descriptors = refusal && refusal->reason == RefusalReason::kDescriptors;
  return {.reason = descriptors ? RefusalReason::kDescriptors : RefusalReason::kBackend,
          .asked = asked,
          .detail = std::string(status.message())};
}

void RefusalBuilder::AddHolders(Refusal& refusal, CardId card, LogicalId except) const {
  for (const LogicalId logical : tables_.ledger.LogicalsOf(card)) {
    const DeviceEntry& device = tables_.devices.at(logical);
    const Ledger::LogicalView view = tables_.ledger.View(logical);
    if (logical == except || (view.held().is_zero() && view.guarantee.is_zero())) continue;
    Refusal::Holder holder{.lease = device.spec.lease_name,
                           .owner = device.spec.owner,
                           .pid = 0,
                           .device = device.spec.device_name,
                           .held = view.held(),
                           .guarantee = view.guarantee};
    if (device.last_use) {
      holder.idle = std::chrono::duration_cast<std::chrono::milliseconds>(
          std::max(tables_.now() - *device.last_use, Broker::TimePoint::duration::zero()));
    }
    // Of several processes that share the device, the one that holds most.
    Bytes most;
    for (const auto& [session, held] : device.held_by) {
      if (held <= most) continue;
      most = held;
      holder.pid = tables_.sessions.at(session).pid;
    }
    refusal.holders.push_back(std::move(holder));
  }
  std::stable_sort(refusal.holders.begin(), refusal.holders.end(),
                   [](const Refusal::Holder& a, const Refusal::Holder& b) {
                     return std::max(a.held, a.guarantee) > std::max(b.held, b.guarantee);
                   });
  if (refusal.holders.size() > kMaxHolders) refusal.holders.resize(kMaxHolders);
}

std::string RefusalBuilder::DescribeWaiter(WaiterId id) const {
  const Waiter& waiter = waiting_.waiters.at(id);
  const Broker::GrowSpec& spec = waiter.spec;
  if (waiter.guarantee) {
    return absl::StrCat("a lease that is being made and needs ", FormatBytes(spec.at_least));
  }
  const Broker::DeviceSpec& device = tables_.devices.at(spec.device).spec;
  return absl::StrCat(device.device_name,
                      device.lease_name.empty() ? "" : absl::StrCat(" of lease ", device.lease_name),
                      " (user ", device.owner, ", pid ", tables_.sessions.at(spec.session).pid,
                      "), which waits for ", FormatBytes(spec.at_least));
}

void RefusalBuilder::AddTurnAdvice(Refusal& refusal, CardId card, Bytes need, int turns) const {
  const std::optional<CardQueue::Turn>& turn = waiting_.queues.at(card).turn();
  if (turn && need <= tables_.ledger.View(card).free()) {
    refusal.advice.push_back(absl::StrCat(
        "ask again, or wait longer: the free memory is held back for ", DescribeWaiter(turn->of),
        "; its turn ends in ", Seconds(turn->ends - tables_.now()), " at the latest (memory.max_drain)"));
  } else if (turns > 0) {
    refusal.advice.push_back(
        absl::StrCat("ask for less: the request had ", turns, turns == 1 ? " turn" : " turns", " of at most ",
                     Seconds(waiting_.max_drain), " (memory.max_drain), and too little became free in each"));
  }
}

void RefusalBuilder::AddKeptAdvice(Refusal& refusal, const KeptRoom::Kept& kept, Bytes free) const {
  if (kept.bytes.is_zero()) return;
  refusal.advice.push_back(absl::StrCat("ask for less: ", FormatBytes(std::min(kept.bytes, free)),
                                        " of the free memory is kept for lease ", tables_.NameOf(kept.lease),
                                        ", which gave way; leases with --preemptible may use it"));
}

void RefusalBuilder::AddCardAdvice(Refusal& refusal, const DeviceEntry& device,
                                   const RefusalCause& cause) const {
  const bool has_leases = !device.spec.lease_name.empty();
  switch (cause.reason) {
    case RefusalReason::kCard:
      refusal.advice.push_back(has_leases ? HolderAdvice(refusal, device.spec.owner)
                                          : "free tensors of the other devices of this card, or wait longer");
      return;
    case RefusalReason::kDeadlock:
      refusal.advice.push_back(
          refusal.holders.empty()
              ? absl::StrCat("free memory of this program, ask for at most ",
                             FormatBytesCut(*refusal.card_free),
                             ", or end programs outside lgpu that use the GPU")
              : "every holder of the card waits for memory of another one, this request was the last to "
                "come: free memory and ask again, or give the devices a guarantee");
      return;
    case RefusalReason::kDescriptors:
      refusal.advice.push_back(
          absl::StrCat(has_leases ? "raise the daemon's open file limit (LimitNOFILE=, ulimit -n): "
                                  : "raise the limit of open files (ulimit -n): ",
                       cause.detail));
      return;
    default:
      refusal.advice.push_back(absl::StrCat(
          "the device has less than the ledger expects, something else uses it: ", cause.detail));
  }
}

Refusal RefusalBuilder::OfDevice(LogicalId id, const RefusalCause& cause) const {
  const DeviceEntry& device = tables_.devices.at(id);
  const Ledger::LogicalView view = tables_.ledger.View(id);
  Refusal refusal;
  refusal.reason = cause.reason;
  refusal.device = device.spec.device_name;
  refusal.lease = device.spec.lease_name;
  refusal.asked = cause.asked;
  refusal.limit = view.limit;
  refusal.held = view.held();
  refusal.waited = cause.waited;
  const bool limit_is_short = cause.reason == RefusalReason::kLimit;
  const Bytes coming_back = limit_is_short ? view.leaving : tables_.Leaving(view.card);
  if (!coming_back.is_zero()) refusal.coming_back = coming_back;
  if (limit_is_short) {
    refusal.advice.push_back(absl::StrCat("give the device a higher memory_limit than ",
                                          FormatBytes(view.limit), ", or free tensors in its programs"));
    return refusal;
  }
  const Ledger::CardView card = tables_.ledger.View(view.card);
  refusal.card = CardText(tables_.cards.at(view.card));
  refusal.card_total = card.total;
  refusal.card_free = card.free();
  AddHolders(refusal, view.card, id);
  if (cause.reason == RefusalReason::kCard) {
    AddKeptAdvice(refusal, cause.kept, card.free());
    for (const AskedLease& asked : cause.asked_leases) {
      refusal.advice.push_back(
          asked.was_idle ? absl::StrCat("ask for less: lease ", asked.name,
                                        " was asked to give way and gave ", FormatBytes(asked.given))
                         : absl::StrCat("ask again: lease ", asked.name, " may give way, and was in use"));
    }
    AddTurnAdvice(refusal, view.card, tables_.ledger.NeedOf(id, cause.asked), cause.turns);
  }
  AddCardAdvice(refusal, device, cause);
  return refusal;
}

Refusal RefusalBuilder::OfCharge(const Waiter& waiter, RefusalCause cause) const {
  cause.asked = waiter.charge->bytes;
  Refusal refusal = OfDevice(waiter.spec.device, cause);
  refusal.what = waiter.charge->what;
  Bytes limit, held;
  const LeaseKey lease = tables_.sessions.at(waiter.spec.session).lease;
  for (const LogicalId logical : tables_.DevicesOn(lease, waiter.charge->card)) {
    const Ledger::LogicalView view = tables_.ledger.View(logical);
    limit += view.limit;
    held += view.held();
  }
  if (cause.reason == RefusalReason::kLimit) {
    refusal.advice = {absl::StrCat("give the lease a higher memory_limit than ", FormatBytes(limit),
                                   ", or free memory in its programs")};
  }
  refusal.limit = limit;
  refusal.held = held;
  return refusal;
}

absl::Status RefusalBuilder::OfGuarantee(const Waiter& waiter, const KeptRoom::Kept& kept) const {
  const GuaranteeWish& wish = *waiter.guarantee;
  if (wish.is_set_aside) {
    return absl::UnavailableError(
        "the device's own memory is still on its way back from a process that used it; try again later");
  }
  if (wish.what != GuaranteeWish::For::kResize) {
    return RefusalStatus(OfNewDevice(wish.spec, wish.size.guarantee, kept));
  }
  return RefusalStatus(OfDevice(
      waiter.spec.device, {.reason = RefusalReason::kCard, .asked = wish.size.guarantee, .kept = kept}));
}

Refusal RefusalBuilder::OfNewDevice(const Broker::DeviceSpec& spec, Bytes guarantee,
                                    const KeptRoom::Kept& kept) const {
  const Ledger::CardView view = tables_.ledger.View(spec.card);
  Refusal refusal;
  refusal.reason = RefusalReason::kCard;
  refusal.device = spec.device_name;
  refusal.lease = spec.lease_name;
  refusal.what = spec.preallocate ? "preallocated memory" : "guaranteed memory";
  // The request's other devices wait for nothing: what they have set aside is part of what is asked for.
  const Bytes own = SetAsideBy(spec);
  refusal.asked = guarantee + own;
  refusal.limit = spec.limit;
  refusal.card = CardText(tables_.cards.at(spec.card));
  refusal.card_total = view.total;
  refusal.card_free = view.free() + own;
  const Bytes leaving = tables_.Leaving(spec.card);
  if (!leaving.is_zero()) refusal.coming_back = leaving;
  AddHolders(refusal, spec.card, LogicalId());
  AddTurnAdvice(refusal, spec.card, RoundUp(guarantee, view.granularity), 0);
  std::erase_if(refusal.holders, [&spec](const Refusal::Holder& holder) {
    return !spec.lease_name.empty() && holder.lease == spec.lease_name && holder.owner == spec.owner;
  });
  AddKeptAdvice(refusal, kept, view.free());
  const Bytes most = SaturatingSub(view.free(), kept.bytes);
  if (!most.is_zero()) refusal.advice.push_back(absl::StrCat("ask for at most ", FormatBytesCut(most)));
  refusal.advice.emplace_back("use growth without a guarantee");
  if (!spec.lease_name.empty()) refusal.advice.push_back(HolderAdvice(refusal, spec.owner));
  return refusal;
}

Bytes RefusalBuilder::SetAsideBy(const Broker::DeviceSpec& spec) const {
  Bytes sum;
  if (spec.lease_name.empty()) return sum;
  for (const LogicalId logical : tables_.ledger.LogicalsOf(spec.card)) {
    if (tables_.devices.at(logical).spec.lease != spec.lease) continue;
    const Ledger::LogicalView view = tables_.ledger.View(logical);
    sum += std::max(view.guarantee, view.held());
  }
  return sum;
}

std::string RefusalBuilder::DescribeForEveryUser(WaiterId id) const {
  const Waiter& waiter = waiting_.waiters.at(id);
  return absl::StrCat("user ", waiter.user, "'s request for ", FormatBytes(waiter.spec.at_least));
}

std::string RefusalBuilder::OfWaitingLease(WaiterId id, WaiterId before, Bytes kept) const {
  const Waiter& waiter = waiting_.waiters.at(id);
  const std::optional<CardQueue::Turn>& turn = waiting_.queues.at(waiter.card).turn();
  std::string text =
      absl::StrCat(FormatBytes(waiter.spec.at_least), " on GPU ", tables_.cards.at(waiter.card).index, ": ");
  if (before) absl::StrAppend(&text, "behind ", DescribeForEveryUser(before), "; ");
  if (turn && turn->of != id) {
    absl::StrAppend(&text, "what is free is held back for ", DescribeForEveryUser(turn->of), "; ");
  } else if (turn) {
    absl::StrAppend(&text, "what becomes free is held back for it; ");
  }
  const Bytes free = tables_.ledger.View(waiter.card).free();
  if (!kept.is_zero()) {
    absl::StrAppend(&text, FormatBytes(std::min(kept, free)), " is kept for a lease that gave way; ");
  }
  absl::StrAppend(&text, FormatBytesCut(SaturatingSub(free, kept)), " can be promised");
  Refusal holders;
  AddHolders(holders, waiter.card, LogicalId());
  if (!holders.holders.empty()) {
    const Refusal::Holder& most = holders.holders.front();
    absl::StrAppend(&text, ", user ", most.owner,
                    " has most: ", FormatBytes(std::max(most.held, most.guarantee)), IdleRemark(most));
  }
  return text;
}

}  // namespace lgpu
