// The random sequences of the Ledger's own property test, through a Broker: every answer is foretold by a
// model that follows from the invariants alone, so that a refusal that they do not demand fails as surely as
// a grant that they forbid. After every step broker, model and backend must say the same.
//
// Past the usual length, because the Runner is one class: each kind of step acts on the broker and foretells
// its answer, and what is foretold lives in the same few tables.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "allocator/broker/broker.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/broker_model.h"
#include "tests/allocator/broker/recording_log.h"
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"
#include "tests/support/ledger_model.h"
#include "tests/support/ledger_sequences.h"
#include "tests/support/test_seed.h"

namespace lgpu {
namespace {

using testing::CountingBackend;
using testing::LedgerModel;
using testing::LedgerSequence;
using testing::LedgerSequenceOptions;
using testing::LedgerStep;
using Clock = std::chrono::steady_clock;
using Reclaiming = CountingBackend::Reclaiming;

constexpr Bytes kUnit = 2_MiB;
// Preallocated devices up to here are made of single granules, which says exactly what they can give.
constexpr Bytes kMostPreallocated = 36_MiB;
constexpr std::chrono::milliseconds kPatiently = std::chrono::hours(1);

struct Counts {
  std::size_t granted = 0, limit = 0, card = 0, deadlock = 0, backend = 0;  // answers of Grow
  std::size_t waited = 0, served = 0, turns = 0, late = 0;
  std::size_t preallocated = 0, unconfirmed = 0, unavailable = 0;
};

class Runner : BrokerModel {
 public:
  /// `contended`: growth only, limits that add up to far more than the card, and nearly all wait: the mix in
  /// which all holders come to wait for each other. `log`: of the broker, if it has one.
  Runner(const LedgerSequenceOptions& options, bool contended, RecordingLog* log, Counts& counts)
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

  void Apply(LedgerStep step) {
    using Kind = LedgerStep::Kind;
    if (contended_) Contend(step);
    if (step.share % 6 == 0) step.limit = RoundUp(step.limit, kUnit);
    std::optional<LogicalId>& slot = slots_[static_cast<std::size_t>(step.slot)];
    switch (step.kind) {
      case Kind::kAdd:
        if (!slot) Add(step, slot);
        break;
      case Kind::kRefundOverhead:
        if (!slot) FailToAdd(step);
        break;
      case Kind::kDie:
        StartDraining(SessionOf(step));
        break;
      case Kind::kConfirm:
        Confirm(step);
        break;
      case Kind::kForeign:
        Stick(step.card, step.share % 2 == 0 ? Reclaiming::kFails : Reclaiming::kPinned);
        break;
      case Kind::kGiveUp:
        GiveUp(step);
        break;
      default:
        if (slot) ApplyTo(*slot, step, slot);
    }
    Fetch(step.share % 4 == 1);
  }

  void Check() {
    const absl::Status status = broker_->CheckInvariants();
    ASSERT_TRUE(status.ok()) << status;
    for (const auto& [id, device] : model_.devices) {
      const std::optional<Broker::DeviceInfo> info = broker_->Find(id);
      ASSERT_TRUE(info.has_value());
      ASSERT_EQ(info->limit, device.limit);
      ASSERT_EQ(info->guarantee, model_.Guarantee(id));
      ASSERT_EQ(info->held, model_.Held(id));
      ASSERT_EQ(info->leaving, model_.In(id, State::kLeaving));
    }
    for (const LogicalId id : std::exchange(gone_, {})) ASSERT_FALSE(broker_->Find(id).has_value());
    for (const SessionEntry& session : sessions_) {
      ASSERT_EQ(broker_->Held(session.id), model_.HeldBy(session.id.value));
    }
    if (log_ != nullptr) CheckLog();
    const std::vector<Broker::CardInfo> cards = broker_->Cards();
    for (std::size_t i = 0; i < cards.size(); ++i) {
      const int card = static_cast<int>(i);
      ASSERT_EQ(cards[i].view.held, model_.HeldOn(card));
      ASSERT_EQ(cards[i].view.promised, model_.Promised(card));
      ASSERT_LE(cards[i].view.promised, cards[i].view.total);
      ASSERT_EQ(cards[i].draining, model_.LeavingOn(card));
      const std::vector<std::uint64_t> order = Order(card);
      ASSERT_EQ(cards[i].queue.size(), order.size());
      for (std::size_t place = 0; place < order.size(); ++place) {
        ASSERT_EQ(cards[i].queue[place].id.value, order[place]) << "at place " << place;
        ASSERT_EQ(cards[i].queue[place].turn_ends.has_value(), QueueOn(card).turn == order[place]);
      }
      ASSERT_EQ(backend_->InUse(card), model_.HeldOn(card) - PromisedOn(card))
          << "the ledger and the card differ";
    }
  }

