// The random sequences of the Ledger's own property test, through a LocalBroker: every answer is foretold by
// a model that follows from the invariants alone, so that a refusal that they do not demand fails as surely
// as a grant that they forbid. After every step broker, model and backend must say the same.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "client/session/local_broker.h"
#include "lgpu/refusal.h"
#include "tests/support/counting_backend.h"
#include "tests/support/ledger_model.h"
#include "tests/support/ledger_sequences.h"

namespace lgpu {
namespace {

using testing::CountingBackend;
using testing::LedgerModel;
using testing::LedgerSequence;
using testing::LedgerSequenceOptions;
using testing::LedgerStep;
using State = LedgerModel::State;
using Reclaiming = CountingBackend::Reclaiming;

constexpr Bytes kUnit = 2_MiB;
constexpr std::chrono::microseconds kBriefly{50};

struct Counts {
  std::size_t granted = 0, limit = 0, card = 0, backend = 0;  // answers of Grow
  std::size_t preallocated = 0, unconfirmed = 0;
};

class Runner {
 public:
  Runner(const LedgerSequenceOptions& options, Counts& counts) : counts_(counts) {
    std::vector<Bytes> totals;
    for (int i = 0; i < options.cards; ++i) {
      totals.push_back(options.card_total + Bytes(4711u * static_cast<unsigned>(i)));
      model_.cards.push_back({totals.back(), Bytes()});
    }
    model_.unit = kUnit;
    backend_ = std::make_unique<CountingBackend>(totals, kUnit);
    broker_ = *LocalBroker::Create(*backend_, nullptr);
    slots_.resize(static_cast<std::size_t>(options.slots));
    stuck_.resize(totals.size());
    // A card that does not confirm is short of that memory for ever: only now and then.
    may_stick_ = options.seed % 3 == 0;
  }

  void Apply(const LedgerStep& step) {
    using Kind = LedgerStep::Kind;
    std::optional<LogicalId>& slot = slots_[static_cast<std::size_t>(step.slot)];
    switch (step.kind) {
      case Kind::kAdd:
        return slot ? void() : Add(step, slot);
      case Kind::kRefundOverhead:
        return slot ? void() : FailToAdd(step);
      case Kind::kForeign:
        return Stick(step);
      case Kind::kRequest:
        return slot ? Grow(*slot, step) : void();
      case Kind::kChargeOverhead:
        return slot ? FailToGrow(*slot, step) : void();
      case Kind::kGiveUp:
        return slot ? AskForNonsense(*slot, step) : void();
      case Kind::kReturn:
      case Kind::kConfirm:
        return slot ? Return(*slot, step.share) : void();
      case Kind::kDie:
        return slot ? Return(*slot, LedgerStep::kWhole) : void();
      default:
        return;  // devices stay as they are as long as there is a broker
    }
  }

  void Check() {
    std::vector<Bytes> in_use(model_.cards.size());
    for (const auto& [id, device] : model_.devices) {
      ASSERT_EQ(broker_->limit(id), device.limit);
      ASSERT_EQ(broker_->held(id), model_.Held(id));
      in_use[static_cast<std::size_t>(device.card)] +=
          device.preallocate ? model_.Limit(id) : model_.Held(id);
    }
    for (std::size_t i = 0; i < in_use.size(); ++i) {
      const int card = static_cast<int>(i);
      ASSERT_LE(model_.Promised(card), model_.Total(card));
      ASSERT_EQ(backend_->InUse(card), in_use[i]) << "the ledger and the card differ";
    }
    const bool empty = model_.pieces.empty();
    ASSERT_EQ(broker_->CheckAllReturned().ok(), empty) << broker_->CheckAllReturned();
  }

  // Everything goes back; no memory may be left but what a card did not free.
  void Drain() {
    for (const std::optional<LogicalId>& slot : slots_) {
      if (slot) Return(*slot, LedgerStep::kWhole);
    }
    Check();
    broker_.reset();
    for (std::size_t i = 0; i < stuck_.size(); ++i) {
      const int card = static_cast<int>(i);
      if (!stuck_[i]) {
        EXPECT_EQ(backend_->InUse(card), model_.HeldOn(card));
      }
    }
    if (model_.pieces.empty() && !std::count(stuck_.begin(), stuck_.end(), true)) {
      EXPECT_EQ(backend_->Handles(), 0u);
      ++clean_;
    }
  }
  std::size_t clean() const { return clean_; }

 private:
  LocalBroker::DeviceSpec Spec(const LedgerStep& step, bool preallocate) const {
    return {.card = step.card,
            .limit = step.limit,
            .guarantee = preallocate ? Bytes() : step.guarantee,
            .preallocate = preallocate,
            .index = step.slot};
  }

