#include "allocator/broker/admission.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lgpu {
namespace {

// Even a request with timeout 0 waits this long for trims and turns.
constexpr std::chrono::milliseconds kGrace{100};
// A request of a suspended lease is told so often that it waits longer.
constexpr std::chrono::minutes kSuspendedAtOnce{30};

}  // namespace

void Admission::Admit(WaiterId id, Waiter& waiter) {
  if (waiter.guarantee) {
    waiter.guarantee->is_set_aside ? AdmitMissing(id, waiter) : AdmitGuarantee(id, waiter);
    return;
  }
  const DeviceEntry& device = tables_.devices.at(waiter.spec.device);
  const SessionEntry& session = tables_.sessions.at(waiter.spec.session);
  const auto suspension = tables_.suspensions.find(session.lease);
  const bool waits =
      suspension != tables_.suspensions.end() && !suspension->second.BringsBackByItself(waiter.spec.session);
  if (waits && !device.removed) {
    AdmitSuspended(id, waiter, suspension->second, session.waits_longer);
  } else if (absl::Status may = MayGrow(waiter); !may.ok()) {
    waiter.phase = Waiter::Phase::kRefused;
    waiter.refusal = std::move(may);
  } else if (device.removed) {
    waiter.phase = Waiter::Phase::kRefused;
    waiter.refusal = absl::FailedPreconditionError(
        absl::StrCat("lease ", device.spec.lease_name, " has ended; create another one"));
  } else if (waiter.charge) {
    AdmitCharge(id, waiter);
  } else if (waiter.spec.at_least > tables_.LimitOf(waiter.spec.device)) {
    Refuse(waiter, {.reason = RefusalReason::kLimit});  // whatever is on its way back
  } else if (device.spec.preallocate) {
    AdmitPreallocated(id, waiter);
  } else {
    AdmitGrowing(id, waiter);
  }
}

void Admission::AdmitSuspended(WaiterId id, Waiter& waiter, const Suspension& suspension, bool waits_longer) {
  if (waits_longer && !waiter.spec.ahead && !suspension.has_failed) {
    HoldBack(id, waiter);
    return;
  }
  const std::string& lease = tables_.devices.at(waiter.spec.device).spec.lease_name;
  waiter.phase = Waiter::Phase::kRefused;
  waiter.refusal =
      suspension.has_failed
          ? absl::FailedPreconditionError(absl::StrCat(
                "programs of lease ", lease, " could not be resumed, so it gets no more memory; end it with ",
                "`lgpu rm --kill ", lease, "`"))
          : absl::ResourceExhaustedError(
                absl::StrCat("lease ", lease, " is suspended, and gets memory again when it is resumed"));
}

void Admission::HoldBack(WaiterId id, Waiter& waiter) {
  const bool is_new = waiter.phase != Waiter::Phase::kSuspended;
  if (is_new) {
    Leave(id, waiter);
    waiter.EndLongerWait();
    waiter.phase = Waiter::Phase::kSuspended;
    waiter.suspended_at = tables_.now();
  }
  waiter.WaitLonger(tables_.now() + kSuspendedAtOnce);
  waiting_.times_changed = true;
  waiting_.Wake(waiter);
}

void Admission::GoOn(WaiterId id, Waiter& waiter) {
  const Broker::TimePoint now = tables_.now();
  waiter.EndLongerWait();
  const auto suspended = now - waiter.suspended_at;
  waiter.spec.asked_at += suspended;
  // It may stand in the queue at least, where leases may be asked for it.
  waiter.SetDeadline(std::max(std::max(waiter.spec.deadline, waiter.suspended_at) + suspended, now + kGrace));
  waiter.phase = Waiter::Phase::kNew;
  Admit(id, waiter);
  waiting_.times_changed = true;
  if (!waiter.Waits()) waiting_.Wake(waiter);
}

