#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker_impl.h"
#include "allocator/broker/chunk_sizes.h"
#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {
BrokerImpl::~BrokerImpl() {
  // Nothing waits for what is not confirmed: the process ends, and its
  // references with it.
  BrokerLock lock(core_);
  for (const auto& [id, chunk] : core_.tables.chunks) {
    if (chunk.reference_gone || chunk.lost) {
      continue;
    }
    if (chunk.state == ChunkEntry::State::kGranted) {
      core_.backend.Release(chunk.memory).IgnoreError();
    } else {
      core_.backend.Reclaim(chunk.memory).IgnoreError();
    }
  }
}

absl::Status BrokerImpl::AddCards(const Options& options) {
  BrokerLock lock(core_);
  return core_.tables.AddCards(options);
}

absl::Status BrokerImpl::CheckGrow(const GrowSpec& spec) const {
  const auto session = core_.tables.sessions.find(spec.session);
  const auto device = core_.tables.devices.find(spec.device);
  if (session == core_.tables.sessions.end() || !session->second.lease) {
    return absl::FailedPreconditionError(
        "memory was asked for before the session was attached to a lease; call "
        "CreateLease or AttachLease "
        "with the session's token first");
  }
  if (device == core_.tables.devices.end() || device->second.spec.lease != session->second.lease) {
    return absl::NotFoundError(absl::StrCat("logical device ", spec.device.value,
                                            " is not of this session's lease; ask for an id that the lease "
                                            "names"));
  }
  if (spec.at_least.is_zero()) {
    return absl::InvalidArgumentError("zero bytes were asked for; ask for at least one granule of 2MiB");
  }
  return CheckMayGrow(session->second);
}

BrokerImpl::GrowAnswer BrokerImpl::Grow(const GrowSpec& spec) {
  GrowAnswer answer;
  GrowId id;
  Waiter mine;
  std::optional<Making> making;
  {
    BrokerLock lock(core_);
    answer.status = CheckGrow(spec);
    if (!answer.status.ok()) {
      return answer;
    }
    id = GrowId{++core_.tables.last_waiter};
    const CardId card = core_.tables.devices.at(spec.device).spec.card;
    if (core_.tables.queues.at(card).IsTurnOver(core_.now())) {
      Serve(card);
    }
    const Bytes granularity = core_.tables.cards.at(card).device.granularity;
    mine.spec = spec;
    mine.spec.at_least = RoundUp(spec.at_least, granularity);
    mine.spec.wanted = std::max(mine.spec.at_least, RoundUp(spec.wanted, granularity));
    making = Place(id, mine, answer);
  }
  return Logged(making ? Make(id, std::move(mine), *making) : std::move(answer));
}

std::optional<BrokerImpl::Making> BrokerImpl::Place(GrowId id, Waiter& mine, GrowAnswer& answer) {
  Charge(id, mine);
  if (IsQueued(mine)) {
    const CardId card = core_.tables.devices.at(mine.spec.device).spec.card;
    const bool waits_for_card = mine.phase == Waiter::Phase::kCard;
    Park(id, std::move(mine));
    if (waits_for_card) {
      Serve(card);
    }
    if (!TakeIfSettled(id, mine, answer)) {
      return std::nullopt;
    }
  }
  return Conclude(mine, answer);
}

BrokerImpl::GrowAnswer BrokerImpl::Continue(GrowId id) {
  GrowAnswer answer;
  Waiter mine;
  std::optional<Making> making;
  {
    BrokerLock lock(core_);
    if (!core_.tables.waiters.contains(id)) {
      answer.status = absl::FailedPreconditionError("the session has ended");
      return answer;
    }
    if (TakeIfSettled(id, mine, answer)) {
      making = Conclude(mine, answer);
    }
  }
  answer = making ? Make(id, std::move(mine), *making) : LoggedCharge(std::move(answer));
  return Logged(std::move(answer));
}

void BrokerImpl::Park(GrowId id, Waiter waiter) {
  core_.tables.sessions.at(waiter.spec.session).waiting.insert(id);
  core_.tables.waiters.emplace(id, std::move(waiter));
}

