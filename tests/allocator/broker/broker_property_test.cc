// The random sequences of the Ledger's own property test, through a Broker: every answer is foretold by a
// model that follows from the invariants alone, so that a refusal that they do not demand fails as surely as
// a grant that they forbid. After every step broker, model and backend must say the same.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/broker/broker.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/broker_runner.h"
#include "tests/allocator/broker/recording_log.h"
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
using Reclaiming = CountingBackend::Reclaiming;

/// A Runner does random steps on a broker and on its model, and compares them after each.
class Runner : BrokerRunner {
 public:
  using BrokerRunner::BrokerRunner;

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
    const absl::StatusOr<LogicalId> added = broker_->AddDevice(Spec(step, preallocate));
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

  // The backend fails after some of the memory was made: nothing may stay.
  void FailToAdd(const LedgerStep& step) {
    if (step.limit > kMostPreallocated || stuck_[static_cast<std::size_t>(step.card)]) return;
    const LedgerModel::Device device{step.card, step.limit, step.limit, true};
    const absl::StatusCode expected = SizeAnswer(step.card, device);
    const auto chunks = static_cast<std::uint32_t>(RoundUp(step.limit, kUnit) / kUnit);
    backend_->FailCreateAfter(static_cast<int>(step.share % std::max(chunks, 1u)));
    const absl::StatusOr<LogicalId> added = broker_->AddDevice(Spec(step, true));
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
    // Sessions that are lost may hold memory of it still.
    slot.reset();
    broker_->RemoveDevice(id);
    model_.devices.at(id).removed = true;
    model_.devices.at(id).guarantee = Bytes();
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
    const bool is_leaving = !missing.is_zero() && model_.In(id, State::kLeaving) > given_back;
    const bool unavailable = is_leaving && after.limit > before.limit;
    if (is_leaving) missing = Bytes();
    // A waiting request would have chunks made for the limit that does not stay.
    if (unavailable && !limit_waiters_[id].empty()) return;
    if (!surplus.is_zero() && stuck_[static_cast<std::size_t>(before.card)]) return;
    absl::StatusCode expected = SizeAnswer(before.card, after, id);
    const bool possible = expected == absl::StatusCode::kOk;
    if (possible && unavailable) {
      expected = absl::StatusCode::kUnavailable;
      ++counts_.unavailable;
    }
    const absl::Status status = broker_->ResizeDevice(id, after.limit, after.guarantee);
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
    const bool brief = step.wait && step.share % 8 == 0;
    const Request request{.session = session.id,
                          .device = id,
                          .at_least = step.bytes,
                          .wanted = step.bytes + kUnit * (step.share % 4),
                          .deadline = !step.wait ? now_ : now_ + (brief ? drain_ / 4 : kPatiently)};
    const bool guaranteed = model_.InGuarantee(id, step.bytes) && !model_.devices.at(id).preallocate;
    Broker::Answer answer = broker_->Grow({.session = session.id,
                                           .device = id,
                                           .at_least = step.bytes,
                                           .wanted = request.wanted,
                                           .asked_at = now_,
                                           .deadline = request.deadline});
    if (guaranteed) {
      ASSERT_TRUE(answer.status.ok() && !answer.wait) << "refused inside its guarantee";
    }
    // Ids of requests rise; only one that waits has a name.
    const std::uint64_t grow = answer.wait ? answer.wait->value : last_grow_ + 1;
    ASSERT_GT(grow, last_grow_);
    last_grow_ = grow;
    waiting_.emplace(grow, request);
    Charge(grow);
    if (waiting_.at(grow).phase == Phase::kCard) Serve(CardOf(id));
    const Request& now = waiting_.at(grow);
    if (now.phase == Phase::kCard || now.phase == Phase::kLimit) ++counts_.waited;
    ExpectAnswer(grow, answer);
  }

  void FailToGrow(LogicalId id, const LedgerStep& step) {
    const SessionEntry& session = SessionOf(step);
    const LedgerModel::Device& device = model_.devices.at(id);
    if (session.draining || device.preallocate || stuck_[static_cast<std::size_t>(device.card)]) return;
    const Bytes bytes = kUnit * (1 + step.share % 4);
    if (QueueOn(device.card).turn != 0) return;
    const bool allowed = model_.Allows(id, bytes);
    const std::uint64_t made = step.share / 4 % (bytes / kUnit);
    backend_->FailCreateAfter(static_cast<int>(made));
    const Broker::Answer answer = broker_->Grow({.session = session.id,
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
    // Chunks made before the failure go back like any chunk: meanwhile they count for requests that wait.
    if (made != 0) {
      model_.pieces.push_back({id, session.id.value, ChunkId(), kUnit * made, State::kLeaving, true});
    }
    Serve(device.card);
    if (made != 0) Reclaim({device.card});
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

  void Confirm(const LedgerStep& step) {
    if (step.share % 4 == 0) return Unstick(step.card);
    for (std::size_t i = 0; i < sessions_.size(); ++i) {
      SessionEntry& session = sessions_[(i + step.share) % sessions_.size()];
      if (session.draining) return FinishDraining(session);
    }
  }

  void GiveUp(const LedgerStep& step) {
    now_ += step.share % 16 == 0 ? kPatiently : drain_ * (step.share % 8) / 4;
    Tick();
    if (step.share % 32 == 1 && !SessionOf(step).draining) ReturnAll(SessionOf(step));
  }
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

}  // namespace
}  // namespace lgpu