void Admission::AdmitGrowing(WaiterId id, Waiter& waiter) {
  const LogicalId logical = waiter.spec.device;
  const DeviceEntry& device = tables_.devices.at(logical);
  const CardQueue& queue = waiting_.queues.at(device.spec.card);
  const bool takes_free = !tables_.ledger.NeedOf(logical, waiter.spec.at_least).is_zero();
  // While requests wait, the memory they wait for is not spent on growth ahead of need.
  const bool others_first =
      waiter.spec.ahead && (!device.limit_waiters.empty() || (takes_free && !queue.empty()));
  if (others_first) {
    Refuse(waiter, {.reason = RefusalReason::kLimit});
    return;
  }
  const Bytes bytes = BytesToBook(waiter);
  Ledger::Verdict verdict = tables_.ledger.Check(logical, bytes);
  while (!waiter.spec.ahead && verdict.shortage != Ledger::Shortage::kNone) {
    const bool under_limit = verdict.shortage == Ledger::Shortage::kLimit;
    if (!charges_.TakeAllowances(device.spec.card, under_limit ? device.spec.lease : LeaseKey())) break;
    verdict = tables_.ledger.Check(logical, bytes);
  }
  if (verdict.shortage == Ledger::Shortage::kLimit) {
    WaitUnderLimit(id, waiter, SaturatingSub(verdict.short_by, verdict.coming_back));
    return;
  }
  const bool held_back = verdict.shortage == Ledger::Shortage::kNone && queue.turn() &&
                         !tables_.ledger.NeedOf(logical, bytes).is_zero();
  const auto is_kept_now = [&] {
    return verdict.shortage == Ledger::Shortage::kNone &&
           !LeavesRoom(waiter, tables_.ledger.NeedOf(logical, bytes));
  };
  bool is_kept = is_kept_now();
  if (is_kept && !waiter.spec.ahead && charges_.TakeAllowances(device.spec.card, LeaseKey())) {
    is_kept = is_kept_now();
  }
  if (held_back || is_kept || verdict.shortage == Ledger::Shortage::kCard) {
    WaitForCard(id, waiter, verdict.hopeless, held_back);
    return;
  }
  BookChunks(waiter, bytes);
}

Bytes Admission::BytesToBook(const Waiter& waiter) const {
  const LogicalId logical = waiter.spec.device;
  const Bytes most = std::min(waiter.spec.wanted, tables_.LimitOf(logical));
  if (most <= waiter.spec.at_least) return waiter.spec.at_least;
  const bool others_wait = !waiting_.queues.at(tables_.CardOf(logical)).empty();
  const bool fits = tables_.ledger.Check(logical, most).shortage == Ledger::Shortage::kNone &&
                    (!others_wait || tables_.ledger.NeedOf(logical, most).is_zero()) &&
                    LeavesRoom(waiter, tables_.ledger.NeedOf(logical, most));
  return fits ? most : waiter.spec.at_least;
}

void Admission::BookChunks(Waiter& waiter, Bytes bytes) {
  tables_.ledger.Request(waiter.spec.device, bytes);
  DeviceEntry& device = tables_.devices.at(waiter.spec.device);
  device.booked += bytes;
  device.claimed += waiter.spec.at_least;
  waiter.booked = bytes;
  waiter.phase = Waiter::Phase::kBooked;
}

void Admission::AdmitPreallocated(WaiterId id, Waiter& waiter) {
  const LogicalId logical = waiter.spec.device;
  const DeviceEntry& device = tables_.devices.at(logical);
  const Bytes at_least = waiter.spec.at_least;
  if (waiter.spec.ahead && !device.limit_waiters.empty()) {
    Refuse(waiter, {.reason = RefusalReason::kLimit});
    return;
  }
  if (chunks_.RoomOf(logical) < at_least) charges_.TakeAllowances(device.spec.card, device.spec.lease);
  const std::vector<ChunkId> picked = chunks_.PickSpare(logical, at_least, waiter.spec.wanted);
  if (!picked.empty()) {
    waiter.taken = chunks_.Grant(waiter.spec.session, picked);
    waiter.phase = Waiter::Phase::kServed;
    return;
  }
  const Bytes room = chunks_.RoomOf(logical);
  const Bytes lack = SaturatingSub(at_least, device.spare_bytes);
  if (room >= at_least && !lack.is_zero() &&
      tables_.ledger.Check(logical, lack).shortage == Ledger::Shortage::kNone) {
    // The device lacks chunks: those that the spare ones are too few for are made for this request. The spare
    // ones serve every request meanwhile.
    BookChunks(waiter, lack);
    return;
  }
  const Bytes possible =
      std::min(device.spare_bytes, room) + tables_.ledger.View(logical).leaving + device.booked;
  if (IsBeingMade(waiter)) {
    waiter.phase = Waiter::Phase::kLimit;
    tables_.devices.at(logical).limit_waiters.push_back(id);
  } else if (!waiter.spec.ahead && at_least <= room && room < device.spare_bytes && lack.is_zero()) {
    // After the limit was lowered the spare chunks are larger than the room beside memory that is leaving.
    // Smaller ones are made for this request as soon as those beyond the limit are freed.
    waiter.ballast = chunks_.TakeBallast({logical}, device.spare_bytes - room);
    waiter.phase = Waiter::Phase::kBallast;
  } else {
    WaitUnderLimit(id, waiter, SaturatingSub(at_least, possible));
  }
}

