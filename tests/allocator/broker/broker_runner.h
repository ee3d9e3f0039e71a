#ifndef LGPU_TESTS_ALLOCATOR_BROKER_BROKER_RUNNER_H_
#define LGPU_TESTS_ALLOCATOR_BROKER_BROKER_RUNNER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "allocator/broker/broker.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/broker_model.h"
#include "tests/allocator/broker/recording_log.h"
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"
#include "tests/support/ledger_model.h"
#include "tests/support/ledger_sequences.h"

namespace lgpu {

inline constexpr Bytes kUnit = 2_MiB;
// Preallocated devices up to here are made of single granules, which says exactly what they can give.
inline constexpr Bytes kMostPreallocated = 36_MiB;
inline constexpr std::chrono::milliseconds kPatiently = std::chrono::hours(1);

struct Counts {
  std::size_t granted = 0, limit = 0, card = 0, deadlock = 0, backend = 0;  // answers of Grow
  std::size_t waited = 0, served = 0, turns = 0, late = 0;
  std::size_t preallocated = 0, unconfirmed = 0, unavailable = 0;
};

/// A BrokerRunner has a broker, its model and sessions. It fetches the answers of requests and gives memory
/// back, on the broker and on the model alike, and compares what they say.
class BrokerRunner : protected BrokerModel {
 protected:
  using CountingBackend = testing::CountingBackend;
  using LedgerSequenceOptions = testing::LedgerSequenceOptions;
  using LedgerStep = testing::LedgerStep;
  using Reclaiming = CountingBackend::Reclaiming;

 public:
  /// `contended`: growth only, limits that add up to far more than the card, and nearly all wait: the mix in
  /// which all holders come to wait for each other. `log`: of the broker, if it has one.
  BrokerRunner(const LedgerSequenceOptions& options, bool contended, RecordingLog* log, Counts& counts)
      : counts_(counts), contended_(contended), log_(log) {
    const Bytes reserve(123457 * (options.seed % 3));
    std::vector<Bytes> totals;
    for (int i = 0; i < options.cards; ++i) {
      // Neither total nor reserve is a multiple of the granularity.
      totals.push_back(options.card_total + Bytes(4711u * static_cast<unsigned>(i)));
      model_.cards.push_back({totals.back(), reserve});
    }
    model_.unit = kUnit;
    stuck_.resize(totals.size());
    queues_.resize(totals.size());
    backend_ = std::make_unique<CountingBackend>(totals, kUnit);
    Broker::Options broker_options = AllCardsOf(*backend_, reserve);
    broker_options.max_drain = drain_;
    broker_options.clock = [this] { return now_; };
    GrantLog& grants = log == nullptr ? static_cast<GrantLog&>(no_log_) : *log;
    broker_ = *Broker::Create(*backend_, grants, broker_options);
    for (const Broker::CardInfo& info : broker_->Cards()) card_ids_.push_back(info.id);
    slots_.resize(static_cast<std::size_t>(options.slots));
    for (std::size_t lease = 0; 2 * lease < slots_.size(); ++lease) {
      for (int i = 0; i < 2; ++i) sessions_.push_back(NewSession(LeaseKey{lease + 1}));
    }
  }

 protected:
  struct SessionEntry {
    SessionId id;
    LeaseKey lease;
    std::shared_ptr<FlagWaker> waker;
    bool draining = false;
  };

  SessionEntry NewSession(LeaseKey lease) {
    SessionEntry session{SessionId{++last_session_}, lease, std::make_shared<FlagWaker>()};
    broker_->AddSession(session.id,
                        {.pid = static_cast<std::int64_t>(1000 + last_session_), .waker = session.waker});
    broker_->AttachSession(session.id, lease);
    return session;
  }

  // Of the lease that the step's slot belongs to.
  SessionEntry& SessionOf(const LedgerStep& step) {
    return sessions_[static_cast<std::size_t>(step.slot / 2 * 2) + step.share / 2 % 2];
  }
  Broker::DeviceSpec Spec(const LedgerStep& step, bool preallocate) const {
    return {.card = card_ids_[static_cast<std::size_t>(step.card)],
            .limit = step.limit,
            .guarantee = preallocate ? Bytes() : step.guarantee,
            .preallocate = preallocate,
            .lease = LeaseKey{static_cast<std::uint64_t>(step.slot / 2 + 1)},
            .device_name = "/device:GPU:" + std::to_string(step.slot % 2),
            .lease_name = "lease-" + std::to_string(step.slot / 2 + 1),
            .owner = "user-" + std::to_string(step.slot / 2 % 3)};
  }

  // What a size answers now, while a turn may hold the card's free memory back.
  absl::StatusCode SizeAnswer(int card, const LedgerModel::Device& wanted,
                              std::optional<LogicalId> device = std::nullopt) {
    const absl::StatusCode answer = model_.SizeAnswer(wanted, device);
    const Bytes before = device ? std::max(model_.Guarantee(*device), model_.Held(*device)) : Bytes();
    const bool more = RoundUp(wanted.guarantee, kUnit) > before;
    return answer == absl::StatusCode::kOk && more && QueueOn(card).turn != 0
               ? absl::StatusCode::kResourceExhausted
               : answer;
  }