  void Add(const LedgerStep& step, std::optional<LogicalId>& slot) {
    const bool preallocate = step.share % 3 == 0;
    const LedgerModel::Device device{step.card, step.limit, preallocate ? step.limit : step.guarantee,
                                     preallocate};
    const absl::StatusCode expected = model_.SizeAnswer(device);
    const absl::StatusOr<LogicalId> added = broker_->AddDevice(Spec(step, preallocate));
    ASSERT_EQ(added.status().code(), expected) << added.status();
    ASSERT_EQ(GetRefusal(added.status()).has_value(), absl::IsResourceExhausted(added.status()));
    if (!added.ok()) return;
    slot = *added;
    model_.devices.emplace(*added, device);
    counts_.preallocated += preallocate ? 1 : 0;
  }

  // The backend fails after some of the memory was made: nothing may stay.
  void FailToAdd(const LedgerStep& step) {
    if (stuck_[static_cast<std::size_t>(step.card)]) return;
    const absl::StatusCode expected = model_.SizeAnswer({step.card, step.limit, step.limit, true});
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

  void Stick(const LedgerStep& step) {
    if (!may_stick_ || step.share % 8 != 0) return;
    stuck_[static_cast<std::size_t>(step.card)] = true;
    backend_->SetReclaiming(step.card, step.share % 16 == 0 ? Reclaiming::kFails : Reclaiming::kPinned);
  }

  void Grow(LogicalId id, const LedgerStep& step) {
    const Bytes wanted = step.bytes + kUnit * (step.share % 4);
    const bool allowed = model_.Allows(id, step.bytes);
    const bool wait = step.wait && step.share % 4 == 0;
    const RefusalReason reason =
        model_.InLimit(id, step.bytes) ? RefusalReason::kCard : RefusalReason::kLimit;
    const std::chrono::nanoseconds timeout = wait ? kBriefly : std::chrono::nanoseconds(0);
    const absl::StatusOr<std::vector<Region::Held>> grown =
        broker_->Grow(id, {.at_least = step.bytes, .wanted = wanted, .timeout = timeout});
    ASSERT_EQ(grown.ok(), allowed) << grown.status();
    if (!grown.ok()) {
      const std::optional<Refusal> refusal = GetRefusal(grown.status());
      ASSERT_TRUE(refusal.has_value()) << grown.status();
      ASSERT_EQ(refusal->reason, reason) << grown.status();
      ASSERT_EQ(refusal->held, model_.Held(id));
      counts_.limit += reason == RefusalReason::kLimit ? 1 : 0;
      counts_.card += reason == RefusalReason::kCard ? 1 : 0;
      return;
    }
    ++counts_.granted;
    const Bytes most = std::min(wanted, model_.Limit(id) - model_.Held(id));
    Bytes sum;
    for (const Region::Held& held : *grown) {
      sum += held.chunk.bytes;
    }
    ASSERT_EQ(sum, model_.Allows(id, most) ? most : step.bytes);
    for (const Region::Held& held : *grown) {
      model_.pieces.push_back({id, 0, held.chunk.id, held.chunk.bytes, State::kGranted});
      chunks_[held.chunk.id] = held;
    }
  }

  void FailToGrow(LogicalId id, const LedgerStep& step) {
    const LedgerModel::Device& device = model_.devices.at(id);
    const Bytes bytes = kUnit * (1 + step.share % 4);
    if (device.preallocate || stuck_[static_cast<std::size_t>(device.card)] || !model_.Allows(id, bytes))
      return;
    backend_->FailCreateAfter(static_cast<int>(step.share / 4 % (bytes / kUnit)));
    const auto grown = broker_->Grow(id, {.at_least = bytes, .wanted = bytes});
    backend_->FailCreateAfter(-1);
    ASSERT_TRUE(GetRefusal(grown.status()).has_value()) << grown.status();
    ASSERT_EQ(GetRefusal(grown.status())->reason, RefusalReason::kBackend);
    ++counts_.backend;
  }

  void AskForNonsense(LogicalId id, const LedgerStep& step) {
    const Bytes bytes = step.wait ? Bytes() : step.bytes + Bytes(1 + step.share);
    ASSERT_TRUE(absl::IsInvalidArgument(broker_->Grow(id, {.at_least = bytes, .wanted = bytes}).status()));
  }

  void Return(LogicalId id, std::uint32_t share) {
    std::vector<ChunkId> ids;
    for (const LedgerModel::Piece& piece : model_.pieces) {
      if (piece.device == id && piece.state == State::kGranted) ids.push_back(piece.chunk);
    }
    ids.resize((ids.size() * share + LedgerStep::kWhole - 1) / LedgerStep::kWhole);
    if (ids.empty()) return;
    std::vector<Region::Held> chunks;
    const LedgerModel::Device& device = model_.devices.at(id);
    const bool stays = !device.preallocate && stuck_[static_cast<std::size_t>(device.card)];
    for (const ChunkId chunk : ids) {
      chunks.push_back(chunks_.at(chunk));
      const auto piece = std::find_if(model_.pieces.begin(), model_.pieces.end(),
                                      [&](const LedgerModel::Piece& it) { return it.chunk == chunk; });
      if (stays) {
        piece->state = State::kLeaving;
        ++counts_.unconfirmed;
      } else {
        model_.pieces.erase(piece);
      }
    }
    ASSERT_EQ(broker_->Return(id, chunks).ok(), !stays);
  }

  Counts& counts_;
  LedgerModel model_;
  std::unique_ptr<CountingBackend> backend_;
  std::unique_ptr<LocalBroker> broker_;
  std::vector<std::optional<LogicalId>> slots_;
  std::map<ChunkId, Region::Held> chunks_;
  std::vector<bool> stuck_;  // by card: what is to be freed there is not
  bool may_stick_ = false;
  std::size_t clean_ = 0;
};

TEST(LocalBrokerPropertyTest, RandomSequencesKeepTheInvariantsAndRefuseNothingThatTheyAllow) {
  constexpr std::uint32_t kSeeds = 100;  // each is a broker with devices of its own
  constexpr int kSteps = 300;
  Counts counts;
  std::size_t clean = 0;
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    const LedgerSequenceOptions options{.seed = seed,
                                        .cards = 1 + static_cast<int>(seed % 2),
                                        .slots = 3 + static_cast<int>(seed % 4),
                                        .card_total = 24_MiB + 1_MiB * (seed % 40),
                                        .granularity = kUnit};
    LedgerSequence sequence(options);
    Runner runner(options, counts);
    for (int i = 0; i < kSteps; ++i) {
      const LedgerStep step = sequence.Next();
      runner.Apply(step);
      if (!HasFailure()) runner.Check();
      ASSERT_FALSE(HasFailure()) << "seed " << seed << ", step " << i << ": " << step;
    }
    runner.Drain();
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ", after everything went back";
    clean += runner.clean();
  }
  std::printf(
      "seeds 1 to %u of %d steps: %zu granted, %zu short of the limit, %zu of the card, "
      "%zu backend failures, %zu preallocated, %zu unconfirmed\n",
      kSeeds, kSteps, counts.granted, counts.limit, counts.card, counts.backend, counts.preallocated,
      counts.unconfirmed);
  // A sequence that never comes to a case proves nothing about it.
  EXPECT_GT(clean, kSeeds / 2);
  EXPECT_GT(counts.granted, 1000u);
  EXPECT_GT(counts.limit, 1000u);
  EXPECT_GT(counts.card, 100u);
  EXPECT_GT(counts.backend, 100u);
  EXPECT_GT(counts.preallocated, 50u);
  EXPECT_GT(counts.unconfirmed, 50u);
}

// One thread for each device, so that each knows what its device holds; the card is short of what all want.
TEST(LocalBrokerPropertyTest, WhatIsGuaranteedNeverFailsWhileOthersFightForTheCard) {
  constexpr std::uint32_t kSeed = 1;
  constexpr int kSteps = 1500;
  CountingBackend backend({64_MiB}, kUnit);
  {
    const std::unique_ptr<LocalBroker> broker = *LocalBroker::Create(backend, nullptr);
    const std::vector<LocalBroker::DeviceSpec> specs = {
        {.limit = 12_MiB, .preallocate = true, .index = 0},
        {.limit = 32_MiB, .guarantee = 12_MiB, .index = 1},
        {.limit = 40_MiB, .index = 2},
        {.limit = 40_MiB, .guarantee = 6_MiB, .index = 3},
    };
    std::vector<LogicalId> devices;
    for (const LocalBroker::DeviceSpec& spec : specs) devices.push_back(*broker->AddDevice(spec));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      threads.emplace_back([&, i] {
        std::mt19937_64 random(kSeed + i);
        const Bytes guarantee = specs[i].preallocate ? specs[i].limit : specs[i].guarantee;
        std::vector<Region::Held> held;
        for (int step = 0; step < kSteps; ++step) {
          const Bytes bytes = kUnit * (1 + random() % 4);
          const Bytes before = kUnit * held.size();
          if (random() % 5 < 3) {
            const auto grown = broker->Grow(
                devices[i],
                {.at_least = bytes, .wanted = bytes + kUnit * (random() % 3), .timeout = kBriefly});
            if (grown.ok()) held.insert(held.end(), grown->begin(), grown->end());
            EXPECT_TRUE(grown.ok() || before + bytes > guarantee) << "seed " << kSeed << grown.status();
            EXPECT_TRUE(grown.ok() || GetRefusal(grown.status()).has_value()) << grown.status();
          } else {
            const std::size_t count = std::min<std::size_t>(held.size(), random() % 8);
            const std::vector<Region::Held> back(held.end() - static_cast<std::ptrdiff_t>(count), held.end());
            held.resize(held.size() - count);
            EXPECT_TRUE(broker->Return(devices[i], back).ok());
          }
          EXPECT_EQ(broker->held(devices[i]), kUnit * held.size());
          EXPECT_LE(kUnit * held.size(), specs[i].limit);
          if (::testing::Test::HasFailure()) break;
        }
        EXPECT_TRUE(broker->Return(devices[i], held).ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(broker->CheckAllReturned().ok()) << broker->CheckAllReturned();
    EXPECT_EQ(backend.InUse(0), 12_MiB);
  }
  EXPECT_EQ(backend.Handles(), 0u);
}

}  // namespace
}  // namespace lgpu
