#include "allocator/broker/broker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker_parts.h"
#include "lgpu/refusal.h"
#include "lgpu/status.h"

namespace lgpu {

absl::StatusOr<std::unique_ptr<Broker>> Broker::Create(DeviceMemory& backend, GrantLog& log,
                                                       const Options& options) {
  auto parts = std::make_unique<BrokerParts>(backend, log, options);
  BrokerCore& core = parts->core;
  {
    BrokerLock lock(core);
    LGPU_RETURN_IF_ERROR(core.tables.AddCards(options));
    core.waiting.AddQueues();
  }
  return std::unique_ptr<Broker>(new Broker(std::move(parts)));
}

Broker::Broker(std::unique_ptr<BrokerParts> parts) : parts_(std::move(parts)) {}

Broker::~Broker() {
  // Nothing waits for what is not confirmed: the process ends, and its references with it.
  BrokerCore& core = parts_->core;
  std::vector<MemoryHandle> granted, others;
  {
    BrokerLock lock(core);
    for (const auto& [id, chunk] : core.tables.chunks) {
      if (chunk.reference_gone || chunk.lost) continue;
      (chunk.state == ChunkEntry::State::kGranted ? granted : others).push_back(chunk.memory);
    }
    for (const auto& [id, waiter] : core.waiting.waiters) {
      if (!waiter.guarantee) continue;
      for (const MadeChunk& chunk : waiter.guarantee->made.chunks) others.push_back(chunk.memory);
    }
  }
  for (const MemoryHandle memory : granted) core.backend.Release(memory).IgnoreError();
  for (const MemoryHandle memory : others) core.backend.Reclaim(memory).IgnoreError();
}

SessionRestore& Broker::restore() const { return parts_->restore; }

CardObserver& Broker::observer() const { return parts_->observer; }

SessionTrims& Broker::trims() const { return parts_->trims; }

SessionReleases& Broker::releases() const { return parts_->releases; }

Reservations& Broker::reservations() const { return parts_->reservations; }

LeaseSuspensions& Broker::suspensions() const { return parts_->suspensions; }

std::vector<Broker::CardInfo> Broker::Cards() const {
  std::vector<CardInfo> infos;
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  for (const auto& [id, card] : core.tables.cards) {
    CardInfo& info = infos.emplace_back(CardInfo{.id = id,
                                                 .card = card,
                                                 .view = core.tables.ledger.View(id),
                                                 .draining = core.tables.Leaving(id),
                                                 .kept = core.admission.KeptOn(id),
                                                 .queue = core.scheduler.QueueOf(id)});
    if (const auto* const outsiders = core.overheads.OutsidersOf(id)) {
      info.observed = true;
      info.outsiders = *outsiders;
    }
  }
  return infos;
}

Bytes Broker::WholeCard(const CardInfo& card) {
  return RoundDown(SaturatingSub(card.view.total, card.view.reserve), card.view.granularity);
}

std::vector<const Broker::CardInfo*> Broker::ByRoom(std::vector<const CardInfo*> candidates,
                                                    const std::map<CardId, Bytes>& planned) {
  const auto room = [&](const CardInfo* info) {
    const auto found = planned.find(info->id);
    const double taken = found == planned.end() ? 0 : static_cast<double>(found->second.count());
    const Bytes free = SaturatingSub(info->view.free(), info->kept);
    return static_cast<double>(free.count()) - taken;
  };
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const CardInfo* a, const CardInfo* b) { return room(a) > room(b); });
  return candidates;
}

Broker::Answer Broker::AddDevice(const DeviceSpec& spec, const Patience& patience) {
  return parts_->devices.Add(spec, patience);
}

absl::StatusOr<LogicalId> Broker::AddDevice(const DeviceSpec& spec) {
  const Answer answer = AddDevice(spec, Patience());
  LGPU_RETURN_IF_ERROR(answer.status);
  return answer.device;
}

Broker::Answer Broker::ResizeDevice(LogicalId device, Bytes limit, Bytes guarantee,
                                    const Patience& patience) {
  return parts_->devices.Resize(device, limit, guarantee, patience);
}

