#include "allocator/broker/grants.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

namespace lgpu {

absl::Status Grants::CheckGrow(const Broker::GrowSpec& spec) const {
  const auto session = core_.tables.sessions.find(spec.session);
  const auto device = core_.tables.devices.find(spec.device);
  if (session == core_.tables.sessions.end() || !session->second.lease) {
    return absl::FailedPreconditionError(
        "memory was asked for before the session was attached to a lease; call CreateLease or AttachLease "
        "with the session's token first");
  }
  if (device == core_.tables.devices.end() || device->second.spec.lease != session->second.lease) {
    return absl::NotFoundError(absl::StrCat("logical device ", spec.device.value,
                                            " is not of this session's lease; ask for an id that the lease "
                                            "names"));
  }
  if (spec.at_least.is_zero()) {
    return absl::InvalidArgumentError("zero bytes were asked for; ask for at least one granule");
  }
  return absl::OkStatus();
}

absl::StatusOr<Waiter> Grants::CheckCharge(const Broker::ChargeSpec& spec) const {
  const auto session = core_.tables.sessions.find(spec.session);
  if (session == core_.tables.sessions.end() || !session->second.lease) {
    return absl::FailedPreconditionError(
        "memory was charged before the session was attached to a lease; send Attach first");
  }
  if (spec.bytes.is_zero()) return absl::InvalidArgumentError("zero bytes were charged; charge at least one");
  const std::optional<CardId> card = core_.tables.FindCard(spec.card_uuid);
  const std::vector<LogicalId> devices =
      card ? core_.tables.DevicesOn(session->second.lease, *card) : std::vector<LogicalId>();
  if (devices.empty()) {
    return absl::NotFoundError(absl::StrCat(
        spec.what.empty() ? "a charge" : spec.what, " names GPU \"", spec.card_uuid,
        "\", and the lease of this program has no logical device on it; name a GPU of the lease (inside a "
        "lease an index of CUDA_VISIBLE_DEVICES counts the lease's GPUs, from 0)"));
  }
  Waiter waiter = NewRequest({.session = spec.session,
                              .device = devices.front(),
                              .at_least = RoundUp(spec.bytes, core_.tables.GranuleOf(*card)),
                              .wanted = {},
                              .asked_at = spec.asked_at,
                              .deadline = spec.deadline});
  waiter.charge = {.card = *card,
                   .bytes = spec.bytes,
                   .what = spec.what,
                   .card_deadline = spec.deadline,
                   .is_retry = spec.driver_refusals > 0};
  return waiter;
}

Waiter Grants::NewRequest(const Broker::GrowSpec& spec) const {
  const Broker::DeviceSpec& device = core_.tables.devices.at(spec.device).spec;
  Waiter waiter;
  waiter.spec = spec;
  waiter.card = device.card;
  waiter.user = device.owner;
  waiter.waker = core_.tables.sessions.at(spec.session).waker;
  return waiter;
}

Broker::Answer Grants::Grow(const Broker::GrowSpec& spec) {
  Broker::Answer answer;
  WaiterId id;
  Waiter mine;
  std::optional<Making> making;
  {
    BrokerLock lock(core_);
    answer.status = CheckGrow(spec);
    if (!answer.status.ok()) return answer;
    id = core_.waiting.NewWaiter();
    mine = NewRequest(spec);
    const Bytes granule = core_.tables.GranuleOf(mine.card);
    mine.spec.at_least = RoundUp(spec.at_least, granule);
    mine.spec.wanted = std::max(mine.spec.at_least, RoundUp(spec.wanted, granule));
    making = core_.requests.Place(id, mine, answer);
  }
  return Finish(id, std::move(mine), making, std::move(answer));
}

Broker::Answer Grants::ChargeCard(const Broker::ChargeSpec& spec) {
  Broker::Answer answer;
  WaiterId id;
  Waiter mine;
  std::optional<Making> making;
  // Memory that the ledger does not know of yet is foreign from here on.
  if (spec.driver_refusals > 0) observer_.ObserveCard(spec.card_uuid);
  {
    BrokerLock lock(core_);
    absl::StatusOr<Waiter> waiter = CheckCharge(spec);
    if (!waiter.ok()) {
      answer.status = waiter.status();
      return answer;
    }
    mine = *std::move(waiter);
    if (spec.driver_refusals > 1) {
      core_.admission.Refuse(
          mine, {.reason = RefusalReason::kBackend,
                 .detail = absl::StrCat("the driver refused ", FormatBytes(spec.bytes), " twice")});
      answer.status = mine.refusal;
      ++core_.tables.counters.refusals;
      return answer;
    }
    id = core_.waiting.NewWaiter();
    core_.charges.Open(spec.session, mine.charge->card);
    making = core_.requests.Place(id, mine, answer);
  }
  return Finish(id, std::move(mine), making, std::move(answer));
}

Broker::Answer Grants::Take(WaiterId id) {
  Broker::Answer answer;
  Waiter mine;
  std::optional<Making> making;
  {
    BrokerLock lock(core_);
    making = core_.requests.Continue(id, mine, answer);
  }
  return Finish(id, std::move(mine), making, std::move(answer));
}

Broker::Answer Grants::Finish(WaiterId id, Waiter mine, const std::optional<Making>& making,
                              Broker::Answer answer) {
  if (!making) return Logged(std::move(answer));
  if (mine.phase == Waiter::Phase::kBallast) return FreeBallast(id, std::move(mine));
  return MakeChunks(id, std::move(mine), *making);
}

Broker::Answer Grants::MakeChunks(WaiterId id, Waiter mine, const Making& making) {
  const LogicalId logical = mine.spec.device;
  const MadeChunks created = CreateChunks(core_.backend, making.backend_device, making.sizes);
  Broker::Answer answer;
  std::optional<Making> more;
  std::vector<ChunkId> leaving;
  std::optional<NotMadeRequest> not_made;
  {
    BrokerLock lock(core_);
    const DeviceEntry& device = core_.tables.devices.at(logical);
    const SessionId owner = device.spec.preallocate ? SessionId() : mine.spec.session;
    std::vector<Chunk> made;
    Bytes bytes;
    for (const MadeChunk& chunk : created.chunks) {
      made.push_back({.id = core_.chunks.Register(logical, owner, chunk), .bytes = chunk.bytes});
      bytes += chunk.bytes;
    }
    const bool is_short = bytes < mine.booked;
    core_.admission.EndClaim(mine);
    core_.chunks.Unbook(logical, std::exchange(mine.booked, Bytes()) - bytes);
    if (device.spec.preallocate) {
      more = ServeFromSpare(id, mine, created.status, answer);
      leaving = core_.chunks.TakeExcessSpare(logical);  // the limit may be lower now
    } else if (bytes >= mine.spec.at_least) {
      ++core_.tables.counters.grants;
      answer.chunks = std::move(made);
    } else {
      const bool others_leave = !core_.tables.Leaving().is_zero();
      for (const Chunk& chunk : made) {
        core_.chunks.StartLeaving(core_.tables.chunks.at(chunk.id), ChunkEntry::State::kReturning);
        leaving.push_back(chunk.id);
      }
      not_made = {.waiter = std::move(mine), .status = created.status, .others_leave = others_leave};
    }
    const CardId card = device.spec.card;
    // A session that has its chunks and waits no more counts for turns and deadlocks from here on. Requests
    // that wait under the limit of a preallocated device counted on the chunks that were being made.
    if (is_short || !core_.waiting.queues.at(card).empty() ||
        (device.spec.preallocate && !device.limit_waiters.empty())) {
      core_.scheduler.Serve(card);
    }
  }
  reclaimer_.Reclaim(leaving);
  if (not_made) answer = LookAgain(id, *std::move(not_made));
  return Finish(id, std::move(mine), more, std::move(answer));
}

Broker::Answer Grants::LookAgain(WaiterId id, NotMadeRequest request) {
  if (absl::IsResourceExhausted(request.status)) observer_.ObserveCard(request.waiter.card);
  BrokerLock lock(core_);
  const Broker::GrowSpec& spec = request.waiter.spec;
  if (core_.tables.FindSession(spec.session) == nullptr || !core_.tables.devices.contains(spec.device)) {
    return {.status = absl::FailedPreconditionError("the session has ended")};
  }
  const Ledger::Verdict verdict = core_.tables.ledger.Check(spec.device, spec.at_least);
  const bool may_come = request.others_leave || verdict.shortage != Ledger::Shortage::kNone;
  return NotMade(id, std::move(request.waiter), request.status, may_come);
}

std::optional<Making> Grants::ServeFromSpare(WaiterId id, Waiter& mine, const absl::Status& made,
                                             Broker::Answer& answer) {
  mine.phase = Waiter::Phase::kNew;
  if (made.ok()) return core_.requests.Place(id, mine, answer);
  // Other sessions may have given chunks back meanwhile.
  const std::vector<ChunkId> picked =
      core_.chunks.PickSpare(mine.spec.device, mine.spec.at_least, mine.spec.wanted);
  if (picked.empty()) {
    answer = NotMade(id, std::move(mine), made, !core_.tables.Leaving().is_zero());
  } else {
    ++core_.tables.counters.grants;
    answer.chunks = core_.chunks.Grant(mine.spec.session, picked);
  }
  return std::nullopt;
}

Broker::Answer Grants::NotMade(WaiterId id, Waiter mine, const absl::Status& status, bool may_come) {
  Broker::Answer answer;
  if (absl::IsResourceExhausted(status) && may_come && core_.now() < mine.spec.deadline) {
    core_.requests.PutOff(id, std::move(mine));
    answer.wait = id;
    return answer;
  }
  answer.status = status;
  if (absl::IsResourceExhausted(status)) {
    core_.admission.Refuse(mine, RefusalCause::OfBackend(status, mine.spec.at_least));
    answer.status = mine.refusal;
  }
  ++core_.tables.counters.refusals;
  return answer;
}

Broker::Answer Grants::FreeBallast(WaiterId id, Waiter mine) {
  Broker::Answer answer;
  std::optional<Making> making;
  const std::vector<ChunkId> ballast = std::exchange(mine.ballast, {});
  reclaimer_.FreeSpare(ballast, [&] {
    core_.mutex.AssertHeld();
    mine.phase = Waiter::Phase::kNew;
    // Before waiting requests are looked at: the freed memory belongs to this request.
    making = core_.requests.Place(id, mine, answer);
  });
  return Finish(id, std::move(mine), making, std::move(answer));
}

Broker::Answer Grants::Logged(Broker::Answer answer) {
  if (!answer.status.ok() || (answer.chunks.empty() && !answer.lent)) return answer;
  if (absl::Status committed = core_.log.Commit(); !committed.ok()) {
    TakeBack(answer);
    return {.status = std::move(committed)};
  }
  if (answer.lent && answer.lent->allowances != nullptr) {
    const Broker::Lent& lent = *answer.lent;
    lent.allowances->Keep(lent.index).store(lent.keep.count(), std::memory_order_relaxed);
    lent.allowances->Free(lent.index).fetch_add(lent.refill.count(), std::memory_order_acq_rel);
  }
  return answer;
}

void Grants::TakeBack(const Broker::Answer& answer) {
  SessionId session;
  LogicalId device;
  std::vector<ChunkId> chunks;
  {
    BrokerLock lock(core_);
    ++core_.tables.counters.refusals;
    if (answer.lent) {
      const Broker::Lent& lent = *answer.lent;
      --core_.tables.counters.charges;
      if (core_.charges.Uncharge(lent.session, lent.card, lent.bytes + lent.refill)) {
        core_.scheduler.Serve(lent.card);
      }
      return;
    }
    --core_.tables.counters.grants;
    for (const Chunk& chunk : answer.chunks) chunks.push_back(chunk.id);
    const ChunkEntry& first = core_.tables.chunks.at(chunks.front());
    session = first.session;
    device = first.device;
  }
  returns_.Return(session, device, chunks).IgnoreError();
}

}  // namespace lgpu