  // Everything goes back; every card must be as on the first day.
  void Drain() {
    for (std::size_t i = 0; i < sessions_.size(); ++i) {
      if (!sessions_[i].draining) i % 2 == 0 ? ReturnAll(sessions_[i]) : StartDraining(sessions_[i]);
      Fetch(false);
    }
    for (std::size_t card = 0; card < stuck_.size(); ++card) Unstick(static_cast<int>(card));
    for (SessionEntry& session : sessions_) FinishDraining(session);
    for (std::optional<LogicalId>& slot : slots_) {
      if (slot) Remove(*slot, slot);
    }
    Check();
    ASSERT_TRUE(model_.devices.empty() && model_.pieces.empty() && waiting_.empty());
    for (const SessionEntry& session : sessions_) broker_->RemoveSession(session.id);
    for (const Broker::CardInfo& card : broker_->Cards()) {
      EXPECT_EQ(card.view.held, Bytes());
      EXPECT_EQ(card.view.promised, card.view.reserve);
      EXPECT_EQ(card.view.free(), card.view.total - card.view.reserve);
    }
    EXPECT_EQ(backend_->Handles(), 0u);
    EXPECT_TRUE(broker_->RetryUnconfirmed());
    counts_.served += served_;
    counts_.turns += turns_;
  }

 private:
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

  // The steps.

  void Contend(LedgerStep& step) const {
    using Kind = LedgerStep::Kind;
    const Bytes total = model_.Total(step.card);
    if (step.limit <= total / 2) step.limit = total / 2 + step.limit;
    if (step.guarantee > 4_MiB) step.guarantee = Bytes();
    if (step.kind == Kind::kRequest) step.wait = step.share % 8 != 7;
    if (step.kind == Kind::kForeign) step.kind = Kind::kConfirm;
    if (step.kind == Kind::kReturn) step.share /= 2;
  }

  void ApplyTo(LogicalId id, const LedgerStep& step, std::optional<LogicalId>& slot) {
    using Kind = LedgerStep::Kind;
    switch (step.kind) {
      case Kind::kRemove:
        return Remove(id, slot);
      case Kind::kResize:
        return Resize(id, step);
      case Kind::kRequest:
        return Grow(id, step);
      case Kind::kReturn:
        return Return(id, step);
      case Kind::kRefund:
        return ReturnWrongly(id, step);
      case Kind::kChargeOverhead:
        return FailToGrow(id, step);
      default:
        FAIL() << "not a step of a logical device: " << step;
    }
  }

  void Add(const LedgerStep& step, std::optional<LogicalId>& slot) {
    const bool preallocate = !contended_ && step.limit <= kMostPreallocated && step.share % 3 == 0;
    const LedgerModel::Device device{step.card, step.limit, preallocate ? step.limit : step.guarantee,
                                     preallocate};
    const absl::StatusCode expected = SizeAnswer(step.card, device);
    const absl::StatusOr<LogicalId> added = broker_->AddDevice(Spec(step, preallocate), now_);
    ASSERT_EQ(added.status().code(), expected) << added.status();
    ASSERT_EQ(GetRefusal(added.status()).has_value(), absl::IsResourceExhausted(added.status()));
    if (!added.ok()) return;
    slot = *added;
    model_.devices.emplace(*added, device);
    users_[*added] = Spec(step, preallocate).owner;
    if (!preallocate) return;
    ++counts_.preallocated;
    SetSpare(*added, model_.Limit(*added));
    Serve(step.card);
  }

  // What a size answers now, while a turn may hold the card's free memory back.
  absl::StatusCode SizeAnswer(int card, const LedgerModel::Device& wanted,
                              std::optional<LogicalId> device = std::nullopt) {
    const bool valid = model_.SizeAnswer(wanted, device) != absl::StatusCode::kInvalidArgument;
    if (valid && EndTurnInTime(card)) Serve(card);
    const absl::StatusCode answer = model_.SizeAnswer(wanted, device);
    const Bytes before = device ? std::max(model_.Guarantee(*device), model_.Held(*device)) : Bytes();
    const bool more = RoundUp(wanted.guarantee, kUnit) > before;
    return answer == absl::StatusCode::kOk && more && QueueOn(card).turn != 0
               ? absl::StatusCode::kResourceExhausted
               : answer;
  }