bool Admission::IsBeingMade(const Waiter& waiter) const {
  if (waiter.charge || waiter.guarantee) return false;
  const LogicalId logical = waiter.spec.device;
  const DeviceEntry& device = tables_.devices.at(logical);
  if (!device.spec.preallocate || device.booked.is_zero() || waiter.spec.ahead) return false;
  const Bytes to_be_spare = device.spare_bytes + device.booked;
  const Bytes others = tables_.ledger.View(logical).held() - to_be_spare;
  const Bytes room = std::min(to_be_spare, SaturatingSub(tables_.LimitOf(logical), others));
  return room >= device.claimed + waiter.spec.at_least;
}

void Admission::AdmitCharge(WaiterId id, Waiter& waiter) {
  const CardId card = waiter.charge->card;
  const LeaseKey lease = tables_.sessions.at(waiter.spec.session).lease;
  Ledger::Split split = charges_.SplitOf(waiter);
  while (split.verdict.shortage != Ledger::Shortage::kNone) {
    const bool under_limit = split.verdict.shortage == Ledger::Shortage::kLimit;
    if (!charges_.TakeAllowances(card, under_limit ? lease : LeaseKey())) break;
    split = charges_.SplitOf(waiter);
  }
  if (split.verdict.shortage == Ledger::Shortage::kLimit) {
    waiter.ballast = chunks_.TakeBallast(tables_.DevicesOn(lease, card), split.verdict.short_by);
    if (!waiter.ballast.empty()) {
      waiter.phase = Waiter::Phase::kBallast;
      return;
    }
    waiter.spec.deadline = waiter.spec.asked_at + kGrace;
    WaitUnderLimit(id, waiter, SaturatingSub(split.verdict.short_by, split.verdict.coming_back));
    return;
  }
  const bool held_back = split.verdict.shortage == Ledger::Shortage::kNone &&
                         waiting_.queues.at(card).turn() && !split.need.is_zero();
  bool is_kept = split.verdict.shortage == Ledger::Shortage::kNone && !LeavesRoom(waiter, split.need);
  if (is_kept && charges_.TakeAllowances(card, LeaseKey())) {
    split = charges_.SplitOf(waiter);
    is_kept = split.verdict.shortage == Ledger::Shortage::kNone && !LeavesRoom(waiter, split.need);
  }
  if (held_back || is_kept || split.verdict.shortage == Ledger::Shortage::kCard) {
    if (waiter.is_patient) waiter.spec.deadline = waiter.charge->card_deadline;
    WaitForCard(id, waiter, split.verdict.hopeless && !waiter.charge->is_retry, held_back);
    return;
  }
  BookFor(waiter, split);
}

void Admission::BookFor(Waiter& waiter, const Ledger::Split& split) {
  charges_.Book(waiter.spec.session, waiter.charge->card, waiter.charge->bytes, split.parts);
  waiter.phase = Waiter::Phase::kServed;
}