bool BrokerImpl::TakeIfSettled(GrowId id, Waiter& mine, GrowAnswer& answer) {
  Waiter& waiter = core_.tables.waiters.at(id);
  const CardId card = core_.tables.devices.at(waiter.spec.device).spec.card;
  const TimePoint now = core_.now();
  if (waiter.phase == Waiter::Phase::kBackend && !IsPutOff(waiter, now)) {
    waiter.phase = Waiter::Phase::kNew;
    Charge(id, waiter);
    if (waiter.phase == Waiter::Phase::kCard) {
      Serve(card);
    }
  }
  if (waiter.phase == Waiter::Phase::kLimit && now < waiter.spec.deadline) {
    LookForIdle(id, waiter);
  }
  if (waiter.phase == Waiter::Phase::kCard && now >= waiter.next_look) {
    Serve(card);
  }
  const bool late = now >= waiter.spec.deadline;
  if (IsQueued(waiter) && late && !IsBeingMade(waiter)) {
    RefuseLate(id, waiter);
    Serve(card);
  }
  if (IsPutOff(waiter, now)) {
    answer.wait = id;
    answer.next_look = std::min(waiter.spec.deadline, waiter.retry_at);
    return false;
  }
  if (IsQueued(waiter)) {
    waiter.next_look = NextLook(id, waiter, now);
    answer.wait = id;
    answer.next_look = waiter.next_look;
    return false;
  }
  mine = std::move(waiter);
  Forget(id);
  return true;
}

void BrokerImpl::RefuseLate(GrowId id, Waiter& waiter) {
  RefusalCause cause{.reason = RefusalReason::kLimit};
  if (waiter.phase == Waiter::Phase::kCard) {
    cause.reason = RefusalReason::kCard;
    cause.turns = core_.tables.queues.at(core_.tables.devices.at(waiter.spec.device).spec.card).TurnsOf(id);
  }
  LeaveQueues(id, waiter);
  Refuse(waiter, cause);
}

BrokerImpl::TimePoint BrokerImpl::NextLook(GrowId id, const Waiter& waiter, TimePoint now) const {
  if (now >= waiter.spec.deadline) {
    return now + kBackendRetry;
  }
  const CardQueue& queue = core_.tables.queues.at(core_.tables.devices.at(waiter.spec.device).spec.card);
  const bool waits_for_card = waiter.phase == Waiter::Phase::kCard;
  TimePoint next = waiter.spec.deadline;
  if (waits_for_card) {
    // So that a turn ends in time, even one that starts before this request
    // looks again and whose own session is slow.
    next = std::min({next, now + core_.tables.max_drain, queue.NextChange(now).value_or(next)});
  }
  const bool asks = !waits_for_card || (queue.turn() && queue.turn()->of == id);
  if (!asks || waiter.need.round == 0) {
    return next;
  }
  const TimePoint look_again = waiter.need.look_again;
  return std::min(next, look_again > now ? look_again : now + TrimTable::kPatience);
}

void BrokerImpl::LookForIdle(GrowId id, Waiter& waiter) {
  if (waiter.need.round == 0 || core_.now() < waiter.need.look_again) {
    return;
  }
  LeaveQueues(id, waiter);
  Charge(id, waiter);
  if (waiter.phase == Waiter::Phase::kCard) {
    Serve(core_.tables.devices.at(waiter.spec.device).spec.card);
  }
  // Where nothing had to be asked, because what is missing is on its way.
  waiter.need.look_again = std::max(waiter.need.look_again, core_.now() + TrimTable::kPatience);
}

