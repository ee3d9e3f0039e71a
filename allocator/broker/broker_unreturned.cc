// Memory of real cards that programs gave back: whether the card has it.

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker_impl.h"

namespace lgpu {
namespace {

// How long the driver may take to free memory that no process uses any more.
constexpr std::chrono::seconds kUnreturnedGrace{2};
// How often a card is asked that still lacks memory afterwards; asking takes
// the driver's locks.
constexpr std::chrono::seconds kLateRetry{1};

}  // namespace

BrokerImpl::CardSums BrokerImpl::SumsOf(CardId card) const {
  CardSums sums;
  sums.backend_device = core_.tables.cards.at(card).backend_device;
  sums.granule = core_.tables.cards.at(card).device.granularity;
  Bytes exists = core_.tables.ledger.View(card).held;
  for (const auto& [id, device] : core_.tables.devices) {
    // No chunk was made for what is charged yet, and none will be for what is
    // lent.
    if (device.spec.card == card) exists -= device.charged + device.lent;
  }
  const auto count = [&](const ChunkEntry& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex) {
    if (core_.tables.devices.at(chunk.device).spec.card != card) return;
    sums.coming += chunk.bytes;
    const auto session = core_.tables.sessions.find(chunk.session);
    if (session != core_.tables.sessions.end()) sums.suspects.insert(session->second.pid);
  };
  for (const ChunkId id : core_.tables.unconfirmed) {
    if (core_.tables.chunks.at(id).reference_gone && !core_.tables.chunks.at(id).lost)
      count(core_.tables.chunks.at(id));
  }
  for (const ChunkId id : releasing_) count(core_.tables.chunks.at(id));
  sums.chunks = SaturatingSub(exists, sums.coming);
  return sums;
}

std::map<CardId, CardReport> BrokerImpl::BeforeRelease(const std::vector<ChunkId>& chunks) {
  std::map<CardId, int> cards;
  if (!core_.leaves_process) {
    return {};
  }
  {
    BrokerLock lock(core_);
    if (std::all_of(core_.tables.cards.begin(), core_.tables.cards.end(),
                    [](const auto& card) { return card.second.device.simulated; })) {
      return {};
    }
    for (const ChunkId id : chunks) {
      const CardId card = core_.tables.devices.at(core_.tables.chunks.at(id).device).spec.card;
      if (!core_.tables.chunks.at(id).lost && !core_.tables.cards.at(card).device.simulated) {
        cards.emplace(card, core_.tables.cards.at(card).backend_device);
      }
    }
  }
  std::map<CardId, CardReport> reports;
  for (const auto& [card, backend_device] : cards) {
    if (std::optional<CardReport> report = CardReport::Take(core_.backend, backend_device)) {
      reports.emplace(card, *std::move(report));
    }
  }
  BrokerLock lock(core_);
  for (const auto& [card, report] : reports) {
    // While something else is coming back its watch goes on: only at its start
    // everything was there.
    if (!SumsOf(card).coming.is_zero()) continue;
    watches_.erase(card);
    Bytes leaving;
    for (const ChunkId id : chunks) {
      const ChunkEntry& chunk = core_.tables.chunks.at(id);
      if (!chunk.lost && core_.tables.devices.at(chunk.device).spec.card == card) leaving += chunk.bytes;
    }
    watches_.emplace(card, CardWatch(report, SaturatingSub(SumsOf(card).chunks, leaving), leaving));
  }
  for (const ChunkId id : chunks) {
    const ChunkEntry& chunk = core_.tables.chunks.at(id);
    if (!chunk.lost && reports.count(core_.tables.devices.at(chunk.device).spec.card) != 0)
      releasing_.insert(id);
  }
  return reports;
}

void BrokerImpl::DoubtReleased(const std::map<CardId, CardReport>& before, const std::vector<ChunkId>& chunks,
                               std::vector<absl::Status>& results) {
  for (const auto& [card, report] : before) {
    std::vector<std::size_t> released;
    Bytes amount;
    int backend_device = 0;
    Bytes granule;
    {
      BrokerLock lock(core_);
      backend_device = core_.tables.cards.at(card).backend_device;
      granule = core_.tables.cards.at(card).device.granularity;
      for (std::size_t i = 0; i < chunks.size(); ++i) {
        if (!results[i].ok() ||
            core_.tables.devices.at(core_.tables.chunks.at(chunks[i]).device).spec.card != card)
          continue;
        released.push_back(i);
        amount += core_.tables.chunks.at(chunks[i]).bytes;
      }
    }
    const std::optional<CardReport> after = CardReport::Take(core_.backend, backend_device);
    if (!after) continue;
    // Less than half a granule is no chunk.
    Bytes risen = CardWatch::Risen(report, *after, amount) + granule / 2;
    BrokerLock lock(core_);
    for (const std::size_t i : released) {
      const Bytes bytes = core_.tables.chunks.at(chunks[i]).bytes;
      if (bytes <= risen) {
        risen -= bytes;
      } else {
        results[i] = absl::UnavailableError("the card does not have it back yet");
        core_.tables.chunks.at(chunks[i]).leaving_since = core_.now();
      }
    }
  }
}

std::set<ChunkId> BrokerImpl::LookAtCards() {
  std::set<ChunkId> back;
  std::vector<std::pair<CardId, int>> cards;
  {
    BrokerLock lock(core_);
    for (auto watch = watches_.begin(); watch != watches_.end();) {
      const CardSums sums = SumsOf(watch->first);
      if (sums.coming.is_zero()) {
        late_looks_.erase(watch->first);
        watch = watches_.erase(watch);
        continue;
      }
      const auto late = late_looks_.find(watch->first);
      if (late == late_looks_.end() || late->second <= core_.now()) {
        cards.emplace_back(watch->first, sums.backend_device);
      }
      ++watch;
    }
  }
  for (const auto& [card, backend_device] : cards) {
    const std::optional<CardReport> report = CardReport::Take(core_.backend, backend_device);
    BrokerLock lock(core_);
    const auto watch = watches_.find(card);
    if (watch == watches_.end()) continue;
    const CardSums sums = SumsOf(card);
    Bytes room = report
                     ? watch->second.Back(*report, sums.chunks, sums.coming, sums.suspects) + sums.granule / 2
                     : sums.coming;
    // The latest returns are believed first, sessions that were found to keep
    // memory last.
    std::vector<std::tuple<bool, TimePoint::duration, ChunkId>> coming;
    for (const ChunkId id : core_.tables.unconfirmed) {
      const ChunkEntry& chunk = core_.tables.chunks.at(id);
      if (chunk.reference_gone && !chunk.lost && core_.tables.devices.at(chunk.device).spec.card == card) {
        coming.emplace_back(chunk.unreturned, -chunk.leaving_since.time_since_epoch(), id);
      }
    }
    std::sort(coming.begin(), coming.end());
    bool late = false;
    for (const auto& [known, since, id] : coming) {
      ChunkEntry& chunk = core_.tables.chunks.at(id);
      if (chunk.bytes <= room) {
        room -= chunk.bytes;
        back.insert(id);
      } else if (core_.now() - chunk.leaving_since > kUnreturnedGrace) {
        late = true;
        CountUnreturned(chunk);
      }
    }
    if (late) {
      late_looks_[card] = core_.now() + kLateRetry;
    } else {
      late_looks_.erase(card);
    }
  }
  return back;
}

void BrokerImpl::CountUnreturned(ChunkEntry& chunk) {
  const auto session = core_.tables.sessions.find(chunk.session);
  if (chunk.unreturned || session == core_.tables.sessions.end()) return;
  chunk.unreturned = true;
  session->second.unreturned += chunk.bytes;
  Unreturned& report = unreturned_[chunk.session];
  report.session = chunk.session;
  report.bytes = session->second.unreturned;
}

std::vector<BrokerImpl::Unreturned> BrokerImpl::TakeUnreturned() {
  BrokerLock lock(core_);
  std::vector<Unreturned> reports;
  for (const auto& [session, report] : unreturned_) reports.push_back(report);
  unreturned_.clear();
  return reports;
}

Bytes BrokerImpl::UnreturnedBy(SessionId session) const {
  MutexLock lock(core_.mutex);
  const auto found = core_.tables.sessions.find(session);
  return found == core_.tables.sessions.end() ? Bytes() : found->second.unreturned;
}

absl::Status BrokerImpl::CheckMayGrow(const SessionEntry& session) const {
  if (core_.tables.stopped.contains(session.lease)) {
    return absl::FailedPreconditionError(
        "a program of this lease uses more of a GPU than it has charged or was "
        "granted, so the lease gets no "
        "more "
        "memory (memory.on_uncharged); end that program, which `lgpu events` "
        "names");
  }
  if (session.unreturned.is_zero()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this program gave back ", FormatBytes(session.unreturned),
                   " that the card does not have: something in it still maps "
                   "the memory or holds a descriptor of "
                   "it. It is charged to the program, which gets no more until "
                   "the card has it; end the program, "
                   "or whatever in it kept the memory"));
}

}  // namespace lgpu