  // The backend fails after some of the memory was made: nothing may stay.
  void FailToAdd(const LedgerStep& step) {
    if (step.limit > kMostPreallocated || stuck_[static_cast<std::size_t>(step.card)]) return;
    const LedgerModel::Device device{step.card, step.limit, step.limit, true};
    const absl::StatusCode expected = SizeAnswer(step.card, device);
    const auto chunks = static_cast<std::uint32_t>(RoundUp(step.limit, kUnit) / kUnit);
    backend_->FailCreateAfter(static_cast<int>(step.share % std::max(chunks, 1u)));
    const absl::StatusOr<LogicalId> added = broker_->AddDevice(Spec(step, true), now_);
    backend_->FailCreateAfter(-1);
    if (expected != absl::StatusCode::kOk) {
      ASSERT_EQ(added.status().code(), expected) << added.status();
      return;
    }
    ASSERT_TRUE(GetRefusal(added.status()).has_value()) << added.status();
    ASSERT_EQ(GetRefusal(added.status())->reason, RefusalReason::kBackend);
    ++counts_.backend;
  }

  void Remove(LogicalId id, std::optional<LogicalId>& slot) {
    const int card = CardOf(id);
    const bool preallocate = model_.devices.at(id).preallocate;
    const bool waits = std::any_of(waiting_.begin(), waiting_.end(),
                                   [&](const auto& waiter) { return waiter.second.device == id; });
    // Spare chunks that the card does not give back have no name that the model knows.
    if (waits || (preallocate && stuck_[static_cast<std::size_t>(card)])) return;
    for (const SessionEntry& session : sessions_) {
      ReturnChunks(session.id, id, PiecesOf(session.id, id, State::kGranted));
    }
    if (std::any_of(model_.pieces.begin(), model_.pieces.end(), [&](const LedgerModel::Piece& piece) {
          return piece.device == id && piece.state == State::kLeaving && !piece.asked;
        })) {
      return;  // a session that is lost holds it
    }
    slot.reset();
    broker_->RemoveDevice(id);
    model_.devices.at(id).removed = true;
    const bool spare = !model_.In(id, State::kSpare).is_zero();
    for (LedgerModel::Piece& piece : model_.pieces) {
      if (piece.device != id || piece.state != State::kSpare) continue;
      piece.state = State::kLeaving;
      piece.asked = true;
    }
    ForgetIfEmpty(id);
    Serve(card);
    if (spare) Reclaim({card});
  }

  void Resize(LogicalId id, const LedgerStep& step) {
    const LedgerModel::Device before = model_.devices.at(id);
    LedgerModel::Device after = before;
    after.limit = step.limit;
    after.guarantee = step.guarantee;
    if (before.preallocate) {
      if (step.limit > kMostPreallocated) return;
      after.guarantee = after.limit;
    }
    const Bytes rounded = RoundUp(after.limit, kUnit);
    const Bytes spare = model_.In(id, State::kSpare);
    // What sessions gave back is made again when the card has it.
    const Bytes given_back = model_.Sum([&](const LedgerModel::Piece& piece) {
      return piece.device == id && piece.state == State::kLeaving && piece.chunk;
    });
    Bytes surplus, missing;
    if (before.preallocate) {
      surplus = std::min(spare, SaturatingSub(Granted(id), rounded));
      missing = SaturatingSub(rounded, Granted(id) + given_back);
    }
    const bool unavailable = !missing.is_zero() && model_.In(id, State::kLeaving) > given_back;
    // A waiting request would have chunks made for the limit that does not stay.
    if (unavailable && !limit_waiters_[id].empty()) return;
    if (!surplus.is_zero() && stuck_[static_cast<std::size_t>(before.card)]) return;
    absl::StatusCode expected = SizeAnswer(before.card, after, id);
    const bool possible = expected == absl::StatusCode::kOk;
    if (possible && unavailable) {
      expected = absl::StatusCode::kUnavailable;
      ++counts_.unavailable;
    }
    const absl::Status status = broker_->ResizeDevice(id, after.limit, after.guarantee, now_);
    ASSERT_EQ(status.code(), expected) << status;
    if (!possible) return;
    model_.devices.at(id) = after;
    if (unavailable) {
      Serve(before.card);
      model_.devices.at(id) = before;
      return Serve(before.card);
    }
    SetSpare(id, spare - surplus);
    if (!surplus.is_zero()) model_.pieces.push_back({id, 0, ChunkId(), surplus, State::kLeaving, true});
    if (!missing.is_zero()) model_.pieces.push_back({id, 0, ChunkId(), missing, State::kMade});
    Serve(before.card);
    if (!surplus.is_zero()) Reclaim({before.card});
    FinishMaking();
  }