std::optional<BrokerImpl::Making> BrokerImpl::Conclude(Waiter& mine, GrowAnswer& answer) {
  if (mine.charge && mine.phase == Waiter::Phase::kTaken) {
    ++core_.tables.counters.charges;
    answer.lent = Lend(mine);
    return std::nullopt;
  }
  if (mine.phase == Waiter::Phase::kCharged) {
    const BrokerCard& card = core_.tables.cards.at(core_.tables.devices.at(mine.spec.device).spec.card);
    // What is wanted beyond the need is to lie in chunks of its own: it may
    // have to go again.
    const Bytes needed = std::min(mine.spec.at_least, mine.charged);
    Making making{.sizes = ChunkSizesForGrowth(card.device, needed), .backend_device = card.backend_device};
    const std::vector<Bytes> more = ChunkSizesForGrowth(card.device, mine.charged - needed);
    making.sizes.insert(making.sizes.end(), more.begin(), more.end());
    return making;
  }
  if (mine.phase == Waiter::Phase::kBallast) {
    return Making();
  }
  answer.ahead = mine.spec.ahead;
  answer.status = std::move(mine.refusal);
  answer.chunks = std::move(mine.taken);
  if (answer.status.ok()) {
    ++core_.tables.counters.grants;
  } else if (!mine.spec.ahead) {
    ++core_.tables.counters.refusals;
  }
  return std::nullopt;
}

bool BrokerImpl::IsQueued(const Waiter& waiter) {
  return waiter.phase == Waiter::Phase::kLimit || waiter.phase == Waiter::Phase::kCard;
}

bool BrokerImpl::IsPutOff(const Waiter& waiter, TimePoint now) {
  return waiter.phase == Waiter::Phase::kBackend && now < std::min(waiter.retry_at, waiter.spec.deadline);
}

void BrokerImpl::Forget(GrowId id) {
  const auto found = core_.tables.waiters.find(id);
  core_.tables.sessions.at(found->second.spec.session).waiting.erase(id);
  core_.tables.waiters.erase(found);
}

void BrokerImpl::Charge(GrowId id, Waiter& waiter) {
  const DeviceEntry& device = core_.tables.devices.at(waiter.spec.device);
  if (device.removed) {
    waiter.phase = Waiter::Phase::kRefused;
    waiter.refusal = absl::FailedPreconditionError(
        absl::StrCat("lease ", device.spec.lease_name, " has ended; create another one"));
  } else if (waiter.charge) {
    ChargeSplit(id, waiter);
  } else if (device.spec.preallocate) {
    TakeSpare(id, waiter);
  } else {
    ChargeLedger(id, waiter);
  }
}

void BrokerImpl::ChargeLedger(GrowId id, Waiter& waiter) {
  DeviceEntry& device = core_.tables.devices.at(waiter.spec.device);
  const Bytes at_least = waiter.spec.at_least;
  const Bytes limit = RoundUp(core_.tables.ledger.View(waiter.spec.device).limit,
                              core_.tables.cards.at(device.spec.card).device.granularity);
  if (at_least > limit) {
    Refuse(waiter, {.reason = RefusalReason::kLimit});
    return;
  }
  // While requests wait for the card, its free memory is not spent on growth
  // beyond need.
  const bool others_wait = !core_.tables.queues.at(device.spec.card).empty();
  const bool takes_free = !core_.tables.ledger.NeedOf(waiter.spec.device, at_least).is_zero();
  if (waiter.spec.ahead && (!device.limit_waiters.empty() || (others_wait && takes_free))) {
    Refuse(waiter, {.reason = RefusalReason::kLimit});
    return;
  }
  Bytes charged = std::min(waiter.spec.wanted, limit);
  if (charged > at_least &&
      (core_.tables.ledger.Check(waiter.spec.device, charged).shortage != Ledger::Shortage::kNone ||
       (others_wait && !core_.tables.ledger.NeedOf(waiter.spec.device, charged).is_zero()))) {
    charged = at_least;
  }
  Ledger::Verdict verdict = core_.tables.ledger.Check(waiter.spec.device, charged);
  while (!waiter.spec.ahead && verdict.shortage != Ledger::Shortage::kNone &&
         TakeAllowances(device.spec.card,
                        verdict.shortage == Ledger::Shortage::kLimit ? device.spec.lease : LeaseKey())) {
    verdict = core_.tables.ledger.Check(waiter.spec.device, charged);
  }
  const bool held_back =
      verdict.shortage == Ledger::Shortage::kNone && IsHeldBack(waiter.spec.device, charged);
  if (held_back) {
    verdict.shortage = Ledger::Shortage::kCard;
  } else if (verdict.shortage == Ledger::Shortage::kNone) {
    verdict = core_.tables.ledger.Request(waiter.spec.device, charged);
  }
  const auto in_time = [&] { return core_.now() < waiter.spec.deadline; };
  switch (verdict.shortage) {
    case Ledger::Shortage::kNone:
      waiter.phase = Waiter::Phase::kCharged;
      waiter.charged = charged;
      device.charged += charged;
      return;
    case Ledger::Shortage::kLimit:
      if ((in_time() && verdict.coming_back >= verdict.short_by) ||
          (MayAsk(waiter) && AskUnderLimit(waiter, SaturatingSub(verdict.short_by, verdict.coming_back)))) {
        waiter.phase = Waiter::Phase::kLimit;
        device.limit_waiters.push_back(id);
      } else {
        Refuse(waiter, {.reason = RefusalReason::kLimit});
      }
      return;
    case Ledger::Shortage::kCard:
      if (!verdict.hopeless && (in_time() || ((held_back || MayTrim(waiter)) && MayAsk(waiter)))) {
        waiter.phase = Waiter::Phase::kCard;
        waiter.need = {};                     // of others than under the limit
        waiter.next_look = TimePoint::max();  // the caller serves the queue
        core_.tables.queues.at(device.spec.card).Join(id, device.spec.owner);
      } else {
        Refuse(waiter, {.reason = RefusalReason::kCard});
      }
      return;
  }
}

