#ifndef LGPU_TESTS_ALLOCATOR_BROKER_BROKER_MODEL_H_
#define LGPU_TESTS_ALLOCATOR_BROKER_BROKER_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "allocator/broker/ids.h"
#include "lgpu/refusal.h"
#include "tests/support/ledger_model.h"

namespace lgpu {

/// A BrokerModel is what the random test of the Broker expects of it: the LedgerModel, and who waits for
/// what. Its preallocated devices are made of single granules.
class BrokerModel {
 protected:
  using LedgerModel = testing::LedgerModel;
  using State = LedgerModel::State;

  struct Request {
    enum class Phase { kCard, kLimit, kGranted, kRefused };
    SessionId session;
    LogicalId device;
    Bytes at_least, wanted;
    bool late = false;  // its deadline has passed
    Phase phase = Phase::kRefused;
    Bytes charged = {};
    RefusalReason reason = RefusalReason::kUnspecified;
  };
  using Phase = Request::Phase;

  Bytes Granted(LogicalId id) const { return model_.Held(id) - model_.In(id, State::kLeaving); }
  void SetSpare(LogicalId id, Bytes bytes) {
    std::erase_if(model_.pieces, [&](const LedgerModel::Piece& piece) {
      return piece.device == id && piece.state == State::kSpare;
    });
    if (!bytes.is_zero()) model_.pieces.push_back({id, 0, ChunkId(), bytes, State::kSpare});
  }
  void AddSpare(LogicalId id, Bytes bytes) { SetSpare(id, model_.In(id, State::kSpare) + bytes); }

  void Charge(std::uint64_t grow) {
    Request& request = waiting_.at(grow);
    if (model_.devices.at(request.device).preallocate) return TakeSpare(grow, request);
    const LogicalId id = request.device;
    const Bytes most = std::min(request.wanted, model_.Limit(id));
    if (model_.Allows(id, request.at_least)) {
      return Grant(request, most > request.at_least && model_.Allows(id, most) ? most : request.at_least);
    }
    const bool in_limit = model_.InLimit(id, request.at_least);
    const bool may_wait = !request.late && (in_limit ? model_.CanEverBeInCard(id, request.at_least)
                                                     : model_.CanEverBeInLimit(id, request.at_least));
    request.phase = may_wait ? (in_limit ? Phase::kCard : Phase::kLimit) : Phase::kRefused;
    request.reason = in_limit ? RefusalReason::kCard : RefusalReason::kLimit;
    if (!may_wait) return;
    if (in_limit) {
      model_.queue.push_back({grow, id, request.at_least});
    } else {
      limit_waiters_[id].push_back(grow);
    }
  }

  void Grant(Request& request, Bytes bytes) {
    request.phase = Phase::kGranted;
    request.charged = bytes;
    model_.pieces.push_back({request.device, 0, ChunkId(), bytes, State::kPromised});
  }

  void TakeSpare(std::uint64_t grow, Request& request) {
    const LogicalId id = request.device;
    const Bytes spare = model_.In(id, State::kSpare);
    const Bytes coming = model_.In(id, State::kLeaving) + model_.In(id, State::kDraining);
    const Bytes room = SaturatingSub(model_.Limit(id), model_.Held(id) - spare);
    const Bytes available = std::min(spare, room);
    if (available >= request.at_least) {
      const Bytes bytes = std::max(request.at_least, std::min(request.wanted, available));
      SetSpare(id, spare - bytes);
      return Grant(request, bytes);
    }
    request.reason = RefusalReason::kLimit;
    request.phase = Phase::kRefused;
    if (!request.late && available + coming >= request.at_least) {
      request.phase = Phase::kLimit;
      limit_waiters_[id].push_back(grow);
    }
  }

  void LeaveQueues(std::uint64_t grow) {
    std::erase_if(model_.queue, [&](const LedgerModel::Waiter& waiter) { return waiter.id == grow; });
    for (auto& [id, waiters] : limit_waiters_) std::erase(waiters, grow);
  }

  // If every session that holds memory of the card waits for it, and none of it is on its way to anybody: the
  // youngest request of such a session.
  std::optional<std::uint64_t> Victim(int card) const {
    const auto waits = [&](std::uint64_t session) {
      std::optional<std::uint64_t> youngest;
      for (const LedgerModel::Waiter& waiter : model_.queue) {
        const bool here = model_.devices.at(waiter.device).card == card;
        if (here && waiting_.at(waiter.id).session.value == session) youngest = waiter.id;
      }
      return youngest;
    };
    std::optional<std::uint64_t> victim;
    for (const LedgerModel::Piece& piece : model_.pieces) {
      if (model_.devices.at(piece.device).card != card || piece.state == State::kSpare) continue;
      // Spare chunks that were taken are their session's before it has fetched them.
      const bool taken = model_.devices.at(piece.device).preallocate && piece.state == State::kPromised;
      if (piece.state != State::kGranted && !taken) return std::nullopt;
      const std::optional<std::uint64_t> youngest = waits(taken ? SessionOfPromised(piece) : piece.session);
      if (!youngest) return std::nullopt;
      victim = std::max(victim, youngest);
    }
    return victim;
  }

  bool RefuseVictim(int card) {
    const std::optional<std::uint64_t> victim = Victim(card);
    if (!victim) return false;
    LeaveQueues(*victim);
    waiting_.at(*victim).phase = Phase::kRefused;
    waiting_.at(*victim).reason = RefusalReason::kDeadlock;
    return true;
  }

