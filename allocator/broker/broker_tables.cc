#include "allocator/broker/broker_tables.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

// SumsByKey are amounts by key, zero at first. A check makes a few of them after each change of the ledger in
// the simulator: a sorted vector costs one allocation.
template <typename Key>
class SumsByKey {
 public:
  Bytes& operator[](Key key) {
    if (last_ < sums_.size() && sums_[last_].first == key) return sums_[last_].second;
    const auto is_before = [](const auto& sum, Key sought) { return sum.first < sought; };
    auto place = std::lower_bound(sums_.begin(), sums_.end(), key, is_before);
    if (place == sums_.end() || key < place->first) place = sums_.insert(place, {key, Bytes()});
    last_ = static_cast<std::size_t>(place - sums_.begin());
    return place->second;
  }

 private:
  std::vector<std::pair<Key, Bytes>> sums_;
  std::size_t last_ = 0;  // of the last key: chunks of a session lie together
};

}  // namespace

Bytes CardCharge::HeldInAll() const {
  Bytes sum;
  for (const auto& [device, bytes] : held) sum += bytes;
  return sum;
}

std::vector<ChunkId> SessionEntry::Chunks() const {
  std::vector<ChunkId> ids(chunks.begin(), chunks.end());
  std::sort(ids.begin(), ids.end());
  return ids;
}

absl::Status BrokerTables::AddCards(const Broker::Options& options) {
  for (const BrokerCard& card : options.cards) {
    LGPU_ASSIGN_OR_RETURN(const CardId id, ledger.AddCard({.total = card.device.total,
                                                           .reserve = options.reserve,
                                                           .granularity = card.device.granularity}));
    cards.emplace(id, card);
  }
  return absl::OkStatus();
}

SessionEntry* BrokerTables::FindSession(SessionId id) {
  const auto found = sessions.find(id);
  return found == sessions.end() ? nullptr : &found->second;
}

std::optional<CardId> BrokerTables::FindCard(const std::string& uuid) const {
  for (const auto& [id, card] : cards) {
    if (card.device.uuid == uuid) return id;
  }
  return std::nullopt;
}

Bytes BrokerTables::LimitOf(LogicalId device) const {
  const Ledger::LogicalView view = ledger.View(device);
  return RoundUp(view.limit, GranuleOf(view.card));
}

Bytes BrokerTables::InChunks(CardId card) const {
  Bytes sum = ledger.View(card).held;
  for (const auto& [id, device] : devices) {
    if (device.spec.card == card) sum -= device.booked + device.lent;
  }
  return sum;
}

std::vector<LogicalId> BrokerTables::DevicesOn(LeaseKey lease, CardId card) const {
  std::vector<LogicalId> found;
  for (const auto& [id, device] : devices) {
    if (device.spec.lease == lease && device.spec.card == card && !device.removed) found.push_back(id);
  }
  return found;
}

std::size_t BrokerTables::IndexOf(LeaseKey lease, CardId card) const {
  std::set<CardId> before;
  for (const auto& [id, device] : devices) {
    if (device.spec.lease != lease) continue;
    if (device.spec.card == card) break;
    before.insert(device.spec.card);
  }
  return before.size();
}

ReleaseRecord* BrokerTables::FindPreempted(LeaseKey lease) {
  for (auto& [id, device] : devices) {
    const bool is_preemptible = device.spec.preemptible != Broker::Preemptible::kNever && !device.removed;
    if (device.spec.lease == lease && is_preemptible) return &device.preempted;
  }
  return nullptr;
}

std::string BrokerTables::NameOf(LeaseKey lease) const {
  for (const auto& [id, device] : devices) {
    if (device.spec.lease == lease) return device.spec.lease_name;
  }
  return {};
}

std::vector<SessionId> BrokerTables::SessionsOf(LeaseKey lease) const {
  std::vector<SessionId> found;
  for (const auto& [id, session] : sessions) {
    if (session.lease == lease) found.push_back(id);
  }
  return found;
}

std::vector<SessionId> BrokerTables::ChargingOn(CardId card, LeaseKey lease) const {
  std::vector<SessionId> found;
  for (auto at = charging.lower_bound({card, SessionId()}); at != charging.end() && at->first == card; ++at) {
    if (!lease || sessions.at(at->second).lease == lease) found.push_back(at->second);
  }
  return found;
}

Bytes BrokerTables::LentOf(std::span<const LogicalId> ids) const {
  Bytes sum;
  for (const LogicalId id : ids) {
    const auto device = devices.find(id);
    if (device != devices.end() && !device->second.spec.preallocate) sum += device->second.lent;
  }
  return sum;
}

Bytes BrokerTables::Leaving(CardId card) const {
  Bytes sum;
  for (const auto& [id, device] : devices) {
    if (!card || device.spec.card == card) sum += ledger.View(id).leaving;
  }
  return sum;
}