void Admission::WaitUnderLimit(WaiterId id, Waiter& waiter, Bytes missing) {
  if ((tables_.now() < waiter.spec.deadline && missing.is_zero()) ||
      (MayAsk(waiter) && trims_.AskUnderLimit(waiter, missing))) {
    waiter.phase = Waiter::Phase::kLimit;
    tables_.devices.at(waiter.spec.device).limit_waiters.push_back(id);
  } else {
    Refuse(waiter, {.reason = RefusalReason::kLimit});
  }
}

bool Admission::MayBeGivenWay(const Waiter& waiter) const {
  if (!preemptible_.MayPreempt(waiter)) return false;
  const Bytes free = tables_.ledger.View(waiter.card).free() + tables_.ComingBack(waiter.card);
  return NeedOf(waiter) <= free + preemptible_.YieldLater(waiter).likely;
}

bool Admission::HasPassingGuarantees(CardId card) const {
  return std::any_of(tables_.suspensions.begin(), tables_.suspensions.end(), [&](const auto& entry) {
    const Suspension& suspension = entry.second;
    if (!suspension.comes_back_by_itself()) return false;
    return std::any_of(suspension.after.begin(), suspension.after.end(), [&](const auto& guarantee) {
      const auto device = tables_.devices.find(guarantee.first);
      return device != tables_.devices.end() && device->second.spec.card == card &&
             tables_.ledger.View(guarantee.first).guarantee > guarantee.second;
    });
  });
}

void Admission::WaitForCard(WaiterId id, Waiter& waiter, bool is_hopeless, bool held_back) {
  const bool can_ever_be = !is_hopeless || MayBeGivenWay(waiter) || HasPassingGuarantees(waiter.card);
  if (can_ever_be && (tables_.now() < waiter.spec.deadline ||
                      ((held_back || trims_.HasHolders(waiter)) && MayAsk(waiter)))) {
    waiter.phase = Waiter::Phase::kCard;
    waiter.need = {};  // it asks other sessions than under the limit
    waiting_.QueueOf(waiter).Join(id, waiter.user);
  } else {
    Refuse(waiter, {.reason = RefusalReason::kCard});
  }
}

void Admission::AdmitGuarantee(WaiterId id, Waiter& waiter) {
  // While a turn runs, the card's free memory belongs to the request that has it.
  const Bytes free = waiting_.QueueOf(waiter).turn() ? Bytes() : tables_.ledger.View(waiter.card).free();
  if (waiter.spec.at_least <= free && LeavesRoom(waiter, waiter.spec.at_least)) {
    SetAside(id, waiter);
    if (waiter.phase != Waiter::Phase::kNew) return;
  }
  if (waiting_.stopping || tables_.now() >= waiter.spec.deadline) {
    Refuse(waiter, {.reason = RefusalReason::kCard});
    return;
  }
  waiter.phase = Waiter::Phase::kCard;
  waiting_.QueueOf(waiter).Join(id, waiter.user);
}

void Admission::SetAside(WaiterId id, Waiter& waiter) {
  absl::Status status = guarantees_.SetAside(id, waiter);
  if (status.ok()) {
    waiter.phase = waiter.booked.is_zero() ? Waiter::Phase::kServed : Waiter::Phase::kBooked;
  } else if (!absl::IsResourceExhausted(status)) {
    waiter.phase = Waiter::Phase::kRefused;
    waiter.refusal = std::move(status);
  }
}

bool Admission::SetAsideFromQueue(WaiterId id, Waiter& waiter, Bytes kept) {
  CardQueue& queue = waiting_.QueueOf(waiter);
  const bool held_back = queue.HoldsBack(id) && (waiter.aside.is_zero() || !NeedOf(waiter).is_zero());
  if (held_back || FreeFor(waiter, kept) > tables_.ledger.View(waiter.card).free()) return false;
  UseAside(id, waiter, held_back, kept);
  SetAside(id, waiter);
  if (waiter.phase == Waiter::Phase::kCard) return false;
  if (waiter.phase != Waiter::Phase::kRefused) queue.NoteServed(id);
  queue.Leave(id, tables_.now());
  waiting_.Wake(waiter);
  return true;
}

