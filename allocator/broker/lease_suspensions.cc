#include "allocator/broker/lease_suspensions.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker_core.h"
#include "allocator/broker/card_needs.h"
#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

std::vector<LogicalId> DevicesOf(const BrokerTables& tables, LeaseKey lease) {
  std::vector<LogicalId> found;
  for (const auto& [id, device] : tables.devices) {
    if (device.spec.lease == lease && !device.removed) found.push_back(id);
  }
  return found;
}

// Those with memory of a card.
std::set<SessionId> SessionsWithMemory(const BrokerTables& tables, LeaseKey lease) {
  std::set<SessionId> found;
  for (const SessionId id : tables.SessionsOf(lease)) {
    const SessionEntry& session = tables.sessions.at(id);
    const bool has_any = std::any_of(session.charges.begin(), session.charges.end(), [](const auto& entry) {
      return !entry.second.leaving && !entry.second.lent.is_zero();
    });
    if (has_any) found.insert(id);
  }
  return found;
}

std::set<CardId> CardsOf(const BrokerTables& tables, LeaseKey lease) {
  std::set<CardId> cards;
  for (const LogicalId device : DevicesOf(tables, lease)) cards.insert(tables.CardOf(device));
  return cards;
}

absl::Status CheckDevices(const BrokerTables& tables, LeaseKey lease) {
  const std::vector<LogicalId> devices = DevicesOf(tables, lease);
  if (devices.empty()) return absl::FailedPreconditionError("the lease has no logical devices");
  for (const LogicalId id : devices) {
    const DeviceEntry& device = tables.devices.at(id);
    if (!device.spec.preallocate) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(device.spec.device_name,
                     " is preallocated: its memory stays the lease's, and nothing would be free for others"));
  }
  return absl::OkStatus();
}

// Whether the programs have left a real card, and whether they are all that is back, its free memory alone
// tells.
absl::Status CheckObserved(const BrokerTables& tables, const OverheadTable& overheads, LeaseKey lease) {
  for (const CardId id : CardsOf(tables, lease)) {
    const BrokerCard& card = tables.cards.at(id);
    if (card.device.simulated || overheads.OutsidersOf(id) != nullptr) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "lgpud cannot read how much memory GPU ", card.index,
        " has free, so it cannot check that suspended programs have left the GPU\ntry: lgpu doctor"));
  }
  return absl::OkStatus();
}

