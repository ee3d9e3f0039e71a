#ifndef LGPU_TESTS_ALLOCATOR_BROKER_BROKER_MODEL_H_
#define LGPU_TESTS_ALLOCATOR_BROKER_BROKER_MODEL_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "allocator/broker/chunk_reclaimer.h"
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

  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kGrace{
      100};  // what a timeout of 0 waits for idle memory and turns

  struct Request {
    enum class Phase { kCard, kLimit, kGranted, kRefused };
    SessionId session;
    LogicalId device;
    Bytes at_least, wanted;
    Time deadline;
    bool patient = true;  // false: it does not wait for holders
    Phase phase = Phase::kRefused;
    Bytes charged = {};
    RefusalReason reason = RefusalReason::kUnspecified;
  };
  using Phase = Request::Phase;
  // The queue of a card: users take turns, each with its requests in a line.
  struct Queue {
    std::vector<std::pair<std::string, std::vector<std::uint64_t>>> ring;
    std::uint64_t turn = 0;  // 0: nobody's
    Time began, rest_ends;
  };

  bool IsLate(const Request& request) const { return now_ >= request.deadline; }
  Queue& QueueOf(LogicalId id) { return queues_[static_cast<std::size_t>(CardOf(id))]; }
  Queue& QueueOn(int card) { return queues_[static_cast<std::size_t>(card)]; }
  // The first of each user, then the second of each.
  std::vector<std::uint64_t> Order(int card) const {
    std::vector<std::uint64_t> order;
    for (std::size_t place = 0;; ++place) {
      const std::size_t before = order.size();
      for (const auto& [user, line] : queues_[static_cast<std::size_t>(card)].ring) {
        if (place < line.size()) order.push_back(line[place]);
      }
      if (order.size() == before) return order;
    }
  }
  // When the broker is to look at it at the latest.
  Time LatestTick(const Request& request) {
    const Queue& queue = QueueOf(request.device);
    if (request.phase != Request::Phase::kCard) return request.deadline;
    const Time next = std::min(request.deadline, now_ + drain_);
    if (queue.turn != 0) return std::min(next, queue.began + drain_);
    return now_ < queue.rest_ends ? std::min(next, queue.rest_ends) : next;
  }
  void EndTurn(Queue& queue) {
    const Time ended = std::min(now_, queue.began + drain_);
    queue.rest_ends = ended + (ended - queue.began);
    for (std::size_t i = 0; i < queue.ring.size(); ++i) {
      std::vector<std::uint64_t>& line = queue.ring[i].second;
      if (std::erase(line, queue.turn) == 0) continue;
      line.push_back(queue.turn);
      std::rotate(queue.ring.begin() + static_cast<std::ptrdiff_t>(i),
                  queue.ring.begin() + static_cast<std::ptrdiff_t>(i) + 1, queue.ring.end());
      break;
    }
    queue.turn = 0;
  }

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
    Queue& queue = QueueOf(id);
    const bool others_wait = !queue.ring.empty();
    const bool held_back = queue.turn != 0 && !model_.InGuarantee(id, request.at_least);
    Bytes most = std::min(request.wanted, model_.Limit(id));
    if (others_wait && !model_.InGuarantee(id, most)) most = request.at_least;
    if (model_.Allows(id, request.at_least) && !held_back) {
      return Grant(request, most > request.at_least && model_.Allows(id, most) ? most : request.at_least);
    }
    const bool in_limit = model_.InLimit(id, request.at_least);
    if (IsLate(request) && held_back && model_.Allows(id, request.at_least) && request.patient) {
      request.patient = false;
      request.deadline = now_ + kGrace;
    }
    const bool may_wait = !IsLate(request) && (in_limit ? model_.CanEverBeInCard(id, request.at_least)
                                                        : model_.CanEverBeInLimit(id, request.at_least));
    request.phase = may_wait ? (in_limit ? Phase::kCard : Phase::kLimit) : Phase::kRefused;
    request.reason = in_limit ? RefusalReason::kCard : RefusalReason::kLimit;
    if (!may_wait) return;
    if (!in_limit) return limit_waiters_[id].push_back(grow);
    const std::string& user = users_.at(id);
    auto found =
        std::find_if(queue.ring.begin(), queue.ring.end(), [&](auto& it) { return it.first == user; });
    if (found == queue.ring.end()) found = queue.ring.insert(found, {user, {}});
    found->second.push_back(grow);
  }

  void Grant(Request& request, Bytes bytes) {
    request.phase = Phase::kGranted;
    request.charged = bytes;
    model_.pieces.push_back({request.device, 0, ChunkId(), bytes, State::kPromised});
  }

  void TakeSpare(std::uint64_t grow, Request& request) {
    const LogicalId id = request.device;
    const Bytes spare = model_.In(id, State::kSpare);
    const Bytes made = model_.In(id, State::kMade);
    const Bytes coming = model_.In(id, State::kLeaving) + made;
    const Bytes room = SaturatingSub(model_.Limit(id), model_.Held(id) - spare);
    const Bytes available = std::min(spare, room);
    if (available >= request.at_least) {
      const Bytes bytes = std::max(request.at_least, std::min(request.wanted, available));
      SetSpare(id, spare - bytes);
      return Grant(request, bytes);
    }
    request.reason = RefusalReason::kLimit;
    request.phase = Phase::kRefused;
    const Bytes later =
        std::min(spare + made, SaturatingSub(model_.Limit(id), model_.Held(id) - spare - made));
    if ((!made.is_zero() && later >= request.at_least) ||
        (!IsLate(request) && available + coming >= request.at_least &&
         request.at_least <= model_.Limit(id))) {
      request.phase = Phase::kLimit;
      limit_waiters_[id].push_back(grow);
    }
  }

  // The user of a request that is served goes to the end of the ring, as after a turn.
  void LeaveQueues(std::uint64_t grow, bool served = false) {
    for (Queue& queue : queues_) {
      if (queue.turn == grow) EndTurn(queue);
      for (std::size_t i = 0; i < queue.ring.size(); ++i) {
        if (std::erase(queue.ring[i].second, grow) == 0) continue;
        const auto user = queue.ring.begin() + static_cast<std::ptrdiff_t>(i);
        if (served) std::rotate(user, user + 1, queue.ring.end());
        break;
      }
      std::erase_if(queue.ring, [](const auto& user) { return user.second.empty(); });
    }
    for (auto& [id, waiters] : limit_waiters_) std::erase(waiters, grow);
  }

  bool Waits(std::uint64_t session, LogicalId device) const {
    const std::vector<std::uint64_t> order = Order(CardOf(device));
    return std::any_of(order.begin(), order.end(), [&](std::uint64_t grow) {
      return waiting_.at(grow).session.value == session && waiting_.at(grow).device == device;
    });
  }
  std::uint64_t HolderOf(const LedgerModel::Piece& piece) const {
    // Spare chunks that were taken are their session's before it has fetched them.
    const bool taken = model_.devices.at(piece.device).preallocate && piece.state == State::kPromised;
    return taken ? SessionOfPromised(piece) : piece.session;
  }

  // If every session that could return memory to the card waits for it, and none of it is on its way to
  // anybody: the youngest request of such a session.
  std::optional<std::uint64_t> Victim(int card) const {
    const std::vector<std::uint64_t> order = Order(card);
    std::optional<std::uint64_t> victim;
    for (const LedgerModel::Piece& piece : model_.pieces) {
      if (CardOf(piece.device) != card || piece.state == State::kSpare) continue;
      const std::uint64_t holder = HolderOf(piece);
      std::optional<std::uint64_t> youngest;
      for (const std::uint64_t grow : order) {
        if (waiting_.at(grow).session.value == holder) youngest = std::max(youngest, std::optional(grow));
      }
      const bool lends = model_.Held(piece.device) > model_.Guarantee(piece.device);
      const bool held = piece.state == State::kGranted || (piece.state == State::kPromised && holder != 0);
      if (!held || !youngest || (lends && !Waits(holder, piece.device))) return std::nullopt;
      victim = std::max(victim, youngest);
    }
    return victim;
  }

  void RefuseWaiter(std::uint64_t grow, RefusalReason reason) {
    LeaveQueues(grow);
    waiting_.at(grow).phase = Phase::kRefused;
    waiting_.at(grow).reason = reason;
  }

  // Everybody is looked at once, so that no user gets all of what came back.
  bool Sweep(int card) {
    bool changed = false;
    for (const std::uint64_t grow : Order(card)) {
      Request& request = waiting_.at(grow);
      const std::uint64_t turn = QueueOn(card).turn;
      const bool held_back = turn != 0 && turn != grow;
      if (!model_.InLimit(request.device, request.at_least)) {
        LeaveQueues(grow);
        Charge(grow);
      } else if (held_back ? model_.InGuarantee(request.device, request.at_least)
                           : model_.InCard(request.device, request.at_least)) {
        LeaveQueues(grow, true);
        Grant(request, request.at_least);
        ++served_;
      } else {
        continue;
      }
      changed = true;
      if (turn == grow) break;  // those before it are held back no more
    }
    return changed;
  }

  // Whether it could be served without the memory of sessions that wait themselves.
  bool MayBeServed(const Request& request) const {
    const int card = CardOf(request.device);
    const Bytes free = model_.Free(card);
    const Bytes need = model_.Need(request.device, request.at_least);
    Bytes coming, most;
    for (const auto& [id, device] : model_.devices) {
      if (device.card != card) continue;
      const LogicalId logical = id;
      const Bytes kept = model_.Sum([&](const LedgerModel::Piece& piece) {
        return piece.device == logical && piece.session != 0 && piece.state != State::kLeaving &&
               Waits(piece.session, logical);
      });
      const Bytes held = model_.Held(logical);
      const Bytes surplus = SaturatingSub(held, model_.Guarantee(logical));
      coming += std::min(surplus, model_.In(logical, State::kLeaving));
      most += std::min(surplus, held - kept);
    }
    return need <= free + (request.patient ? most : coming);
  }

  bool MoveTurnOn(int card) {
    Queue& queue = QueueOn(card);
    if (queue.turn != 0) {
      const std::uint64_t turn = queue.turn;
      if (MayBeServed(waiting_.at(turn))) return false;
      EndTurn(queue);
      if (!waiting_.at(turn).patient) RefuseWaiter(turn, RefusalReason::kCard);
      return true;
    }
    const std::vector<std::uint64_t> order = Order(card);
    for (const std::uint64_t grow : order) {
      if (!MayBeServed(waiting_.at(grow))) continue;
      if (now_ < queue.rest_ends) return false;
      queue.turn = grow;
      queue.began = now_;
      ++turns_;
      return true;
    }
    for (const std::uint64_t grow : order) {
      if (waiting_.at(grow).patient) continue;
      RefuseWaiter(grow, RefusalReason::kCard);
      return true;
    }
    const std::optional<std::uint64_t> victim = order.empty() ? std::nullopt : Victim(card);
    if (victim) RefuseWaiter(*victim, RefusalReason::kDeadlock);
    return victim.has_value();
  }

  void Serve(int card) {
    do {
      EndTurnInTime(card);
      while (Sweep(card)) {
      }
      for (const auto& [id, device] : model_.devices) {
        if (device.card != card) continue;
        for (const std::uint64_t grow : std::exchange(limit_waiters_[id], {})) Charge(grow);
      }
    } while (MoveTurnOn(card));
  }
  bool EndTurnInTime(int card) {
    Queue& queue = QueueOn(card);
    const bool over = queue.turn != 0 && now_ >= queue.began + drain_;
    if (over) EndTurn(queue);
    return over;
  }
  void Serve(const std::set<int>& cards) {
    for (const int card : cards) Serve(card);
  }

  int CardOf(LogicalId id) const { return model_.devices.at(id).card; }

  // A chunk comes back from its holder.
  void ComesBack(LedgerModel::Piece& piece) {
    piece.state = State::kLeaving;
    piece.asked = true;
  }

  // The card has the memory of a piece. A preallocated device is charged for a new one, as its limit allows.
  void ConfirmFree(std::vector<LedgerModel::Piece>::iterator piece) {
    const LogicalId id = piece->device;
    const Bytes bytes = piece->bytes;
    const bool given_back = static_cast<bool>(piece->chunk);
    model_.pieces.erase(piece);
    const LedgerModel::Device& device = model_.devices.at(id);
    if (given_back && device.preallocate && !device.removed && model_.InLimit(id, bytes)) {
      model_.pieces.push_back({id, 0, ChunkId(), bytes, State::kMade});
    }
    ForgetIfEmpty(id);
  }
  void FinishMaking() {
    std::map<LogicalId, Bytes> made;
    for (const LedgerModel::Piece& piece : model_.pieces) {
      if (piece.state == State::kMade) made[piece.device] += piece.bytes;
    }
    for (const auto& [id, bytes] : made) {
      const LogicalId device = id;
      std::erase_if(model_.pieces, [&](const LedgerModel::Piece& piece) {
        return piece.device == device && piece.state == State::kMade;
      });
      AddSpare(id, bytes);
      Serve(CardOf(id));
    }
  }

  // All that the backend was asked to free, unless the card does not give it.
  void Reclaim(std::set<int> cards) {
    for (std::size_t i = 0; i < model_.pieces.size();) {
      const LedgerModel::Piece& piece = model_.pieces[i];
      const int card = CardOf(piece.device);
      if (!piece.asked || cards.count(card) == 0 || stuck_[static_cast<std::size_t>(card)]) {
        ++i;
      } else {
        ConfirmFree(model_.pieces.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    Serve(cards);
    FinishMaking();
  }
  // Chunks that came back, in the order of their ids. Requests are looked at after each batch.
  void ReclaimChunks(std::vector<ChunkId> chunks) {
    std::sort(chunks.begin(), chunks.end());
    for (std::size_t start = 0; start < chunks.size(); start += ChunkReclaimer::kBatch) {
      const std::size_t end = std::min(chunks.size(), start + ChunkReclaimer::kBatch);
      std::set<int> cards;
      for (std::size_t i = start; i < end; ++i) {
        const auto piece = std::find_if(model_.pieces.begin(), model_.pieces.end(),
                                        [&](const auto& it) { return it.chunk == chunks[i]; });
        const int card = CardOf(piece->device);
        cards.insert(card);
        if (!stuck_[static_cast<std::size_t>(card)]) ConfirmFree(piece);
      }
      Serve(cards);
      FinishMaking();
    }
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
  std::map<LogicalId, std::string> users_;
  std::vector<Queue> queues_;  // by card
  Time now_{std::chrono::hours(1)};
  std::chrono::milliseconds drain_{2000};
  std::size_t turns_ = 0;
  std::vector<LogicalId> gone_;
  std::size_t served_ = 0;
};

}  // namespace lgpu

#endif  // LGPU_TESTS_ALLOCATOR_BROKER_BROKER_MODEL_H_