void Admission::AdmitMissing(WaiterId id, Waiter& waiter) {
  if (!waiter.booked.is_zero()) {
    waiter.phase = Waiter::Phase::kBooked;
    return;
  }
  const std::optional<Bytes> missing = chunks_.BookMissing(waiter.spec.device);
  if (missing) {
    waiter.booked = *missing;
    waiter.phase = missing->is_zero() ? Waiter::Phase::kServed : Waiter::Phase::kBooked;
  } else if (!waiting_.stopping && tables_.now() < waiter.spec.deadline) {
    waiter.phase = Waiter::Phase::kLimit;
    tables_.devices.at(waiter.spec.device).limit_waiters.push_back(id);
  } else {
    Refuse(waiter, {.reason = RefusalReason::kLimit});
  }
}

bool Admission::MayAsk(Waiter& waiter) const {
  const Broker::TimePoint now = tables_.now();
  if (now < waiter.spec.deadline) return true;
  if (!waiter.is_patient || waiter.spec.ahead || now >= waiter.spec.asked_at + kGrace) return false;
  waiter.is_patient = false;
  waiter.spec.deadline = waiter.spec.asked_at + kGrace;
  return true;
}

Bytes Admission::NeedOf(const Waiter& waiter) const {
  return SaturatingSub(WholeNeedOf(waiter), waiter.aside);
}

Bytes Admission::FreeFor(const Waiter& waiter, Bytes kept) const {
  const Bytes need = WholeNeedOf(waiter);
  const Bytes beside = kept.is_zero() || need.is_zero() || !kept_.IsFrom(waiter) ? Bytes() : kept;
  return SaturatingSub(need, waiter.aside) + beside;
}

bool Admission::LeavesRoom(const Waiter& waiter, Bytes need) const {
  if (need.is_zero() || tables_.suspensions.empty()) return true;
  return need + kept_.Beside(waiter).bytes <= tables_.ledger.View(waiter.card).free();
}

bool Admission::FreeAside(WaiterId id, Waiter& waiter) {
  if (waiter.aside.is_zero()) return false;
  waiter.aside = Bytes();
  return guarantees_.Free(id);
}

bool Admission::UseAside(WaiterId id, Waiter& waiter, bool held_back, Bytes kept) {
  if (waiter.aside.is_zero()) return true;
  if (held_back || FreeFor(waiter, kept) > tables_.ledger.View(waiter.card).free()) return false;
  FreeAside(id, waiter);
  return true;
}

void Admission::NoteServed(const Waiter& waiter, Bytes aside) {
  if (aside.is_zero() || !waiter.spec.session) return;
  const LeaseKey lease = tables_.sessions.at(waiter.spec.session).lease;
  // It has its time from here on.
  if (ReleaseRecord* const record = tables_.FindPreempted(lease)) record->runs_since = tables_.now();
  waiting_.news.push_back({.what = GivingWayNews::What::kServed,
                           .lease = lease,
                           .bytes = aside,
                           .took = tables_.now() - waiter.spec.asked_at});
}

Bytes Admission::WholeNeedOf(const Waiter& waiter) const {
  if (waiter.guarantee) return waiter.spec.at_least;
  return waiter.charge ? charges_.SplitOf(waiter).need
                       : tables_.ledger.NeedOf(waiter.spec.device, waiter.spec.at_least);
}

absl::Status Admission::MayGrow(const Waiter& waiter) const {
  return tables_.CheckMayGrow(tables_.sessions.at(waiter.spec.session));
}