absl::Status CheckSession(const SessionEntry& session) {
  const std::string who = absl::StrCat("process ", session.pid);
  if (!session.chunks.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("lgpud cannot order ", who,
                     " to move its memory of liblgpu: the lease has several programs or Contexts, the memory "
                     "belongs to no Context, or the process has an older liblgpu\ntry: Context::Suspend in "
                     "that process, if the memory is a Context's"));
  }
  for (const auto& [card, charge] : session.charges) {
    if (charge.leaving && !charge.held.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(who, " is ending, and its memory is on its way back"));
    }
    if (charge.leaving || charge.lent.is_zero()) continue;
    if (session.allowances == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat(who, " has not come back to this lgpud yet; try again in a moment"));
    }
    if (!session.waits_longer) {
      return absl::FailedPreconditionError(
          absl::StrCat(who, " was started with an older lgpu, which would not wait; start it again"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LeaseSuspensions::CheckMayBegin(LeaseKey lease) const {
  core_.mutex.AssertHeld();
  if (const auto found = core_.tables.suspensions.find(lease); found != core_.tables.suspensions.end()) {
    return absl::FailedPreconditionError(found->second.is_parked
                                             ? "the lease is suspended already"
                                             : "the lease is being suspended or resumed already");
  }
  LGPU_RETURN_IF_ERROR(CheckDevices(core_.tables, lease));
  LGPU_RETURN_IF_ERROR(CheckObserved(core_.tables, core_.overheads, lease));
  for (const SessionId id : core_.tables.SessionsOf(lease)) {
    LGPU_RETURN_IF_ERROR(CheckSession(core_.tables.sessions.at(id)));
  }
  for (const LogicalId id : DevicesOf(core_.tables, lease)) {
    if (core_.tables.devices.at(id).booked.is_zero()) continue;
    return absl::FailedPreconditionError("the lease is getting memory through liblgpu now");
  }
  return absl::OkStatus();
}

absl::Status LeaseSuspensions::Begin(LeaseKey lease) {
  BrokerLock lock(core_);
  LGPU_RETURN_IF_ERROR(CheckMayBegin(lease));
  BeginLocked(lease);
  return absl::OkStatus();
}

absl::Status LeaseSuspensions::BeginOwn(LeaseKey lease, SessionId session,
                                        const std::map<LogicalId, Bytes>& needs,
                                        const std::map<LogicalId, Bytes>& held_before) {
  BrokerLock lock(core_);
  LGPU_RETURN_IF_ERROR(CheckMayBegin(lease));
  if (!SessionsWithMemory(core_.tables, lease).empty()) {
    return absl::FailedPreconditionError("other programs of the lease have memory");
  }
  BeginLocked(lease);
  Suspension& suspension = core_.tables.suspensions.at(lease);
  suspension.is_own = true;
  suspension.sessions.insert(session);
  suspension.needs = needs;
  for (const auto& [device, bytes] : held_before) {
    if (core_.tables.devices.contains(device)) suspension.held_before[core_.tables.CardOf(device)] += bytes;
  }
  return absl::OkStatus();
}

std::vector<SessionId> LeaseSuspensions::ChunkHolders(LeaseKey lease) const {
  std::vector<SessionId> holders;
  BrokerLock lock(core_);
  if (!SessionsWithMemory(core_.tables, lease).empty()) return holders;
  for (const SessionId id : core_.tables.SessionsOf(lease)) {
    if (!core_.tables.sessions.at(id).chunks.empty()) holders.push_back(id);
  }
  return holders;
}

std::map<LogicalId, Bytes> LeaseSuspensions::HeldBy(LeaseKey lease) const {
  std::map<LogicalId, Bytes> held;
  BrokerLock lock(core_);
  for (const LogicalId id : DevicesOf(core_.tables, lease)) held[id] = core_.tables.ledger.View(id).held();
  return held;
}

void LeaseSuspensions::BeginLocked(LeaseKey lease) {
  core_.mutex.AssertHeld();
  core_.tables.suspensions[lease];
  std::set<CardId> touched;
  for (auto& [id, waiter] : core_.waiting.waiters) {
    if (!waiter.spec.session || !waiter.Waits()) continue;
    if (core_.tables.sessions.at(waiter.spec.session).lease != lease) continue;
    core_.admission.HoldBack(id, waiter);
    touched.insert(waiter.card);
  }
  for (const LogicalId device : DevicesOf(core_.tables, lease)) {
    const CardId card = core_.tables.CardOf(device);
    if (core_.charges.TakeAllowances(card, lease)) touched.insert(card);
  }
  core_.tables.suspensions.at(lease).sessions = SessionsWithMemory(core_.tables, lease);
  for (const CardId card : touched) core_.scheduler.Serve(card);
}

std::vector<LeaseSuspensions::Charge> LeaseSuspensions::Charges(LeaseKey lease) const {
  std::vector<Charge> charges;
  BrokerLock lock(core_);
  const std::vector<LogicalId> devices = DevicesOf(core_.tables, lease);
  for (const SessionId id : MovedSessions(core_.tables, lease)) {
    const std::size_t before = charges.size();
    for (const auto& [device, bytes] : core_.tables.suspensions.at(lease).needs) {
      charges.push_back({.session = id, .device = device, .bytes = bytes});
    }
    for (const auto& [card, charge] : core_.tables.sessions.at(id).charges) {
      const auto& held = charge.parked.lent.is_zero() ? charge.held : charge.parked.held;
      for (const auto& [device, bytes] : held) {
        charges.push_back({.session = id, .device = device, .bytes = bytes});
      }
    }
    const bool has_none = charges.size() == before && !devices.empty();
    if (has_none) charges.push_back({.session = id, .device = devices.front(), .bytes = {}});
  }
  return charges;
}

LeaseSuspensions::ByProcess LeaseSuspensions::OverheadsNow(LeaseKey lease) const {
  core_.mutex.AssertHeld();
  ByProcess overheads;
  const auto suspension = core_.tables.suspensions.find(lease);
  if (suspension != core_.tables.suspensions.end() && suspension->second.is_own) return overheads;
  for (const SessionId id : MovedSessions(core_.tables, lease)) {
    const SessionEntry& session = core_.tables.sessions.at(id);
    for (const CardId card : session.on_cards) {
      overheads[{card, session.pid}] = core_.overheads.WantedBy(session.pid, card);
    }
  }
  return overheads;
}

std::vector<LeaseSuspensions::Overhead> LeaseSuspensions::Overheads(LeaseKey lease) const {
  std::vector<Overhead> overheads;
  BrokerLock lock(core_);
  const auto found = core_.tables.suspensions.find(lease);
  if (found == core_.tables.suspensions.end()) return overheads;
  for (const auto& [of, bytes] : found->second.is_parked ? found->second.overheads : OverheadsNow(lease)) {
    overheads.push_back(
        {.card_uuid = core_.tables.cards.at(of.first).device.uuid, .pid = of.second, .bytes = bytes});
  }
  return overheads;
}

void LeaseSuspensions::DropGuarantees(LeaseKey lease) {
  core_.mutex.AssertHeld();
  Suspension& suspension = core_.tables.suspensions.at(lease);
  for (const LogicalId device : DevicesOf(core_.tables, lease)) {
    const Ledger::LogicalView view = core_.tables.ledger.View(device);
    const auto after = suspension.after.find(device);
    const Bytes guarantee = after == suspension.after.end() ? view.guarantee : after->second;
    suspension.guarantees[device] = std::min(guarantee, view.limit);
    LGPU_CHECK(core_.tables.ledger.Resize(device, {.limit = view.limit, .guarantee = Bytes()}).ok());
  }
  suspension.after.clear();
}

Bytes LeaseSuspensions::Park(LeaseKey lease, bool keeps_room) {
  BrokerLock lock(core_);
  if (const auto found = core_.tables.suspensions.find(lease); found != core_.tables.suspensions.end()) {
    found->second.keeps_room = keeps_room;
  }
  return ParkLocked(lease);
}

Bytes LeaseSuspensions::ParkLocked(LeaseKey lease) {
  core_.mutex.AssertHeld();
  const auto found = core_.tables.suspensions.find(lease);
  if (found == core_.tables.suspensions.end() || found->second.is_parked) return Bytes();
  Suspension& suspension = found->second;
  suspension.is_parked = suspension.was_parked = true;
  suspension.overheads = OverheadsNow(lease);
  // What the programs have given up; an entry for each card, since others get the guarantees everywhere.
  std::map<CardId, Bytes> left;
  for (const CardId card : CardsOf(core_.tables, lease)) left[card];
  for (const SessionId id : MovedSessions(core_.tables, lease)) {
    SessionEntry& session = core_.tables.sessions.at(id);
    for (auto& [card, charge] : session.charges) {
      left[card] += charge.HeldInAll();
      core_.charges.Park(id, card);
    }
    if (!suspension.is_own) core_.overheads.Refund(session);
  }
  DropGuarantees(lease);
  core_.charges.LogLess();
  for (const auto& [card, bytes] : left) {
    // The next report tells how much of it the card has back.
    if (core_.overheads.OutsidersOf(card) != nullptr) {
      Bytes foreign = core_.tables.ledger.View(card).foreign + bytes;
      for (const auto& [of, overhead] : suspension.overheads) {
        if (of.first == card) foreign += overhead;
      }
      core_.tables.ledger.SetForeign(card, foreign);
    }
    core_.scheduler.Serve(card);
  }
  return ParkedOf(lease);
}

std::map<CardId, Bytes> LeaseSuspensions::NeedOf(LeaseKey lease) const {
  BrokerLock lock(core_);
  const auto found = core_.tables.suspensions.find(lease);
  if (found == core_.tables.suspensions.end() || !found->second.is_parked) return {};
  return CardNeeds(core_.tables, lease);
}

absl::Status LeaseSuspensions::TakeBack(LeaseKey lease, std::span<const WaiterId> rooms) {
  BrokerLock lock(core_);
  const auto found = core_.tables.suspensions.find(lease);
  if (found == core_.tables.suspensions.end() || !found->second.is_parked) {
    return absl::FailedPreconditionError("the lease is not suspended");
  }
  for (const WaiterId room : rooms) core_.guarantees.Free(room);
  const std::map<CardId, Bytes> need = CardNeeds(core_.tables, lease);
  for (const auto& [card, bytes] : need) {
    const Bytes free = core_.tables.ledger.View(card).free();
    if (bytes <= free) continue;
    for (const CardId freed : CardsOf(core_.tables, lease)) core_.scheduler.Serve(freed);
    return absl::ResourceExhaustedError(absl::StrCat("GPU ", core_.tables.cards.at(card).index, " has ",
                                                     FormatBytes(free), " free, and the lease needs ",
                                                     FormatBytes(bytes)));
  }
  Suspension& suspension = found->second;
  if (MovedSessions(core_.tables, lease).empty()) suspension.needs.clear();  // its program has ended
  suspension.is_parked = false;
  const std::map<LogicalId, Bytes> guarantees = std::exchange(suspension.guarantees, {});
  for (const auto& [device, guarantee] : guarantees) {
    const Bytes limit = core_.tables.ledger.View(device).limit;
    const auto needed = suspension.needs.find(device);
    Bytes now = guarantee;
    if (needed != suspension.needs.end()) {
      suspension.after[device] = guarantee;
      now = std::max(now, std::min(needed->second, limit));
    }
    const absl::Status resized = core_.tables.ledger.Resize(device, {.limit = limit, .guarantee = now});
    if (resized.ok()) continue;
    DropGuarantees(lease);  // parked as before
    suspension.guarantees = guarantees;
    suspension.is_parked = true;
    return resized;
  }
  for (const SessionId id : MovedSessions(core_.tables, lease)) {
    SessionEntry& session = core_.tables.sessions.at(id);
    for (auto& [card, charge] : session.charges) core_.charges.Unpark(id, card);
    core_.overheads.Charge(session);
    for (const CardId card : session.on_cards) {
      const auto overhead = suspension.overheads.find({card, session.pid});
      if (overhead == suspension.overheads.end()) continue;
      core_.overheads.Expect(session.pid, card, overhead->second);
    }
  }
  suspension.overheads.clear();
  if (suspension.comes_back_by_itself()) AdmitAgain(lease);
  for (const CardId card : CardsOf(core_.tables, lease)) core_.scheduler.Serve(card);  // what was too much
  return absl::OkStatus();
}

void LeaseSuspensions::End(LeaseKey lease) {
  BrokerLock lock(core_);
  const auto found = core_.tables.suspensions.find(lease);
  if (found == core_.tables.suspensions.end() || found->second.is_parked) return;
  const bool was_away = found->second.was_parked;
  const std::map<LogicalId, Bytes> after = std::move(found->second.after);
  core_.tables.suspensions.erase(found);
  for (const auto& [device, guarantee] : after) {
    if (!core_.tables.devices.contains(device)) continue;
    const Bytes limit = core_.tables.ledger.View(device).limit;
    const Ledger::LogicalOptions sizes{.limit = limit, .guarantee = std::min(guarantee, limit)};
    LGPU_CHECK(core_.tables.ledger.Resize(device, sizes).ok());
    core_.scheduler.Serve(core_.tables.CardOf(device));
  }
  ReleaseRecord* const record = core_.tables.FindPreempted(lease);
  if (was_away && record != nullptr) record->runs_since = core_.now();
  AdmitAgain(lease);
}

absl::Status LeaseSuspensions::BeginAnyway(LeaseKey lease) {
  BrokerLock lock(core_);
  if (core_.tables.suspensions.contains(lease)) return absl::OkStatus();
  LGPU_RETURN_IF_ERROR(CheckDevices(core_.tables, lease));
  BeginLocked(lease);
  return absl::OkStatus();
}

void LeaseSuspensions::MoveOnly(LeaseKey lease, const std::set<std::int64_t>& pids) {
  BrokerLock lock(core_);
  const auto found = core_.tables.suspensions.find(lease);
  if (found == core_.tables.suspensions.end() || found->second.is_parked) return;
  std::set<SessionId>& moved = found->second.sessions;
  for (auto id = moved.begin(); id != moved.end();) {
    const SessionEntry* const session = core_.tables.FindSession(*id);
    const bool is_moved = session != nullptr && pids.contains(session->pid);
    id = is_moved ? std::next(id) : moved.erase(id);
  }
}

void LeaseSuspensions::Fail(LeaseKey lease) {
  BrokerLock lock(core_);
  const auto found = core_.tables.suspensions.find(lease);
  if (found == core_.tables.suspensions.end()) return;
  ParkLocked(lease);
  found->second.has_failed = true;
  AdmitAgain(lease);
  for (const CardId card : CardsOf(core_.tables, lease)) core_.scheduler.Serve(card);  // no room is kept
}

void LeaseSuspensions::AdmitAgain(LeaseKey lease) {
  core_.mutex.AssertHeld();
  std::set<CardId> touched;
  for (auto& [id, waiter] : core_.waiting.waiters) {
    if (waiter.phase != Waiter::Phase::kSuspended) continue;
    if (core_.tables.sessions.at(waiter.spec.session).lease != lease) continue;
    core_.admission.GoOn(id, waiter);
    touched.insert(waiter.card);
  }
  for (const CardId card : touched) core_.scheduler.Serve(card);
}

void LeaseSuspensions::Restore(LeaseKey lease, const Earlier& earlier) {
  BrokerLock lock(core_);
  Suspension& suspension = core_.tables.suspensions[lease];
  suspension = {.is_parked = true,
                .was_parked = true,
                .has_failed = earlier.has_failed,
                .is_own = earlier.is_own,
                .keeps_room = earlier.keeps_room,
                .held_before = {},
                .sessions = {},
                .guarantees = earlier.guarantees,
                .needs = {},
                .after = {},
                .overheads = {}};
  for (const Charge& charge : earlier.charges) {
    suspension.sessions.insert(charge.session);
    if (earlier.is_own) {
      if (!charge.bytes.is_zero()) suspension.needs[charge.device] += charge.bytes;
      continue;
    }
    if (core_.tables.sessions.contains(charge.session) && core_.tables.devices.contains(charge.device)) {
      core_.charges.RestoreParked(charge.session, charge.device, charge.bytes);
    }
  }
  for (const Overhead& overhead : earlier.overheads) {
    const std::optional<CardId> card = core_.tables.FindCard(overhead.card_uuid);
    if (card) suspension.overheads[{*card, overhead.pid}] = overhead.bytes;
  }
}

Bytes LeaseSuspensions::ParkedOf(LeaseKey lease) const {
  core_.mutex.AssertHeld();
  Bytes sum;
  for (const SessionId id : MovedSessions(core_.tables, lease)) {
    for (const auto& [card, charge] : core_.tables.sessions.at(id).charges) sum += charge.parked.lent;
  }
  return sum;
}

bool LeaseSuspensions::HasRequests(LeaseKey lease) const {
  core_.mutex.AssertHeld();
  for (const auto& [id, waiter] : core_.waiting.waiters) {
    const bool waits = waiter.phase == Waiter::Phase::kSuspended;
    if (waits && core_.tables.sessions.at(waiter.spec.session).lease == lease) return true;
  }
  return false;
}

std::size_t LeaseSuspensions::PlaceOf(LeaseKey lease) const {
  core_.mutex.AssertHeld();
  std::size_t last = 0;
  for (const auto& [card, queue] : core_.waiting.queues) {
    std::size_t place = 0;
    for (const WaiterId id : queue.Order()) {
      ++place;
      const Waiter& waiter = core_.waiting.waiters.at(id);
      const bool is_its = waiter.guarantee && waiter.guarantee->what == GuaranteeWish::For::kReservation &&
                          waiter.guarantee->spec.lease == lease;
      if (is_its) last = std::max(last, place);
    }
  }
  return last;
}

std::optional<LeaseSuspensions::Info> LeaseSuspensions::Find(LeaseKey lease) const {
  BrokerLock lock(core_);
  const auto found = core_.tables.suspensions.find(lease);
  if (found == core_.tables.suspensions.end()) return std::nullopt;
  return Info{.is_parked = found->second.is_parked,
              .parked = ParkedOf(lease),
              .has_programs = !MovedSessions(core_.tables, lease).empty(),
              .had_programs = !found->second.sessions.empty(),
              .has_requests = HasRequests(lease),
              .place = PlaceOf(lease)};
}

}  // namespace lgpu
