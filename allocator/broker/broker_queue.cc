// Requests that wait for memory of a card: which are served, which one has the
// turn, and which ones nothing can serve. CardQueue has the order and the clock
// of turns.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker_impl.h"

namespace lgpu {

void BrokerImpl::Serve(CardId card) {
  served_at_[card] = core_.now();
  // What programs have not used of what was lent to them is free for requests
  // that wait.
  if (!core_.tables.queues.at(card).empty()) TakeAllowances(card, LeaseKey());
  do {
    GrantQueued(card);
    RetryUnderLimits(card);
  } while (MoveTurnOn(card));
  core_.tables.freed.NotifyAll();
}

void BrokerImpl::GrantQueued(CardId card) {
  CardQueue& queue = core_.tables.queues.at(card);
  if (queue.IsTurnOver(core_.now())) {
    queue.EndTurn(core_.now());
  }
  // A grant can end a turn, or leave another request of its device above the
  // limit.
  for (bool again = !queue.empty(); again;) {
    again = false;
    const bool held_back = queue.turn().has_value();
    for (const WaiterId id : queue.Order()) {
      again |= core_.tables.rooms.contains(id) ? TryRoom(id, queue) : GrantWaiter(id, queue);
      if (held_back && !queue.turn()) {
        break;  // those before it are held back no more
      }
    }
  }
}

bool BrokerImpl::GrantWaiter(WaiterId id, CardQueue& queue) {
  Waiter& waiter = core_.tables.waiters.at(id);
  const LogicalId device = waiter.spec.device;
  const Bytes bytes = waiter.spec.at_least;
  const Ledger::Split split = waiter.charge ? SplitOf(waiter) : Ledger::Split();
  const Ledger::Shortage shortage =
      waiter.charge ? split.verdict.shortage : core_.tables.ledger.Check(device, bytes).shortage;
  const bool held_back = queue.HoldsBack(id) && !NeedOf(waiter).is_zero();
  if (shortage == Ledger::Shortage::kCard || (shortage == Ledger::Shortage::kNone && held_back)) {
    return false;
  }
  LeaveQueues(id, waiter);
  if (shortage == Ledger::Shortage::kNone && waiter.charge) {
    Book(waiter.spec.session, waiter.charge->card, waiter.charge->bytes, split.parts);
    waiter.phase = Waiter::Phase::kTaken;
  } else if (shortage == Ledger::Shortage::kNone) {
    core_.tables.ledger.Request(device, bytes);
    waiter.phase = Waiter::Phase::kCharged;
    waiter.charged = bytes;
    core_.tables.devices.at(device).charged += bytes;
  } else {
    Charge(id, waiter);  // it is short of its limit now
  }
  core_.tables.wakes.push_back(core_.tables.sessions.at(waiter.spec.session).waker);
  return true;
}

void BrokerImpl::RetryUnderLimits(CardId card) {
  for (const LogicalId logical : core_.tables.ledger.LogicalsOf(card)) {
    std::deque<GrowId> waiting = std::exchange(core_.tables.devices.at(logical).limit_waiters, {});
    for (const GrowId id : waiting) {
      Waiter& waiter = core_.tables.waiters.at(id);
      const TimePoint before = waiter.need.look_again;
      Charge(id, waiter);
      if (waiter.phase != Waiter::Phase::kLimit || waiter.need.look_again != before) {
        core_.tables.wakes.push_back(core_.tables.sessions.at(waiter.spec.session).waker);
      }
    }
  }
}

bool BrokerImpl::MoveTurnOn(CardId card) {
  CardQueue& queue = core_.tables.queues.at(card);
  if (queue.empty()) {
    return false;
  }
  const Reach reach = ReachOf(card);
  if (queue.turn()) {
    const WaiterId id = queue.turn()->of;
    AskForCard(id, card);
    if (MayBeServed(id, card, reach)) {
      return false;
    }
    queue.EndTurn(core_.now());
    if (!WishOf(id).patient) {
      GiveUp(id);
    }
    return true;
  }
  const std::vector<WaiterId> order = queue.Order();
  for (const WaiterId id : order) {
    if (MayBeServed(id, card, reach)) {
      const bool starts = queue.MayStartTurn(core_.now());
      if (starts) {
        queue.StartTurn(id, core_.now());
      }
      return starts;
    }
  }
  // As things are, no request can be served.
  for (const WaiterId id : order) {
    if (!WishOf(id).patient) {
      GiveUp(id);
      return true;
    }
  }
  const std::optional<WaiterId> victim = DeadlockVictim(card);
  if (victim) {
    Waiter& waiter = core_.tables.waiters.at(*victim);
    LeaveQueues(*victim, waiter);
    Refuse(waiter, {.reason = RefusalReason::kDeadlock});
    core_.tables.wakes.push_back(core_.tables.sessions.at(waiter.spec.session).waker);
  }
  return victim.has_value();
}

void BrokerImpl::GiveUp(WaiterId id) {
  if (const auto room = core_.tables.rooms.find(id); room != core_.tables.rooms.end()) {
    EndRoom(id, *room->second);
    return;
  }
  Waiter& waiter = core_.tables.waiters.at(id);
  LeaveQueues(id, waiter);
  Refuse(waiter, {.reason = RefusalReason::kCard});
  core_.tables.wakes.push_back(core_.tables.sessions.at(waiter.spec.session).waker);
}

BrokerImpl::Wish BrokerImpl::WishOf(WaiterId id) {
  if (const auto room = core_.tables.rooms.find(id); room != core_.tables.rooms.end()) {
    return {.need = room->second->bytes,
            .trims = room->second->need,
            .device = {},
            .session = {},
            .patient = room->second->patient};
  }
  Waiter& waiter = core_.tables.waiters.at(id);
  return {.need = NeedOf(waiter),
          .trims = waiter.need,
          .device = waiter.spec.device,
          .session = waiter.spec.session,
          .patient = !waiter.in_grace};
}

BrokerImpl::Reach BrokerImpl::ReachOf(CardId card) const {
  // A session that waits on a device returns nothing of it meanwhile. On its
  // other devices it may.
  std::set<std::pair<LogicalId, SessionId>> waiting;
  for (const WaiterId id : core_.tables.queues.at(card).Order()) {
    if (const auto waiter = core_.tables.waiters.find(id); waiter != core_.tables.waiters.end()) {
      waiting.emplace(waiter->second.spec.device, waiter->second.spec.session);
    }
  }
  Reach reach{.free = core_.tables.ledger.View(card).free(), .leaving = Leaving(card), .others = {}};
  for (const LogicalId logical : core_.tables.ledger.LogicalsOf(card)) {
    const DeviceEntry& device = core_.tables.devices.at(logical);
    const Ledger::LogicalView view = core_.tables.ledger.View(logical);
    Bytes kept;
    for (const auto& [session, held] : device.held_by) {
      const bool trims = core_.tables.sessions.at(session).trims && !device.spec.preallocate;
      reach.idle = reach.idle || (trims && view.held() > view.guarantee);
      kept += waiting.contains({logical, session}) ? held : Bytes();
    }
    reach.others += std::min(SaturatingSub(view.held(), view.guarantee), SaturatingSub(view.held(), kept));
  }
  return reach;
}

bool BrokerImpl::MayBeServed(WaiterId id, CardId card, const Reach& reach) {
  const Wish wish = WishOf(id);
  if (wish.need <= reach.free || (!wish.patient && !reach.leaving.is_zero()) ||
      (wish.patient && wish.need <= reach.free + reach.others + reach.leaving)) {
    return true;
  }
  const CardQueue& queue = core_.tables.queues.at(card);
  if (queue.turn() && queue.turn()->of == id) {
    return trims_.IsHopeful(wish.trims, CardHolders(card, wish.device, wish.session));
  }
  return reach.idle && (!wish.trims.next_round || core_.now() >= *wish.trims.next_round);
}

void BrokerImpl::AskForCard(WaiterId id, CardId card) {
  const Wish wish = WishOf(id);
  const Bytes missing = SaturatingSub(wish.need, core_.tables.ledger.View(card).free() + Leaving(card));
  if (missing.is_zero()) {
    return;
  }
  const TimePoint before = wish.trims.look_again;
  AskToTrim(wish.trims, CardHolders(card, wish.device, wish.session), missing);
  if (wish.trims.look_again != before && wish.session) {
    core_.tables.wakes.push_back(
        core_.tables.sessions.at(wish.session).waker);  // it is to look sooner than it meant to
  }
}

// A session counts as waiting if it returns nothing to the card before it is
// served: it waits on each of its devices that has memory beyond the guarantee.
std::optional<WaiterId> BrokerImpl::DeadlockVictim(CardId card) const {
  std::map<SessionId, WaiterId> youngest;  // of each session that waits for the card
  std::set<std::pair<LogicalId, SessionId>> waiting;
  for (const WaiterId id : core_.tables.queues.at(card).Order()) {
    const auto waiter = core_.tables.waiters.find(id);
    if (waiter == core_.tables.waiters.end()) {
      continue;
    }
    const GrowSpec& spec = waiter->second.spec;
    youngest[spec.session] = std::max(youngest[spec.session], id);
    waiting.emplace(spec.device, spec.session);
  }
  if (youngest.empty() || !Leaving(card).is_zero()) {
    return std::nullopt;
  }
  std::optional<WaiterId> victim;
  for (const LogicalId logical : core_.tables.ledger.LogicalsOf(card)) {
    const DeviceEntry& device = core_.tables.devices.at(logical);
    // Charged memory is about to be a session's that does not wait.
    if (!device.charged.is_zero()) {
      return std::nullopt;
    }
    const Ledger::LogicalView view = core_.tables.ledger.View(logical);
    const bool lends = view.held() > view.guarantee;
    for (const auto& [session, held] : device.held_by) {
      const auto waits = youngest.find(session);
      if (waits == youngest.end() || (lends && !waiting.contains({logical, session}))) {
        return std::nullopt;
      }
      victim = std::max(victim, std::optional(waits->second));
    }
  }
  return victim;
}

bool BrokerImpl::IsHeldBack(LogicalId device, Bytes bytes) const {
  return core_.tables.queues.at(core_.tables.devices.at(device).spec.card).turn() &&
         !core_.tables.ledger.NeedOf(device, bytes).is_zero();
}

std::vector<BrokerImpl::Queued> BrokerImpl::QueueOf(CardId card) const {
  const CardQueue& queue = core_.tables.queues.at(card);
  std::vector<Queued> infos;
  for (const WaiterId id : queue.Order()) {
    Queued& info = infos.emplace_back(Queued{.id = id, .since = {}, .turns = queue.TurnsOf(id)});
    if (queue.turn() && queue.turn()->of == id) {
      info.turn_ends = queue.turn()->ends;
    }
    if (const auto room = core_.tables.rooms.find(id); room != core_.tables.rooms.end()) {
      info.owner = room->second->user;
      info.lease_name = room->second->lease_name;
      info.pid = room->second->pid;
      info.asked = room->second->bytes;
      info.since = room->second->since;
      continue;
    }
    const GrowSpec& spec = core_.tables.waiters.at(id).spec;
    const DeviceSpec& device = core_.tables.devices.at(spec.device).spec;
    info.lease_name = device.lease_name;
    info.owner = device.owner;
    info.device_name = device.device_name;
    info.pid = core_.tables.sessions.at(spec.session).pid;
    if (const std::optional<ChargeWish>& charge = core_.tables.waiters.at(id).charge)
      info.what = charge->what;
    info.asked = spec.at_least;
    info.since = spec.asked_at;
  }
  return infos;
}

absl::Status BrokerImpl::CheckQueues() const {
  std::size_t queued = 0;
  for (const auto& [id, waiter] : core_.tables.waiters) {
    const bool in_queue =
        core_.tables.queues.at(core_.tables.devices.at(waiter.spec.device).spec.card).Contains(id);
    queued += in_queue ? 1 : 0;
    if (in_queue != (waiter.phase == Waiter::Phase::kCard)) {
      return absl::InternalError(absl::StrCat("request ", id.value, in_queue ? " stands" : " does not stand",
                                              " in its card's queue, against its phase"));
    }
  }
  std::size_t in_queues = 0;
  for (const auto& [card, queue] : core_.tables.queues) {
    in_queues += queue.size();
  }
  if (in_queues != queued + core_.tables.rooms.size()) {
    return absl::InternalError(absl::StrCat(in_queues, " requests stand in queues, ", queued, " and ",
                                            core_.tables.rooms.size(), " wait there"));
  }
  return absl::OkStatus();
}

}  // namespace lgpu