bool Admission::AdmitFromQueue(WaiterId id, Waiter& waiter, Bytes kept) {
  if (waiter.guarantee) return SetAsideFromQueue(id, waiter, kept);
  if (!MayGrow(waiter).ok()) {
    Leave(id, waiter);
    Admit(id, waiter);  // refuses it
    waiting_.Wake(waiter);
    return true;
  }
  const Bytes bytes = waiter.spec.at_least;
  const bool held_back = waiting_.QueueOf(waiter).HoldsBack(id) && !NeedOf(waiter).is_zero();
  const Bytes aside = waiter.aside;
  if (!UseAside(id, waiter, held_back, kept)) return false;
  const Ledger::Split split = waiter.charge ? charges_.SplitOf(waiter) : Ledger::Split();
  const Ledger::Shortage shortage =
      waiter.charge ? split.verdict.shortage : tables_.ledger.Check(waiter.spec.device, bytes).shortage;
  if (shortage == Ledger::Shortage::kCard || (shortage == Ledger::Shortage::kNone && held_back)) return false;
  // UseAside has looked at one that has something aside.
  const bool takes_kept = aside.is_zero() && FreeFor(waiter, kept) > tables_.ledger.View(waiter.card).free();
  if (shortage == Ledger::Shortage::kNone && takes_kept) return false;
  if (shortage == Ledger::Shortage::kNone) {
    waiting_.QueueOf(waiter).NoteServed(id);
    NoteServed(waiter, aside);
  }
  Leave(id, waiter);
  if (shortage == Ledger::Shortage::kLimit) {
    Admit(id, waiter);  // another request of its device took what the limit had room for
  } else if (waiter.charge) {
    BookFor(waiter, split);
  } else {
    BookChunks(waiter, bytes);
  }
  waiting_.Wake(waiter);
  return true;
}

void Admission::AdmitUnderLimit(LogicalId device) {
  const std::deque<WaiterId> waiting = std::exchange(tables_.devices.at(device).limit_waiters, {});
  for (const WaiterId id : waiting) {
    Waiter& waiter = waiting_.waiters.at(id);
    Admit(id, waiter);
    if (!waiter.Waits()) waiting_.Wake(waiter);
  }
}

void Admission::Leave(WaiterId id, Waiter& waiter) {
  if (waiter.phase == Waiter::Phase::kCard) {
    waiting_.QueueOf(waiter).Leave(id, tables_.now());
    FreeAside(id, waiter);
    waiter.need = {};  // under the limit it asks other sessions
  } else if (waiter.phase == Waiter::Phase::kLimit) {
    std::erase(tables_.devices.at(waiter.spec.device).limit_waiters, id);
  } else if (waiter.phase == Waiter::Phase::kBooked) {
    EndClaim(waiter);
    chunks_.Unbook(waiter.spec.device, std::exchange(waiter.booked, Bytes()));
  }
  waiter.phase = Waiter::Phase::kNew;
}

void Admission::Refuse(Waiter& waiter, RefusalCause cause) {
  waiter.phase = Waiter::Phase::kRefused;
  if (waiter.guarantee) {
    waiter.refusal = refusals_.OfGuarantee(waiter, kept_.Beside(waiter));
    // Before waiting requests are looked at: none is served from a limit that does not stay.
    if (waiter.guarantee->IsUndoneWhenRefused()) guarantees_.Undo(waiter);
    return;
  }
  if (waiter.spec.ahead) {
    waiter.refusal = absl::ResourceExhaustedError("no memory is free for growing ahead");
    return;
  }
  cause.asked = waiter.spec.at_least;
  cause.asked_leases = waiter.asked_leases;
  if (cause.reason == RefusalReason::kCard) cause.kept = kept_.Beside(waiter);
  const auto waited =
      std::chrono::duration_cast<std::chrono::milliseconds>(tables_.now() - waiter.spec.asked_at);
  if (waited.count() > 0) cause.waited = waited;
  waiter.refusal = RefusalStatus(waiter.charge ? refusals_.OfCharge(waiter, std::move(cause))
                                               : refusals_.OfDevice(waiter.spec.device, cause));
}

void Admission::RefuseWaiting(WaiterId id, Waiter& waiter, RefusalCause cause) {
  Leave(id, waiter);
  Refuse(waiter, std::move(cause));
  waiting_.Wake(waiter);
}

void Admission::Cancel(WaiterId id, Waiter& waiter) {
  if (waiter.guarantee && !waiter.booked.is_zero()) {
    waiter.spec.deadline = tables_.now();  // the thread that makes its chunks gives up
    waiter.phase = Waiter::Phase::kBooked;
  } else {
    Leave(id, waiter);
    waiter.phase = Waiter::Phase::kRefused;
    waiter.refusal = absl::CancelledError("the program gave the request up");
    if (waiter.guarantee && waiter.guarantee->IsUndoneWhenRefused()) guarantees_.Undo(waiter);
  }
  waiting_.Wake(waiter);
}

}  // namespace lgpu