Bytes BrokerTables::ComingBack(CardId card) const {
  Bytes sum;
  for (const LogicalId logical : ledger.LogicalsOf(card)) {
    const Ledger::LogicalView view = ledger.View(logical);
    sum += std::min(SaturatingSub(view.held(), view.guarantee), view.leaving);
  }
  return sum;
}

void BrokerTables::NoteUnconfirmed(ChunkId chunk) {
  if (unconfirmed.insert(chunk).second) wakes.push_back(unconfirmed_waker);
}

void BrokerTables::ForgetIfEmpty(LogicalId logical) {
  const DeviceEntry& device = devices.at(logical);
  if (!device.removed || !device.booked.is_zero() || !ledger.View(logical).held().is_zero()) return;
  LGPU_CHECK(ledger.RemoveLogical(logical).ok());
  devices.erase(logical);
}

absl::Status BrokerTables::CheckMayGrow(const SessionEntry& session) const {
  if (stopped.contains(session.lease)) {
    return absl::FailedPreconditionError(
        "a program of this lease uses more of a GPU than it has charged or was granted, so the lease gets no "
        "more memory (memory.on_uncharged); end that program, which `lgpu events` names");
  }
  if (session.unreturned.is_zero()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "this program gave back ", FormatBytes(session.unreturned),
      " that the card does not have: something in it still maps the memory or holds a descriptor of "
      "it. It is charged to the program, which gets no more until the card has it; end the program, "
      "or whatever in it kept the memory"));
}

absl::Status BrokerTables::CheckInvariants() const {
  LGPU_RETURN_IF_ERROR(ledger.CheckInvariants());
  SumsByKey<LogicalId> granted, leaving;
  SumsByKey<SessionId> held;
  for (const auto& [id, chunk] : chunks) {
    const bool leaves =
        chunk.state == ChunkEntry::State::kReturning || chunk.state == ChunkEntry::State::kDraining;
    (leaves ? leaving : granted)[chunk.device] += chunk.bytes;
    held[chunk.session] += chunk.bytes;
  }
  for (const auto& [id, session] : sessions) {
    for (const auto& [card, charge] : session.charges) {
      for (const auto& [device, bytes] : charge.held) {
        (charge.leaving ? leaving : granted)[device] += bytes;
        held[id] += bytes;
      }
    }
  }
  std::size_t logicals = 0;
  for (const auto& [card, about] : cards) logicals += ledger.LogicalsOf(card).size();
  if (logicals != devices.size()) {
    return absl::InternalError(
        absl::StrCat("the ledger has ", logicals, " logical devices, the tables have ", devices.size()));
  }
  for (const auto& [id, device] : devices) {
    const Ledger::LogicalView view = ledger.View(id);
    if (view.granted != granted[id] + device.booked || view.leaving != leaving[id]) {
      return absl::InternalError(
          absl::StrCat("device ", id.value, ": the ledger has ", view.granted.count(), " bytes granted and ",
                       view.leaving.count(), " leaving, chunks and charges say ",
                       (granted[id] + device.booked).count(), " and ", leaving[id].count()));
    }
  }
  LGPU_RETURN_IF_ERROR(CheckCharges());
  for (const auto& [id, session] : sessions) {
    if (session.held != held[id]) {
      return absl::InternalError(absl::StrCat("session ", id.value, " holds ", session.held.count(),
                                              " bytes, its chunks and charges are ", held[id].count()));
    }
  }
  return absl::OkStatus();
}

absl::Status BrokerTables::CheckCharges() const {
  SumsByKey<LogicalId> lent;
  for (const auto& [id, session] : sessions) {
    for (const auto& [card, charge] : session.charges) {
      const Bytes held = charge.HeldInAll();
      if (held != RoundUp(charge.lent, GranuleOf(card)) ||
          charging.contains({card, id}) == charge.held.empty()) {
        return absl::InternalError(absl::StrCat("session ", id.value, " was lent ", charge.lent.count(),
                                                " bytes, and ", held.count(), " are held for it"));
      }
      for (const auto& [device, bytes] : charge.held) {
        lent[device] += bytes;
        const auto logged = charge.logged.find(device);
        if (logged == charge.logged.end() || logged->second < bytes) {
          return absl::InternalError(absl::StrCat("session ", id.value, " has charged ", bytes.count(),
                                                  " bytes of device ", device.value, ", the log has less"));
        }
      }
    }
  }
  for (const auto& [id, device] : devices) {
    if (device.lent != lent[id]) {
      return absl::InternalError(absl::StrCat("device ", id.value, " has lent ", device.lent.count(),
                                              " bytes, its sessions have ", lent[id].count()));
    }
  }
  return absl::OkStatus();
}

}  // namespace lgpu
