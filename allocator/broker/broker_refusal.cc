#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "allocator/broker/broker_impl.h"

namespace lgpu {
namespace {

// The largest ones; a refusal has to fit into the 8 KiB of metadata that gRPC
// carries.
constexpr std::size_t kMaxHolders = 10;

std::string Seconds(std::chrono::steady_clock::duration time) {
  return absl::StrFormat("%.1f s", std::max(0.0, std::chrono::duration<double>(time).count()));
}

std::string CardText(const BrokerCard& card) {
  return absl::StrCat("GPU ", card.index, " (", card.device.simulated ? "simulated" : card.device.name, ")");
}

}  // namespace

Bytes BrokerImpl::Leaving(CardId card) const {
  Bytes sum;
  for (const LogicalId logical : core_.tables.ledger.LogicalsOf(card)) {
    sum += core_.tables.ledger.View(logical).leaving;
  }
  return sum;
}

Bytes BrokerImpl::LeavingAnywhere() const {
  Bytes sum;
  for (const auto& [id, card] : core_.tables.cards) {
    sum += Leaving(id);
  }
  return sum;
}

RefusalReason BrokerImpl::BackendReason(const absl::Status& status) {
  const std::optional<Refusal> refusal = GetRefusal(status);
  const bool descriptors = refusal && refusal->reason == RefusalReason::kDescriptors;
  return descriptors ? RefusalReason::kDescriptors : RefusalReason::kBackend;
}

void BrokerImpl::AddHolders(Refusal& refusal, CardId card, LogicalId except) const {
  for (const LogicalId logical : core_.tables.ledger.LogicalsOf(card)) {
    const auto device = core_.tables.devices.find(logical);
    const Ledger::LogicalView view = core_.tables.ledger.View(logical);
    if (logical == except || device == core_.tables.devices.end() ||
        (view.held().is_zero() && view.guarantee.is_zero())) {
      continue;
    }
    Refusal::Holder holder{.lease = device->second.spec.lease_name,
                           .owner = device->second.spec.owner,
                           .pid = 0,
                           .device = device->second.spec.device_name,
                           .held = view.held(),
                           .guarantee = view.guarantee};
    // Of several processes that share the device, the one that holds most.
    Bytes most;
    for (const auto& [session, held] : device->second.held_by) {
      const auto found = core_.tables.sessions.find(session);
      if (held > most && found != core_.tables.sessions.end()) {
        most = held;
        holder.pid = found->second.pid;
      }
    }
    refusal.holders.push_back(std::move(holder));
  }
  std::stable_sort(refusal.holders.begin(), refusal.holders.end(),
                   [](const Refusal::Holder& a, const Refusal::Holder& b) {
                     return std::max(a.held, a.guarantee) > std::max(b.held, b.guarantee);
                   });
  if (refusal.holders.size() > kMaxHolders) {
    refusal.holders.resize(kMaxHolders);
  }
}

std::string BrokerImpl::DescribeWaiter(WaiterId id) const {
  const auto found = core_.tables.waiters.find(id);
  if (found == core_.tables.waiters.end()) {
    return absl::StrCat("a lease that is being made and needs ",
                        FormatBytes(core_.tables.rooms.at(id)->bytes));
  }
  const GrowSpec& spec = found->second.spec;
  const DeviceSpec& device = core_.tables.devices.at(spec.device).spec;
  return absl::StrCat(device.device_name,
                      device.lease_name.empty() ? "" : absl::StrCat(" of lease ", device.lease_name),
                      " (user ", device.owner, ", pid ", core_.tables.sessions.at(spec.session).pid,
                      "), which waits for ", FormatBytes(spec.at_least));
}

void BrokerImpl::AddTurnAdvice(Refusal& refusal, CardId card, Bytes need, int turns) const {
  const std::optional<CardQueue::Turn>& turn = core_.tables.queues.at(card).turn();
  if (turn && need <= core_.tables.ledger.View(card).free()) {
    refusal.advice.push_back(absl::StrCat(
        "ask again, or wait longer: the free memory is held back for ", DescribeWaiter(turn->of),
        "; its turn ends in ", Seconds(turn->ends - core_.now()), " at the latest (memory.max_drain)"));
  } else if (turns > 0) {
    refusal.advice.push_back(absl::StrCat(
        "ask for less: the request had ", turns, turns == 1 ? " turn" : " turns", " of at most ",
        Seconds(core_.tables.max_drain), " (memory.max_drain), and too little became free in each"));
  }
}

namespace {

/// What `owner` may do about the holders of a card: end a lease of their own,
/// or ask the others.
std::string HolderAdvice(const Refusal& refusal, const std::string& owner) {
  const Refusal::Holder* other = nullptr;
  for (const Refusal::Holder& holder : refusal.holders) {
    if (holder.lease == refusal.lease && holder.owner == owner) continue;
    if (holder.owner == owner) {
      return absl::StrCat("end a lease of yours: lgpu rm ", holder.lease);
    }
    if (other == nullptr) other = &holder;
  }
  if (other == nullptr) return "wait longer";
  return absl::StrCat("ask ", other->owner, " to free memory of lease ", other->lease, ", or wait longer");
}

}  // namespace

Refusal BrokerImpl::MakeRefusal(const DeviceEntry& device, LogicalId id, const RefusalCause& cause) const {
  const Ledger::LogicalView view = core_.tables.ledger.View(id);
  const Ledger::CardView card_view = core_.tables.ledger.View(view.card);
  const BrokerCard& card = core_.tables.cards.at(view.card);
  Refusal refusal;
  refusal.reason = cause.reason;
  refusal.device = device.spec.device_name;
  refusal.lease = device.spec.lease_name;
  refusal.asked = cause.asked;
  refusal.limit = view.limit;
  // No session holds the spare chunks of a preallocated device.
  refusal.held = view.held() - device.spare_bytes;
  refusal.waited = cause.waited;
  const bool limit_is_short = cause.reason == RefusalReason::kLimit;
  const Bytes coming_back = limit_is_short ? view.leaving : Leaving(view.card);
  if (!coming_back.is_zero()) {
    refusal.coming_back = coming_back;
  }
  if (limit_is_short) {
    refusal.advice.push_back(absl::StrCat("give the device a higher memory_limit than ",
                                          FormatBytes(view.limit), ", or free tensors in its programs"));
    return refusal;
  }
  refusal.card = CardText(card);
  refusal.card_total = card_view.total;
  refusal.card_free = card_view.free();
  AddHolders(refusal, view.card, id);
  const bool has_leases = !device.spec.lease_name.empty();
  switch (cause.reason) {
    case RefusalReason::kCard:
      AddTurnAdvice(refusal, view.card, core_.tables.ledger.NeedOf(id, cause.asked), cause.turns);
      refusal.advice.push_back(has_leases ? HolderAdvice(refusal, device.spec.owner)
                                          : "free tensors of the other devices of this card, or wait longer");
      break;
    case RefusalReason::kDeadlock:
      if (refusal.holders.empty()) {
        refusal.advice.push_back(absl::StrCat("free memory of this program, ask for at most ",
                                              FormatBytesCut(card_view.free()),
                                              ", or end programs outside lgpu that use the GPU"));
        break;
      }
      refusal.advice.push_back(
          "every holder of the card waits for memory of another one, this "
          "request was the last to come: free "
          "memory and ask again, or give the devices a guarantee");
      break;
    case RefusalReason::kDescriptors:
      refusal.advice.push_back(
          absl::StrCat(has_leases ? "raise the daemon's open file limit (LimitNOFILE=, ulimit -n): "
                                  : "raise the limit of open files (ulimit -n): ",
                       cause.detail));
      break;
    default:
      refusal.advice.push_back(absl::StrCat(
          "the device has less than the ledger expects, something else uses it: ", cause.detail));
      break;
  }
  return refusal;
}

Refusal BrokerImpl::RefuseDevice(const DeviceSpec& spec, Bytes guarantee) const {
  const Ledger::CardView view = core_.tables.ledger.View(spec.card);
  Refusal refusal;
  refusal.reason = RefusalReason::kCard;
  refusal.device = spec.device_name;
  refusal.lease = spec.lease_name;
  refusal.what = spec.preallocate ? "preallocated memory" : "guaranteed memory";
  // The request's other devices wait for nothing: what they have set aside is
  // part of what is asked for.
  const Bytes own = SetAsideBy(spec);
  refusal.asked = guarantee + own;
  refusal.limit = spec.limit;
  refusal.card = CardText(core_.tables.cards.at(spec.card));
  refusal.card_total = view.total;
  refusal.card_free = view.free() + own;
  const Bytes leaving = Leaving(spec.card);
  if (!leaving.is_zero()) {
    refusal.coming_back = leaving;
  }
  AddHolders(refusal, spec.card, LogicalId());
  AddTurnAdvice(refusal, spec.card, RoundUp(guarantee, view.granularity), 0);
  const auto is_own = [&spec](const Refusal::Holder& holder) {
    return !spec.lease_name.empty() && holder.lease == spec.lease_name && holder.owner == spec.owner;
  };
  refusal.holders.erase(std::remove_if(refusal.holders.begin(), refusal.holders.end(), is_own),
                        refusal.holders.end());
  if (!view.free().is_zero()) {
    refusal.advice.push_back(absl::StrCat("ask for at most ", FormatBytesCut(view.free())));
  }
  refusal.advice.emplace_back("use growth without a guarantee");
  if (!spec.lease_name.empty()) refusal.advice.push_back(HolderAdvice(refusal, spec.owner));
  return refusal;
}

Bytes BrokerImpl::SetAsideBy(const DeviceSpec& spec) const {
  Bytes sum;
  for (const LogicalId logical : core_.tables.ledger.LogicalsOf(spec.card)) {
    const auto device = core_.tables.devices.find(logical);
    if (spec.lease_name.empty() || device == core_.tables.devices.end() ||
        device->second.spec.lease != spec.lease)
      continue;
    const Ledger::LogicalView view = core_.tables.ledger.View(logical);
    sum += std::max(view.guarantee, view.held());
  }
  return sum;
}

absl::Status BrokerImpl::ExplainExport(LogicalId logical, Bytes asked, const absl::Status& status) const {
  MutexLock lock(core_.mutex);
  const auto device = core_.tables.devices.find(logical);
  if (!absl::IsResourceExhausted(status) || device == core_.tables.devices.end()) {
    return status;
  }
  return RefusalStatus(MakeRefusal(
      device->second, logical,
      {.reason = BackendReason(status), .asked = asked, .detail = std::string(status.message())}));
}

absl::Status BrokerImpl::CheckInvariants() const {
  MutexLock lock(core_.mutex);
  if (absl::Status status = core_.tables.ledger.CheckInvariants(); !status.ok()) {
    return status;
  }
  std::map<LogicalId, Bytes> granted;
  std::map<LogicalId, Bytes> leaving;
  std::map<SessionId, Bytes> held;
  for (const auto& [id, chunk] : core_.tables.chunks) {
    const bool leaves =
        chunk.state == ChunkEntry::State::kReturning || chunk.state == ChunkEntry::State::kDraining;
    (leaves ? leaving : granted)[chunk.device] += chunk.bytes;
    held[chunk.session] += chunk.bytes;
  }
  for (const auto& [id, session] : core_.tables.sessions) {
    for (const auto& [card, charge] : session.charges) {
      for (const auto& [device, bytes] : charge.held) {
        (charge.leaving ? leaving : granted)[device] += bytes;
        held[id] += bytes;
      }
    }
  }
  for (const auto& [id, device] : core_.tables.devices) {
    const Ledger::LogicalView view = core_.tables.ledger.View(id);
    if (view.granted != granted[id] + device.charged || view.leaving != leaving[id]) {
      return absl::InternalError(
          absl::StrCat("device ", id.value, ": the ledger has ", view.granted.count(), " bytes granted and ",
                       view.leaving.count(), " leaving, chunks and charges say ",
                       (granted[id] + device.charged).count(), " and ", leaving[id].count()));
    }
  }
  if (absl::Status status = CheckQueues(); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckCharges(); !status.ok()) {
    return status;
  }
  for (const auto& [id, session] : core_.tables.sessions) {
    if (session.held != held[id]) {
      return absl::InternalError(absl::StrCat("session ", id.value, " holds ", session.held.count(),
                                              " bytes, its chunks and charges are ", held[id].count()));
    }
  }
  return absl::OkStatus();
}

}  // namespace lgpu
