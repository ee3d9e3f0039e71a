#include "client/session/local_broker.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::hours kLongest{24};
constexpr Bytes kLargeChunk = 32_MiB;
// From here on few large chunks cost less than many small ones; an eighth stays small for small blocks.
constexpr Bytes kManyBytes = 256_MiB;

std::string DeviceName(int index) { return "/device:GPU:" + std::to_string(index); }

std::string CardName(const DeviceMemory& backend, int card) {
  const PhysicalDevice& device = backend.devices()[static_cast<std::size_t>(card)];
  return "GPU " + std::to_string(card) + " (" + (device.simulated ? "simulated" : device.name) + ")";
}

bool SpeaksOfDescriptors(const absl::Status& status) {
  const std::string_view text(status.message().data(), status.message().size());
  return text.find("descriptor") != std::string_view::npos ||
         text.find("open files") != std::string_view::npos;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalBroker>> LocalBroker::Create(DeviceMemory& backend,
                                                                 MaintenanceThread* maintenance) {
  std::unique_ptr<LocalBroker> broker(new LocalBroker(backend, maintenance));
  MutexLock lock(broker->mutex_);
  for (const PhysicalDevice& device : backend.devices()) {
    LGPU_ASSIGN_OR_RETURN(
        const CardId card,
        broker->ledger_.AddCard({.total = device.total, .reserve = {}, .granularity = device.granularity}));
    broker->cards_.push_back(card);
  }
  return broker;
}

LocalBroker::~LocalBroker() {
  std::unordered_map<LogicalId, Device> devices;
  {
    MutexLock lock(mutex_);
    devices.swap(devices_);
  }
  for (const auto& [id, device] : devices) {
    for (const Region::Held& held : device.stock) (void)backend_.Reclaim(held.memory);
  }
  ReclaimLeftovers();
}

absl::StatusOr<LogicalId> LocalBroker::AddDevice(const DeviceSpec& spec) {
  Device device{spec, {}, std::make_unique<std::atomic<std::uint64_t>>(spec.limit.count())};
  if (spec.preallocate) device.spec.guarantee = spec.limit;
  LogicalId id;
  Bytes all;
  {
    MutexLock lock(mutex_);
    const CardId card = cards_.at(static_cast<std::size_t>(spec.card));
    absl::StatusOr<LogicalId> added =
        ledger_.AddLogical(card, {.limit = spec.limit, .guarantee = device.spec.guarantee});
    if (absl::IsResourceExhausted(added.status())) {
      Refusal refusal = MakeRefusal(RefusalReason::kCard, spec, device.spec.guarantee);
      refusal.what = spec.preallocate ? "preallocated memory" : "guaranteed memory";
      AddCardNumbers(refusal, ledger_.View(card));
      refusal.advice.push_back("ask for at most " + FormatBytesCut(ledger_.View(card).free()) +
                               ", or use growth without a guarantee");
      return RefusalStatus(refusal);
    }
    if (!added.ok()) return added.status();
    id = *added;
    all = RoundUp(spec.limit, ledger_.View(card).granularity);
  }
  if (spec.preallocate) {
    absl::StatusOr<std::vector<Region::Held>> chunks = CreateChunks(spec.card, all, all);
    if (!chunks.ok()) {
      MutexLock lock(mutex_);
      (void)ledger_.RemoveLogical(id);
      return BackendRefusal(chunks.status(), spec, all);
    }
    device.stock = *std::move(chunks);
  }
  MutexLock lock(mutex_);
  devices_.emplace(id, std::move(device));
  return id;
}

absl::Status LocalBroker::Resize(LogicalId id, Bytes limit, std::optional<Bytes> guarantee) {
  MutexLock lock(mutex_);
  Device& device = devices_.at(id);
  if (device.spec.preallocate) {
    return absl::FailedPreconditionError(
        "a preallocated device of a `local` endpoint keeps its limit: its chunks were made for it\n"
        "  try: growth, which takes a guarantee too, or an lgpud");
  }
  const Bytes promised = guarantee.value_or(std::min(device.spec.guarantee, limit));
  const absl::Status resized = ledger_.Resize(id, {.limit = limit, .guarantee = promised});
  if (absl::IsResourceExhausted(resized)) {
    Refusal refusal = MakeRefusal(RefusalReason::kCard, device.spec, promised);
    refusal.what = "guaranteed memory";
    AddCardNumbers(refusal, ledger_.View(ledger_.View(id).card));
    refusal.advice.push_back("a smaller guarantee");
    return RefusalStatus(refusal);
  }
  LGPU_RETURN_IF_ERROR(resized);
  device.spec.limit = limit;
  device.spec.guarantee = promised;
  device.limit_cell->store(limit.count(), std::memory_order_relaxed);
  Serve(ledger_.View(id).card);
  return absl::OkStatus();
}

const std::atomic<std::uint64_t>& LocalBroker::limit_cell(LogicalId device) const {
  MutexLock lock(mutex_);
  return *devices_.at(device).limit_cell;
}

Bytes LocalBroker::limit(LogicalId device) const {
  MutexLock lock(mutex_);
  return ledger_.View(device).limit;
}

Bytes LocalBroker::held(LogicalId device) const {
  MutexLock lock(mutex_);
  return ledger_.View(device).held();
}

// Granting.

absl::StatusOr<std::vector<Region::Held>> LocalBroker::Grow(LogicalId id, const GrowRequest& request) {
  DeviceSpec spec;
  Bytes charged;
  ReclaimLeftovers();
  {
    MutexLock lock(mutex_);
    Device& device = devices_.at(id);
    spec = device.spec;
    const Bytes unit = ledger_.View(ledger_.View(id).card).granularity;
    if (request.at_least.is_zero() || request.at_least.count() % unit.count() != 0) {
      return absl::InvalidArgumentError("chunks come in multiples of " + FormatBytes(unit) +
                                        ", not zero; asked for " + std::to_string(request.at_least.count()) +
                                        " bytes");
    }
    if (std::vector<Region::Held> taken = TakeStock(id, device, request); !taken.empty()) return taken;
    LGPU_ASSIGN_OR_RETURN(charged, Charge(id, device, request));
  }
  absl::StatusOr<std::vector<Region::Held>> chunks = CreateChunks(spec.card, request.at_least, charged);
  if (!chunks.ok()) {
    const absl::Status status = BackendRefusal(chunks.status(), spec, request.at_least);
    MutexLock lock(mutex_);
    ledger_.Refund(id, charged);
    Serve(ledger_.View(id).card);
    return status;
  }
  return chunks;
}

std::vector<Region::Held> LocalBroker::TakeStock(LogicalId id, Device& device, const GrowRequest& request) {
  // Large ones first, as long as all of one is wanted; then the smallest, until it is enough.
  std::vector<Region::Held>& stock = device.stock;  // largest first
  const Bytes wanted = std::max(request.at_least, request.wanted);
  std::vector<Region::Held> taken;
  std::vector<Region::Held> left;
  Bytes sum;
  for (const Region::Held& held : stock) {
    const bool fits = held.chunk.bytes <= SaturatingSub(wanted, sum);
    (fits ? taken : left).push_back(held);
    if (fits) sum += held.chunk.bytes;
  }
  for (; sum < request.at_least && !left.empty(); left.pop_back()) {
    taken.push_back(left.back());
    sum += left.back().chunk.bytes;
  }
  if (sum.is_zero() || sum < request.at_least) return {};
  const Ledger::Verdict verdict = ledger_.Request(id, sum);
  LGPU_CHECK(verdict.shortage == Ledger::Shortage::kNone);  // it is within the guarantee
  stock = std::move(left);
  return taken;
}

absl::StatusOr<Bytes> LocalBroker::Charge(LogicalId id, const Device& device, const GrowRequest& request) {
  const DeviceSpec spec = device.spec;
  const TimePoint start = Clock::now();
  const TimePoint deadline =
      start + std::clamp<std::chrono::nanoseconds>(request.timeout, std::chrono::nanoseconds(0), kLongest);
  const Bytes unit = ledger_.View(ledger_.View(id).card).granularity;
  while (true) {
    // More than the least only where it costs nobody a wait.
    const Ledger::LogicalView view = ledger_.View(id);
    const Bytes room = SaturatingSub(RoundUp(view.limit, unit), view.held());
    const Bytes more = std::min(RoundDown(request.wanted, unit), room);
    if (more > request.at_least && ledger_.Request(id, more).shortage == Ledger::Shortage::kNone) return more;
    const Ledger::Verdict verdict = ledger_.Request(id, request.at_least);
    if (verdict.shortage == Ledger::Shortage::kNone) return request.at_least;

    const bool late = Clock::now() >= deadline;
    const auto waited = Clock::now() - start;
    if (verdict.shortage == Ledger::Shortage::kLimit) {
      if (verdict.hopeless || verdict.coming_back.is_zero() || late) {
        return Refuse(RefusalReason::kLimit, id, spec, request.at_least, waited);
      }
      changed_.WaitUntil(mutex_, deadline);
      continue;
    }
    if (request.ahead) return absl::ResourceExhaustedError("no memory is free for growing ahead");
    if (verdict.hopeless || late) return Refuse(RefusalReason::kCard, id, spec, request.at_least, waited);
    switch (WaitInQueue(id, request.at_least, deadline)) {
      case Outcome::kGranted:
        return request.at_least;
      case Outcome::kDeadlock:
        return Refuse(RefusalReason::kDeadlock, id, spec, request.at_least, Clock::now() - start);
      case Outcome::kPending:  // too late: the next round refuses
      case Outcome::kOverLimit:
        break;
    }
  }
}

LocalBroker::Outcome LocalBroker::WaitInQueue(LogicalId id, Bytes bytes, TimePoint deadline) {
  const CardId card = ledger_.View(id).card;
  const WaiterId waiter = ledger_.Enqueue(id, bytes);
  Waiter& mine = waiters_.emplace(waiter, Waiter{.device = id, .bytes = bytes}).first->second;
  Serve(card);
  while (mine.outcome == Outcome::kPending && Clock::now() < deadline) {
    const bool asks = mine.need.round != 0;
    changed_.WaitUntil(mutex_, asks ? std::min(deadline, mine.need.look_again) : deadline);
    if (mine.outcome == Outcome::kPending && asks) Serve(card);
  }
  const Outcome outcome = mine.outcome;
  waiters_.erase(waiter);
  if (outcome == Outcome::kPending) {
    ledger_.Leave(waiter);
    Serve(card);
  }
  return outcome;
}

void LocalBroker::Serve(CardId card) {
  while (true) {
    const Ledger::Served served = ledger_.ServeQueue(card);
    for (const WaiterId waiter : served.granted) waiters_.at(waiter).outcome = Outcome::kGranted;
    for (const WaiterId waiter : served.failed) waiters_.at(waiter).outcome = Outcome::kOverLimit;
    AskForCard(card);
    if (CardIsHopeful(card)) break;
    const std::optional<WaiterId> victim = ledger_.DeadlockVictim(card);
    if (!victim.has_value()) break;
    ledger_.Leave(*victim);
    waiters_.at(*victim).outcome = Outcome::kDeadlock;
  }
  changed_.NotifyAll();
}

absl::StatusOr<std::vector<Region::Held>> LocalBroker::CreateChunks(int card, Bytes at_least, Bytes bytes) {
  const Bytes unit = backend_.devices()[static_cast<std::size_t>(card)].granularity;
  const Bytes large = std::max(kLargeChunk, unit);
  const Bytes in_large = at_least < kManyBytes ? Bytes() : RoundDown(at_least - at_least / 8, large);
  std::vector<Region::Held> chunks;
  for (Bytes made; made < bytes; made += chunks.back().chunk.bytes) {
    const Bytes size = made < in_large ? large : unit;
    absl::StatusOr<MemoryHandle> memory = backend_.Create(card, size);
    if (!memory.ok()) {
      for (const Region::Held& held : chunks) (void)backend_.Reclaim(held.memory);
      return memory.status();
    }
    chunks.push_back({{ChunkId{}, size}, *memory});
  }
  MutexLock lock(mutex_);
  for (Region::Held& held : chunks) held.chunk.id = ChunkId{next_chunk_++};
  return chunks;
}

// Taking back.

absl::Status LocalBroker::Return(LogicalId id, std::span<const Region::Held> chunks) {
  Bytes sum;
  for (const Region::Held& held : chunks) sum += held.chunk.bytes;
  {
    MutexLock lock(mutex_);
    Device& device = devices_.at(id);
    if (device.spec.preallocate) {
      device.stock.insert(device.stock.end(), chunks.begin(), chunks.end());
      std::stable_sort(
          device.stock.begin(), device.stock.end(),
          [](const Region::Held& a, const Region::Held& b) { return a.chunk.bytes > b.chunk.bytes; });
      ledger_.Refund(id, sum);
      Serve(ledger_.View(id).card);
      return absl::OkStatus();
    }
    ledger_.StartLeaving(id, sum);
  }
  ReclaimLeftovers();
  std::vector<Leaving> leaving;
  for (const Region::Held& held : chunks) leaving.push_back({id, held});
  return Reclaim(std::move(leaving));
}

absl::Status LocalBroker::Reclaim(std::vector<Leaving> leaving) {
  std::vector<absl::Status> results;
  for (const Leaving& each : leaving) results.push_back(backend_.Reclaim(each.held.memory));
  absl::Status first_error;
  MutexLock lock(mutex_);
  std::set<CardId> cards;
  for (std::size_t i = 0; i < leaving.size(); ++i) {
    first_error.Update(results[i]);
    if (results[i].ok()) {
      ledger_.ConfirmFree(leaving[i].device, leaving[i].held.chunk.bytes);
      cards.insert(ledger_.View(leaving[i].device).card);
    } else if (!absl::IsUnavailable(results[i]) && !absl::IsNotFound(results[i])) {
      leaving_.push_back(leaving[i]);  // its card is short of it until a later try succeeds
    }
    // Of others there is no handle any more, and nobody knows whether the card has the memory: it stays
    // charged until the process ends.
  }
  for (const CardId card : cards) Serve(card);
  return first_error;
}

void LocalBroker::ReclaimLeftovers() {
  std::vector<Leaving> leaving;
  {
    MutexLock lock(mutex_);
    leaving.swap(leaving_);
  }
  Reclaim(std::move(leaving)).IgnoreError();
}

absl::Status LocalBroker::CheckAllReturned() const {
  MutexLock lock(mutex_);
  LGPU_RETURN_IF_ERROR(ledger_.CheckInvariants());
  for (const CardId card : cards_) {
    if (const Bytes held = ledger_.View(card).held; !held.is_zero()) {
      return absl::InternalError(FormatBytes(held) + " are still held");
    }
  }
  return absl::OkStatus();
}

// Refusing.

Refusal LocalBroker::MakeRefusal(RefusalReason reason, const DeviceSpec& spec, Bytes asked) const {
  Refusal refusal;
  refusal.reason = reason;
  refusal.device = DeviceName(spec.index);
  refusal.asked = asked;
  refusal.limit = spec.limit;
  refusal.card = CardName(backend_, spec.card);
  return refusal;
}

void LocalBroker::AddCardNumbers(Refusal& refusal, const Ledger::CardView& card) {
  refusal.card_total = card.total;
  refusal.card_free = card.free();
}

absl::Status LocalBroker::Refuse(RefusalReason reason, LogicalId id, const DeviceSpec& spec, Bytes asked,
                                 std::chrono::nanoseconds waited) const {
  const Ledger::LogicalView view = ledger_.View(id);
  Refusal refusal = MakeRefusal(reason, spec, asked);
  refusal.held = view.held();
  AddCardNumbers(refusal, ledger_.View(view.card));
  if (waited >= std::chrono::milliseconds(1)) {
    refusal.waited = std::chrono::duration_cast<std::chrono::milliseconds>(waited);
  }
  if (reason == RefusalReason::kLimit) {
    refusal.advice.push_back("give the device a higher memory_limit than " + FormatBytes(view.limit) +
                             ", or free tensors");
    return RefusalStatus(refusal);
  }
  for (const LogicalId other : ledger_.LogicalsOf(view.card)) {
    const Ledger::LogicalView its = ledger_.View(other);
    const auto device = devices_.find(other);
    if (other == id || device == devices_.end() || (its.held().is_zero() && its.guarantee.is_zero()))
      continue;
    refusal.holders.push_back({.lease = "",
                               .owner = std::to_string(::getuid()),
                               .pid = ::getpid(),
                               .device = DeviceName(device->second.spec.index),
                               .held = its.held(),
                               .guarantee = its.guarantee});
  }
  std::stable_sort(refusal.holders.begin(), refusal.holders.end(),
                   [](const Refusal::Holder& a, const Refusal::Holder& b) {
                     return std::max(a.held, a.guarantee) > std::max(b.held, b.guarantee);
                   });
  refusal.advice.push_back(
      reason == RefusalReason::kDeadlock
          ? "all devices of the card wait for each other: free tensors, or give them a guarantee"
          : "free tensors of the other devices of this card, or simulate a larger one");
  return RefusalStatus(refusal);
}

absl::Status LocalBroker::BackendRefusal(const absl::Status& status, const DeviceSpec& spec,
                                         Bytes asked) const {
  if (!absl::IsResourceExhausted(status)) return status;
  Refusal refusal = MakeRefusal(
      SpeaksOfDescriptors(status) ? RefusalReason::kDescriptors : RefusalReason::kBackend, spec, asked);
  refusal.advice.push_back(std::string(status.message()));
  return RefusalStatus(refusal);
}

}  // namespace lgpu