void BrokerImpl::LeaveQueues(GrowId id, Waiter& waiter) {
  DeviceEntry& device = core_.tables.devices.at(waiter.spec.device);
  switch (waiter.phase) {
    case Waiter::Phase::kCard:
      core_.tables.queues.at(device.spec.card).Leave(id, core_.now());
      break;
    case Waiter::Phase::kLimit:
      std::erase(device.limit_waiters, id);
      break;
    case Waiter::Phase::kCharged:
      core_.tables.ledger.Refund(waiter.spec.device, waiter.charged);
      device.charged -= waiter.charged;
      waiter.charged = Bytes();
      break;
    case Waiter::Phase::kNew:
    case Waiter::Phase::kBackend:
    case Waiter::Phase::kTaken:
    case Waiter::Phase::kBallast:
    case Waiter::Phase::kRefused:
      break;
  }
  waiter.phase = Waiter::Phase::kNew;
}

void BrokerImpl::DropWaiters(SessionId session) {
  std::set<CardId> touched;
  const std::set<GrowId> waiting = core_.tables.sessions.at(session).waiting;
  for (const GrowId id : waiting) {
    Waiter& waiter = core_.tables.waiters.at(id);
    touched.insert(core_.tables.devices.at(waiter.spec.device).spec.card);
    // The request that was to free them is gone.
    for (const ChunkId chunk : std::exchange(waiter.ballast, {})) {
      core_.tables.unconfirmed.insert(chunk);
      core_.tables.wakes.push_back(core_.tables.unconfirmed_waker);
    }
    LeaveQueues(id, waiter);
    Forget(id);
  }
  for (const CardId card : touched) {
    Serve(card);
  }
}

void BrokerImpl::Refuse(Waiter& waiter, RefusalCause cause) {
  if (waiter.spec.ahead) {
    waiter.phase = Waiter::Phase::kRefused;
    waiter.refusal = absl::ResourceExhaustedError("no memory is free for growing ahead");
    return;
  }
  cause.asked = waiter.spec.at_least;
  const TimePoint now = core_.now();
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - waiter.spec.asked_at);
  if (waited.count() > 0) {
    cause.waited = waited;
  }
  waiter.phase = Waiter::Phase::kRefused;
  waiter.refusal = RefusalStatus(
      waiter.charge ? MakeChargeRefusal(waiter, cause)
                    : MakeRefusal(core_.tables.devices.at(waiter.spec.device), waiter.spec.device, cause));
}

}  // namespace lgpu