  void Grow(LogicalId id, const LedgerStep& step) {
    const SessionEntry& session = SessionOf(step);
    if (session.draining) return;
    const int card = CardOf(id);
    const bool brief = step.wait && step.share % 8 == 0;
    const Request request{.session = session.id,
                          .device = id,
                          .at_least = step.bytes,
                          .wanted = step.bytes + kUnit * (step.share % 4),
                          .deadline = !step.wait ? now_ : now_ + (brief ? drain_ / 4 : kPatiently)};
    const bool guaranteed = model_.InGuarantee(id, step.bytes) && !model_.devices.at(id).preallocate;
    Broker::GrowAnswer answer = broker_->Grow({.session = session.id,
                                               .device = id,
                                               .at_least = step.bytes,
                                               .wanted = request.wanted,
                                               .asked_at = now_,
                                               .deadline = request.deadline});
    if (guaranteed) {
      ASSERT_TRUE(answer.status.ok() && !answer.wait) << "refused inside its guarantee";
    }
    if (EndTurnInTime(card)) Serve(card);
    // Ids of requests rise by one; only one that waits has a name.
    const std::uint64_t grow = ++last_grow_;
    if (answer.wait) {
      ASSERT_EQ(answer.wait->value, grow);
    }
    waiting_.emplace(grow, request);
    Charge(grow);
    if (waiting_.at(grow).phase == Phase::kCard) Serve(card);
    const Request& now = waiting_.at(grow);
    if (now.phase == Phase::kCard || now.phase == Phase::kLimit) ++counts_.waited;
    ExpectAnswer(grow, answer);
  }

  void FailToGrow(LogicalId id, const LedgerStep& step) {
    const SessionEntry& session = SessionOf(step);
    const LedgerModel::Device& device = model_.devices.at(id);
    if (session.draining || device.preallocate || stuck_[static_cast<std::size_t>(device.card)]) return;
    const Bytes bytes = kUnit * (1 + step.share % 4);
    if (EndTurnInTime(device.card)) Serve(device.card);
    if (QueueOn(device.card).turn != 0) return;
    const bool allowed = model_.Allows(id, bytes);
    const std::uint64_t made = step.share / 4 % (bytes / kUnit);
    backend_->FailCreateAfter(static_cast<int>(made));
    const Broker::GrowAnswer answer = broker_->Grow({.session = session.id,
                                                     .device = id,
                                                     .at_least = bytes,
                                                     .wanted = bytes,
                                                     .asked_at = now_,
                                                     .deadline = now_});
    backend_->FailCreateAfter(-1);
    ++last_grow_;
    ASSERT_FALSE(answer.wait.has_value());
    const std::optional<Refusal> refusal = GetRefusal(answer.status);
    ASSERT_TRUE(refusal.has_value()) << answer.status;
    ASSERT_EQ(refusal->reason == RefusalReason::kBackend, allowed);
    counts_.backend += allowed ? 1 : 0;
    if (!allowed) return;
    // What was made before the failure goes back like any chunk: meanwhile it counts for who waits.
    if (made != 0) {
      model_.pieces.push_back({id, session.id.value, ChunkId(), kUnit * made, State::kLeaving, true});
    }
    Serve(device.card);
    if (made != 0) Reclaim({device.card});
  }

  // What the broker says about a request, against what the model says; it is over unless it waits.
  void ExpectAnswer(std::uint64_t grow, const Broker::GrowAnswer& answer) {
    const Request request = waiting_.at(grow);
    if (request.phase == Phase::kCard || request.phase == Phase::kLimit) {
      ASSERT_TRUE(answer.status.ok() && answer.wait == GrowId{grow}) << answer.status;
      waiting_.at(grow).next_look = answer.next_look;
      ASSERT_LE(answer.next_look, LatestLook(request)) << "a turn would last longer";
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
    // While it was only promised, nobody could tell a deadlock.
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
      // A request that leaves, or moves the queue on, lets others be served that were looked at before it.
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
      ASSERT_TRUE(WasWoken(request.session)) << "nobody told it";
      settled = true;
    }
    const Broker::GrowAnswer answer = broker_->Continue(GrowId{grow});
    if (!granted && !refused) LookAt(grow);
    ExpectAnswer(grow, answer);
  }