absl::Status Broker::ResizeDevice(LogicalId device, Bytes limit, Bytes guarantee) {
  return ResizeDevice(device, limit, guarantee, Patience()).status;
}

absl::Status Broker::CheckSize(LogicalId device, Bytes limit, Bytes guarantee) const {
  return parts_->devices.CheckSize(device, limit, guarantee);
}

void Broker::RemoveDevice(LogicalId device) { parts_->devices.Remove(device); }

std::optional<Broker::DeviceInfo> Broker::Find(LogicalId device) const {
  return parts_->devices.Find(device);
}

absl::Status Broker::MakeMissing(LogicalId device) { return parts_->devices.MakeMissing(device); }

Broker::Answer Broker::Grow(const GrowSpec& spec) { return parts_->grants.Grow(spec); }

std::optional<Broker::Answer> Broker::TakeAnswer(WaiterId request) {
  BrokerCore& core = parts_->core;
  bool is_guarantee = false;
  {
    BrokerLock lock(core);
    const auto found = core.waiting.waiters.find(request);
    is_guarantee = found != core.waiting.waiters.end() && found->second.guarantee;
  }
  Answer answer = is_guarantee ? parts_->devices.Take(request) : parts_->grants.Take(request);
  if (answer.wait) return std::nullopt;
  return answer;
}

void Broker::Withdraw(WaiterId request) {
  BrokerLock lock(parts_->core);
  parts_->core.clock.Withdraw(request);
}

std::optional<Broker::TimePoint> Broker::Tick() {
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  core.next_tick = core.clock.Tick();
  return core.next_tick == TimePoint::max() ? std::nullopt : std::optional(core.next_tick);
}

Broker::Answer Broker::ChargeCard(const ChargeSpec& spec) { return parts_->grants.ChargeCard(spec); }

absl::Status Broker::Return(SessionId session, LogicalId device, std::span<const ChunkId> chunks) {
  return parts_->returns.Return(session, device, chunks);
}

void Broker::ReturnAll(SessionId session) { parts_->returns.ReturnAll(session); }

void Broker::StartDraining(SessionId session) { parts_->returns.StartDraining(session); }

std::vector<SessionId> Broker::FinishDraining(const std::vector<SessionId>& sessions) {
  return parts_->returns.FinishDraining(sessions);
}

bool Broker::RetryUnconfirmed() { return parts_->reclaimer.RetryUnconfirmed(); }

absl::StatusOr<MemoryHandle> Broker::MemoryOf(SessionId session, ChunkId id) const {
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  const auto chunk = core.tables.chunks.find(id);
  if (chunk == core.tables.chunks.end() || chunk->second.session != session ||
      chunk->second.state != ChunkEntry::State::kGranted || chunk->second.lost) {
    return absl::NotFoundError(absl::StrCat("chunk ", id.value, " is not granted to this session"));
  }
  return chunk->second.memory;
}

absl::StatusOr<ExportedFd> Broker::Export(SessionId session, ChunkId id) {
  LGPU_ASSIGN_OR_RETURN(const MemoryHandle memory, MemoryOf(session, id));
  return parts_->core.backend.Export(memory);
}

absl::Status Broker::ExplainExport(LogicalId device, Bytes asked, const absl::Status& status) const {
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  if (!absl::IsResourceExhausted(status) || !core.tables.devices.contains(device)) return status;
  return RefusalStatus(core.refusals.OfDevice(device, RefusalCause::OfBackend(status, asked)));
}

void Broker::NoteLastUses(const std::vector<LastUse>& uses) {
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  for (const LastUse& use : uses) {
    const auto found = core.tables.devices.find(use.device);
    if (found == core.tables.devices.end()) continue;
    found->second.last_use = use.at;
    found->second.idle_after = use.idle_after;
  }
}

void Broker::StopWaiting() {
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  core.waiting.stopping = true;
  core.clock.EndGuarantees();
}

Broker::Counters Broker::counters() const {
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  Counters counters = core.tables.counters;
  counters.trims = core.trims.orders();
  return counters;
}

absl::Status Broker::CheckInvariants() const {
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  LGPU_RETURN_IF_ERROR(core.tables.CheckInvariants());
  return core.waiting.CheckInvariants();
}

}  // namespace lgpu