  // One waiter at a time, looking from the head again after each.
  std::optional<LedgerModel::Waiter> NextToServe(int card, bool& failed) {
    bool at_head = true;
    for (const LedgerModel::Waiter& waiter : model_.queue) {
      if (model_.devices.at(waiter.device).card != card) continue;
      failed = at_head && !model_.InLimit(waiter.device, waiter.bytes);
      if (failed || model_.InGuarantee(waiter.device, waiter.bytes)) return waiter;
      if (at_head && model_.InCard(waiter.device, waiter.bytes)) return waiter;
      at_head = false;
    }
    return std::nullopt;
  }

  void Serve(int card) {
    do {
      std::vector<std::uint64_t> again;
      bool failed = false;
      while (const std::optional<LedgerModel::Waiter> next = NextToServe(card, failed)) {
        LeaveQueues(next->id);
        if (failed) {
          again.push_back(next->id);
        } else {
          Grant(waiting_.at(next->id), next->bytes);
          ++served_;
        }
      }
      for (const std::uint64_t grow : again) Charge(grow);
      for (const auto& [id, device] : model_.devices) {
        if (device.card != card) continue;
        for (const std::uint64_t grow : std::exchange(limit_waiters_[id], {})) Charge(grow);
      }
    } while (RefuseVictim(card));
  }
  void Serve(const std::set<int>& cards) {
    for (const int card : cards) Serve(card);
  }

  int CardOf(LogicalId id) const { return model_.devices.at(id).card; }

  // A chunk comes back from its holder: to the device, or (true) to the card.
  bool ComesBack(LedgerModel::Piece& piece) {
    const LedgerModel::Device& device = model_.devices.at(piece.device);
    if (device.preallocate && !device.removed &&
        Granted(piece.device) - piece.bytes < model_.Limit(piece.device)) {
      piece.state = State::kSpare;
      piece.session = 0;
      piece.chunk = ChunkId();
      return false;
    }
    piece.state = State::kLeaving;
    piece.asked = true;
    return true;
  }

  // All that the backend was asked to free, unless the card does not give it.
  void Reclaim(std::set<int> cards) {
    std::set<LogicalId> touched;
    std::erase_if(model_.pieces, [&](const LedgerModel::Piece& piece) {
      const int card = CardOf(piece.device);
      if (!piece.asked || cards.count(card) == 0 || stuck_[static_cast<std::size_t>(card)]) return false;
      touched.insert(piece.device);
      return true;
    });
    for (const LogicalId id : touched) ForgetIfEmpty(id);
    Serve(cards);
  }

  void ForgetIfEmpty(LogicalId id) {
    if (model_.devices.at(id).removed && model_.Held(id).is_zero()) {
      model_.devices.erase(id);
      limit_waiters_.erase(id);
      gone_.push_back(id);
    }
  }

  std::vector<LedgerModel::Piece*> PiecesOf(SessionId session, LogicalId device, State state) {
    std::vector<LedgerModel::Piece*> pieces;
    for (LedgerModel::Piece& piece : model_.pieces) {
      const bool its = !device || piece.device == device;
      if (piece.session == session.value && its && piece.state == state) pieces.push_back(&piece);
    }
    std::sort(pieces.begin(), pieces.end(), [](auto* a, auto* b) { return a->chunk < b->chunk; });
    return pieces;
  }

  void DropWaiters(SessionId session) {
    std::set<int> cards;
    for (auto waiter = waiting_.begin(); waiter != waiting_.end();) {
      if (waiter->second.session != session) {
        ++waiter;
        continue;
      }
      cards.insert(CardOf(waiter->second.device));
      LeaveQueues(waiter->first);
      if (waiter->second.phase == Phase::kGranted) model_.pieces.erase(PromisedTo(waiter->second));
      waiter = waiting_.erase(waiter);
    }
    Serve(cards);
  }

  // What was granted to a request that has not fetched it.
  std::vector<LedgerModel::Piece>::iterator PromisedTo(const Request& request) {
    return std::find_if(model_.pieces.begin(), model_.pieces.end(), [&](const LedgerModel::Piece& piece) {
      return piece.device == request.device && piece.state == State::kPromised &&
             piece.bytes == request.charged;
    });
  }
  std::uint64_t SessionOfPromised(const LedgerModel::Piece& piece) const {
    const auto request = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& entry) {
      return entry.second.phase == Phase::kGranted && entry.second.device == piece.device &&
             entry.second.charged == piece.bytes;
    });
    return request == waiting_.end() ? 0 : request->second.session.value;
  }
  Bytes PromisedOn(int card) const {
    return model_.Sum([&](const LedgerModel::Piece& piece) {
      return piece.state == State::kPromised && CardOf(piece.device) == card;
    });
  }

  LedgerModel model_;
  std::vector<bool> stuck_;  // by card: what is to be freed there is not
  std::map<std::uint64_t, Request> waiting_;
  std::map<LogicalId, std::vector<std::uint64_t>> limit_waiters_;
  std::vector<LogicalId> gone_;
  std::size_t served_ = 0;
};

}  // namespace lgpu

#endif  // LGPU_TESTS_ALLOCATOR_BROKER_BROKER_MODEL_H_