  // A request that waits is looked at.
  void LookAt(std::uint64_t grow) {
    Request& request = waiting_.at(grow);
    const int card = CardOf(request.device);
    if (request.phase == Phase::kCard && now_ >= request.next_look) Serve(card);
    if ((request.phase != Phase::kCard && request.phase != Phase::kLimit) || !IsLate(request)) return;
    RefuseWaiter(grow, request.phase == Phase::kCard ? RefusalReason::kCard : RefusalReason::kLimit);
    Serve(card);
    ++counts_.late;
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

  void Return(LogicalId id, const LedgerStep& step) {
    const SessionEntry& session = SessionOf(step);
    std::vector<LedgerModel::Piece*> pieces = PiecesOf(session.id, id, State::kGranted);
    pieces.resize((pieces.size() * step.share + LedgerStep::kWhole - 1) / LedgerStep::kWhole);
    ReturnChunks(session.id, id, pieces);
  }

  // A list with one wrong entry changes nothing.
  void ReturnWrongly(LogicalId id, const LedgerStep& step) {
    const SessionEntry& session = SessionOf(step);
    std::vector<ChunkId> ids;
    for (const LedgerModel::Piece* piece : PiecesOf(session.id, id, State::kGranted)) {
      ids.push_back(piece->chunk);
    }
    ChunkId wrong = ids.empty() ? ChunkId{std::uint64_t{1} << 40} : ids.front();
    for (const LedgerModel::Piece& piece : model_.pieces) {
      const bool mine = piece.session == session.id.value && piece.device == id;
      if (piece.chunk && (!mine || piece.state != State::kGranted)) wrong = piece.chunk;
    }
    ids.push_back(wrong);
    ASSERT_TRUE(absl::IsInvalidArgument(broker_->Return(session.id, id, ids)));
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
    // One by one, and whoever waits is served after each.
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

  void Confirm(const LedgerStep& step) {
    if (step.share % 4 == 0) return Unstick(step.card);
    for (std::size_t i = 0; i < sessions_.size(); ++i) {
      SessionEntry& session = sessions_[(i + step.share) % sessions_.size()];
      if (session.draining) return FinishDraining(session);
    }
  }

  void GiveUp(const LedgerStep& step) {
    now_ += step.share % 16 == 0 ? kPatiently : drain_ * (step.share % 8) / 4;
    if (step.share % 32 == 1 && !SessionOf(step).draining) ReturnAll(SessionOf(step));
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

class BrokerPropertyTest : public ::testing::TestWithParam<bool> {};

TEST_P(BrokerPropertyTest, RandomSequencesKeepTheInvariantsAndRefuseNothingThatTheyAllow) {
  constexpr std::uint32_t kSeeds = 12;
  constexpr int kSteps = 4000;
  // LGPU_TEST_SEED names one other sequence.
  const bool one = std::getenv("LGPU_TEST_SEED") != nullptr;
  const std::uint32_t first = one ? TestSeed() : 1;
  const std::uint32_t last = one ? first : kSeeds;
  Counts counts;
  for (std::uint64_t next = first; next <= last; ++next) {
    const auto seed = static_cast<std::uint32_t>(next);
    const LedgerSequenceOptions options{.seed = seed,
                                        .cards = 1 + static_cast<int>(seed % 2),
                                        .slots = 4 + 2 * static_cast<int>(seed % 3),
                                        .card_total = 34_MiB + 3_MiB * (seed % 64),
                                        .granularity = kUnit};
    LedgerSequence sequence(options);
    RecordingLog log;
    Runner runner(options, seed % 4 == 0, GetParam() ? &log : nullptr, counts);
    for (int i = 0; i < kSteps; ++i) {
      const LedgerStep step = sequence.Next();
      runner.Apply(step);
      if (!HasFailure()) runner.Check();
      ASSERT_FALSE(HasFailure()) << "seed " << seed << ", step " << i << ": " << step;
    }
    runner.Drain();
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ", after everything went back";
  }
  std::printf(
      "seeds %u to %u of %d steps: %zu granted, %zu short of the limit, %zu of the card, %zu deadlocks, "
      "%zu backend failures, %zu waited, %zu served, %zu turns, %zu late, %zu preallocated, %zu unconfirmed, "
      "%zu unavailable\n",
      first, last, kSteps, counts.granted, counts.limit, counts.card, counts.deadlock, counts.backend,
      counts.waited, counts.served, counts.turns, counts.late, counts.preallocated, counts.unconfirmed,
      counts.unavailable);
  if (one) return;
  // Sequences that never come to a case prove nothing about it.
  EXPECT_GT(counts.granted, 1000u);
  EXPECT_GT(counts.limit, 1000u);
  EXPECT_GT(counts.card, 300u);
  EXPECT_GT(counts.deadlock, 20u);
  EXPECT_GT(counts.backend, 100u);
  EXPECT_GT(counts.waited, 300u);
  EXPECT_GT(counts.served, 100u);
  EXPECT_GT(counts.turns, 300u);
  EXPECT_GT(counts.late, 20u);
  EXPECT_GT(counts.preallocated, 50u);
  EXPECT_GT(counts.unconfirmed, 100u);
}

INSTANTIATE_TEST_SUITE_P(, BrokerPropertyTest, ::testing::Bool(),
                         [](const auto& log) { return log.param ? "WithALog" : "WithoutALog"; });

// Preallocated memory of any size, in small and large chunks: what is not in somebody's hands is there for
// whoever of the lease asks, however it is cut.
TEST(PreallocatedPropertyTest, PreallocatedMemoryIsThereDownToTheLastGranule) {
  constexpr std::uint32_t kSeeds = 10;
  constexpr int kSteps = 1000;
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    std::mt19937_64 random(seed);
    CountingBackend backend({1_GiB}, kUnit);
    const std::unique_ptr<Broker> broker = MakeBroker(backend);
    const LeaseKey lease{1};
    for (std::uint64_t i = 1; i <= 3; ++i) {
      broker->AddSession(SessionId{i}, {.pid = 1});
      broker->AttachSession(SessionId{i}, lease);
    }
    const Bytes limit(1 + random() % (400_MiB).count());
    const LogicalId device = *broker->AddDevice({.card = broker->Cards().front().id,
                                                 .limit = limit,
                                                 .guarantee = {},
                                                 .preallocate = true,
                                                 .lease = lease,
                                                 .lease_name = "lease",
                                                 .owner = "kim"},
                                                Clock::now());
    const Bytes all = RoundUp(limit, kUnit);
    std::map<SessionId, std::vector<Chunk>> held;
    Bytes out;
    for (int step = 0; step < kSteps; ++step) {
      const SessionId session{1 + random() % 3};
      std::vector<Chunk>& mine = held[session];
      if (random() % 2 == 0) {
        const Bytes bytes = kUnit * (1 + random() % (random() % 2 == 0 ? 4 : 60));
        const Broker::GrowAnswer answer = broker->Grow({.session = session,
                                                        .device = device,
                                                        .at_least = bytes,
                                                        .wanted = bytes + kUnit * (random() % 8),
                                                        .asked_at = Clock::now(),
                                                        .deadline = Clock::now()});
        ASSERT_EQ(answer.status.ok(), out + bytes <= all) << "seed " << seed << ": " << answer.status;
        Bytes sum;
        for (const Chunk& chunk : answer.chunks) sum += chunk.bytes;
        ASSERT_TRUE(sum >= bytes || !answer.status.ok());
        out += sum;
        mine.insert(mine.end(), answer.chunks.begin(), answer.chunks.end());
      } else {
        std::shuffle(mine.begin(), mine.end(), random);
        std::vector<ChunkId> back;
        for (std::size_t count = std::min<std::size_t>(mine.size(), random() % 12); count > 0; --count) {
          back.push_back(mine.back().id);
          out -= mine.back().bytes;
          mine.pop_back();
        }
        ASSERT_TRUE(broker->Return(session, device, back).ok());
      }
      ASSERT_EQ(broker->Find(device)->held, all);
      ASSERT_EQ(backend.InUse(0), all);
      ASSERT_TRUE(broker->CheckInvariants().ok()) << broker->CheckInvariants();
    }
    for (std::uint64_t i = 1; i <= 3; ++i) broker->ReturnAll(SessionId{i});
    broker->RemoveDevice(device);
    EXPECT_EQ(backend.Handles(), 0u);
    EXPECT_TRUE(broker->Cards().front().view.held.is_zero());
  }
}

}  // namespace
}  // namespace lgpu