  // The log has every chunk that a session holds, and no other.
  void CheckLog() {
    std::size_t held = 0;
    for (const LedgerModel::Piece& piece : model_.pieces) {
      if (piece.session == 0) {
        // Spare chunks that were taken are their session's before it has fetched them.
        const bool taken = piece.state == State::kPromised && model_.devices.at(piece.device).preallocate;
        held += taken ? piece.bytes / kUnit : 0;
        continue;
      }
      ++held;
      const auto found = log_->granted().find(piece.chunk);
      ASSERT_NE(found, log_->granted().end());
      ASSERT_EQ(found->second.session.value, piece.session);
      ASSERT_EQ(found->second.device, piece.device);
      ASSERT_EQ(found->second.bytes, piece.bytes);
      ASSERT_TRUE(log_->IsCommitted(piece.chunk));
    }
    ASSERT_EQ(log_->granted().size(), held);
  }

  // What the broker says about a request, against what the model says; it is over unless it waits.
  void ExpectAnswer(std::uint64_t grow, const Broker::Answer& answer) {
    const Request request = waiting_.at(grow);
    if (request.phase == Phase::kCard || request.phase == Phase::kLimit) {
      ASSERT_TRUE(answer.status.ok() && answer.wait == WaiterId{grow}) << answer.status;
      return;
    }
    ASSERT_FALSE(answer.wait.has_value());
    waiting_.erase(grow);
    if (request.phase == Phase::kRefused) {
      const std::optional<Refusal> refusal = GetRefusal(answer.status);
      ASSERT_TRUE(refusal.has_value()) << answer.status;
      ASSERT_EQ(refusal->reason, request.reason) << answer.status;
      counts_.limit += refusal->reason == RefusalReason::kLimit ? 1 : 0;
      counts_.card += refusal->reason == RefusalReason::kCard ? 1 : 0;
      counts_.deadlock += refusal->reason == RefusalReason::kDeadlock ? 1 : 0;
      return;
    }
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    ++counts_.granted;
    const auto promised = PromisedTo(request);
    ASSERT_NE(promised, model_.pieces.end());
    model_.pieces.erase(promised);
    Bytes sum;
    for (const Chunk& chunk : answer.chunks) {
      sum += chunk.bytes;
      model_.pieces.push_back(
          {request.device, request.session.value, chunk.id, chunk.bytes, State::kGranted});
    }
    ASSERT_EQ(sum, request.charged);
    // While the memory was only promised, no deadlock could be found.
    const int card = CardOf(request.device);
    if (!model_.devices.at(request.device).preallocate && !QueueOn(card).ring.empty()) Serve(card);
  }

  // Each waiting request is looked at again, as sessions do when they are woken; `slowly`: growth that was
  // granted is not fetched yet.
  void Fetch(bool slowly) {
    // What one of them fetches may end the waiting of another one.
    for (bool again = true; again && !::testing::Test::HasFatalFailure();) {
      again = false;
      std::vector<std::uint64_t> requests;
      for (const auto& [grow, request] : waiting_) requests.push_back(grow);
      for (const std::uint64_t grow : requests) FetchOne(grow, slowly, again);
      // A request that is fetched lets others be served that were looked at before it.
      again = again || (!slowly && std::any_of(waiting_.begin(), waiting_.end(), [](const auto& entry) {
                return entry.second.phase == Phase::kGranted || entry.second.phase == Phase::kRefused;
              }));
    }
    for (const SessionEntry& session : sessions_) {
      if (!slowly) session.waker->Clear();
    }
  }

  void FetchOne(std::uint64_t grow, bool slowly, bool& settled) {
    const Request& request = waiting_.at(grow);
    const bool granted = request.phase == Phase::kGranted;
    const bool refused = request.phase == Phase::kRefused;
    if (slowly && granted && !model_.devices.at(request.device).preallocate) return;
    if (granted || refused) {
      ASSERT_TRUE(WasWoken(request.session)) << "its session was not woken";
      settled = true;
    }
    const std::optional<Broker::Answer> answer = broker_->TakeAnswer(WaiterId{grow});
    ASSERT_EQ(answer.has_value(), granted || refused);
    if (answer) ExpectAnswer(grow, *answer);
  }

  // Time has passed: turns begin and end, and requests whose time is over are refused.
  void Tick() {
    const std::optional<Time> next = broker_->Tick();
    for (std::size_t card = 0; card < queues_.size(); ++card) {
      if (!queues_[card].ring.empty()) Serve(static_cast<int>(card));
    }
    Time latest = Time::max();
    for (auto& [grow, request] : waiting_) {
      if (request.phase != Phase::kCard && request.phase != Phase::kLimit) continue;
      if (IsLate(request)) {
        RefuseWaiter(grow, request.phase == Phase::kCard ? RefusalReason::kCard : RefusalReason::kLimit);
        Serve(CardOf(request.device));
        ++counts_.late;
      }
    }
    for (const auto& [grow, request] : waiting_) {
      if (request.phase == Phase::kCard || request.phase == Phase::kLimit) {
        latest = std::min(latest, LatestTick(request));
      }
    }
    ASSERT_EQ(next.has_value(), latest != Time::max());
    ASSERT_TRUE(!next || *next > now_) << "it would spin";
    ASSERT_LE(next.value_or(latest), latest) << "a turn would last longer";
  }

  bool WasWoken(SessionId id) {
    const auto session = std::find_if(sessions_.begin(), sessions_.end(),
                                      [&](const SessionEntry& entry) { return entry.id == id; });
    return session->waker->woken();
  }

  void ReturnChunks(SessionId session, LogicalId id, const std::vector<LedgerModel::Piece*>& pieces) {
    if (pieces.empty()) return;
    std::vector<ChunkId> ids;
    for (LedgerModel::Piece* piece : pieces) {
      ids.push_back(piece->chunk);
      ComesBack(*piece);
    }
    const absl::Status status = broker_->Return(session, id, ids);
    ASSERT_TRUE(status.ok()) << status;
    if (stuck_[static_cast<std::size_t>(CardOf(id))]) counts_.unconfirmed += ids.size();
    ReclaimChunks(ids);
  }

  void ReturnAll(const SessionEntry& session) {
    broker_->ReturnAll(session.id);
    DropWaiters(session.id);
    std::vector<ChunkId> chunks;
    for (LedgerModel::Piece* piece : PiecesOf(session.id, LogicalId(), State::kGranted)) {
      chunks.push_back(piece->chunk);
      ComesBack(*piece);
    }
    ReclaimChunks(chunks);
  }

  void StartDraining(SessionEntry& session) {
    if (session.draining) return;
    session.draining = true;
    broker_->StartDraining(session.id);
    DropWaiters(session.id);
    std::set<int> cards;
    for (LedgerModel::Piece* piece : PiecesOf(session.id, LogicalId(), State::kGranted)) {
      piece->state = State::kLeaving;
      cards.insert(CardOf(piece->device));
    }
    Serve(cards);
  }

  void FinishDraining(SessionEntry& session) {
    if (!session.draining) return;
    const bool done = !broker_->FinishDraining({session.id}).empty();
    std::set<int> cards;
    std::vector<ChunkId> chunks;
    for (LedgerModel::Piece* piece : PiecesOf(session.id, LogicalId(), State::kLeaving)) {
      if (piece->asked) continue;
      cards.insert(CardOf(piece->device));
      chunks.push_back(piece->chunk);
      ComesBack(*piece);
    }
    Serve(cards);
    ReclaimChunks(chunks);
    ASSERT_EQ(done, model_.HeldBy(session.id.value).is_zero());
    if (!done) return;
    broker_->RemoveSession(session.id);
    session = NewSession(session.lease);
  }

  void Stick(int card, Reclaiming how) {
    if (stuck_[static_cast<std::size_t>(card)]) return;
    stuck_[static_cast<std::size_t>(card)] = true;
    backend_->SetReclaiming(card, how);
  }

  void Unstick(int card) {
    stuck_[static_cast<std::size_t>(card)] = false;
    backend_->SetReclaiming(card, Reclaiming::kAtOnce);
    const bool done = broker_->RetryUnconfirmed();
    // One by one; requests that wait are served after each.
    std::vector<ChunkId> asked;
    for (const LedgerModel::Piece& piece : model_.pieces) {
      if (piece.asked) asked.push_back(piece.chunk);
    }
    std::sort(asked.begin(), asked.end());
    bool left = false;
    for (const ChunkId chunk : asked) {
      const auto piece = std::find_if(model_.pieces.begin(), model_.pieces.end(),
                                      [&](const LedgerModel::Piece& it) { return it.chunk == chunk; });
      const LogicalId id = piece->device;
      const int on = CardOf(id);
      if (stuck_[static_cast<std::size_t>(on)]) {
        left = true;
      } else {
        ConfirmFree(piece);
      }
      Serve(on);
    }
    FinishMaking();
    ASSERT_EQ(done, !left);
  }

  Counts& counts_;
  const bool contended_;
  RecordingLog* const log_;
  NoGrantLog no_log_;
  std::unique_ptr<CountingBackend> backend_;
  std::unique_ptr<Broker> broker_;
  std::vector<CardId> card_ids_;
  std::vector<std::optional<LogicalId>> slots_;
  std::vector<SessionEntry> sessions_;  // two of each lease; two slots are a lease
  std::uint64_t last_session_ = 0;
  std::uint64_t last_grow_ = 0;
};

}  // namespace lgpu

#endif  // LGPU_TESTS_ALLOCATOR_BROKER_BROKER_RUNNER_H_
