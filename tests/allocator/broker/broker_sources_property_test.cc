// The random sequences of the Ledger's own property test, through LocalRegionSources over one Broker: every
// answer is foretold by a model that follows from the invariants alone, so that a refusal that they do not
// demand fails as surely as a grant that they forbid. After every step broker, model and backend must say the
// same.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "client/session/local_region_source.h"
#include "lgpu/refusal.h"
#include "tests/support/broker_testing.h"
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
using Clock = std::chrono::steady_clock;

constexpr Bytes kUnit = 2_MiB;
constexpr std::chrono::microseconds kBriefly{50};
constexpr LeaseKey kLease{1};
// Preallocated devices up to here are made of single granules, which says exactly what they can give.
constexpr Bytes kMostPreallocated = 36_MiB;

// A logical device, and the one source that stands on it.
struct Owner {
  LogicalId device;
  SessionId session;
  std::atomic<std::uint64_t> limit;
  std::unique_ptr<RegionSource> source;
};

std::unique_ptr<Owner> MakeOwner(Broker& broker, CountingBackend& backend, LogicalId device, Bytes limit,
                                 int card) {
  auto owner = std::make_unique<Owner>();
  owner->device = device;
  owner->session = SessionId{device.value};
  owner->limit = limit.count();
  owner->source = *LocalRegionSource::Create(
      broker, backend, owner->limit,
      {.device = device, .lease = kLease, .session = owner->session, .backend_device = card});
  return owner;
}

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
    broker_ = MakeBroker(*backend_);
    for (const Broker::CardInfo& info : broker_->Cards()) card_ids_.push_back(info.id);
    slots_.resize(static_cast<std::size_t>(options.slots));
    stuck_.resize(totals.size());
    // Memory that a card does not confirm stays charged to the end: only now and then.
    may_stick_ = options.seed % 3 == 0;
  }

  void Apply(const LedgerStep& step) {
    using Kind = LedgerStep::Kind;
    std::unique_ptr<Owner>& slot = slots_[static_cast<std::size_t>(step.slot)];
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
        return;
    }
  }

  void Check() {
    const absl::Status status = broker_->CheckInvariants();
    ASSERT_TRUE(status.ok()) << status;
    std::vector<Bytes> in_use(model_.cards.size());
    for (const std::unique_ptr<Owner>& owner : slots_) {
      if (owner == nullptr) continue;
      const LedgerModel::Device& device = model_.devices.at(owner->device);
      const Bytes held = model_.Held(owner->device);
      ASSERT_EQ(owner->source->limit(), device.limit);
      ASSERT_EQ(broker_->Held(owner->session), held);
      const Bytes all = device.preallocate ? model_.Limit(owner->device) : held;
      ASSERT_EQ(broker_->Find(owner->device)->held, all);
      in_use[static_cast<std::size_t>(device.card)] += all;
    }
    for (std::size_t i = 0; i < in_use.size(); ++i) {
      const int card = static_cast<int>(i);
      ASSERT_LE(model_.Promised(card), model_.Total(card));
      ASSERT_EQ(backend_->InUse(card), in_use[i]) << "the ledger and the card differ";
    }
  }

  // Sources give back what they have when they end; every card must be as on the first day.
  void Drain() {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i] == nullptr) continue;
      if (i % 2 == 0) Return(*slots_[i], LedgerStep::kWhole);
      slots_[i]->source.reset();
    }
    for (std::size_t i = 0; i < stuck_.size(); ++i) {
      backend_->SetReclaiming(static_cast<int>(i), Reclaiming::kAtOnce);
    }
    EXPECT_TRUE(broker_->RetryUnconfirmed());
    for (const std::unique_ptr<Owner>& owner : slots_) {
      if (owner == nullptr) continue;
      EXPECT_TRUE(broker_->Held(owner->session).is_zero());
      broker_->RemoveDevice(owner->device);
    }
    EXPECT_TRUE(broker_->CheckInvariants().ok());
    for (const Broker::CardInfo& card : broker_->Cards()) {
      EXPECT_EQ(card.view.held, Bytes());
      EXPECT_EQ(card.view.free(), card.view.total);
    }
    EXPECT_EQ(backend_->Handles(), 0u);
  }

 private:
  Broker::DeviceSpec Spec(const LedgerStep& step, bool preallocate) const {
    return {.card = card_ids_[static_cast<std::size_t>(step.card)],
            .limit = step.limit,
            .guarantee = preallocate ? Bytes() : step.guarantee,
            .preallocate = preallocate,
            .lease = kLease};
  }

  void Add(const LedgerStep& step, std::unique_ptr<Owner>& slot) {
    const bool preallocate = step.share % 3 == 0 && step.limit <= kMostPreallocated;
    const LedgerModel::Device device{step.card, step.limit, preallocate ? step.limit : step.guarantee,
                                     preallocate};
    const absl::StatusCode expected = model_.SizeAnswer(device);
    const absl::StatusOr<LogicalId> added = broker_->AddDevice(Spec(step, preallocate));
    ASSERT_EQ(added.status().code(), expected) << added.status();
    ASSERT_EQ(GetRefusal(added.status()).has_value(), absl::IsResourceExhausted(added.status()));
    if (!added.ok()) return;
    slot = MakeOwner(*broker_, *backend_, *added, step.limit, step.card);
    model_.devices.emplace(*added, device);
    counts_.preallocated += preallocate ? 1 : 0;
  }

  // The backend fails after some of the memory was made: nothing may stay.
  void FailToAdd(const LedgerStep& step) {
    if (stuck_[static_cast<std::size_t>(step.card)] || step.limit > kMostPreallocated) return;
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

  void Grow(Owner& owner, const LedgerStep& step) {
    const LogicalId id = owner.device;
    const Bytes wanted = step.bytes + kUnit * (step.share % 4);
    const bool allowed = model_.Allows(id, step.bytes);
    const bool wait = step.wait && step.share % 4 == 0;
    const RefusalReason reason =
        model_.InLimit(id, step.bytes) ? RefusalReason::kCard : RefusalReason::kLimit;
    const std::chrono::nanoseconds timeout = wait ? kBriefly : std::chrono::nanoseconds(0);
    const absl::StatusOr<std::vector<Chunk>> grown =
        owner.source->Grow({.at_least = step.bytes, .wanted = wanted, .timeout = timeout});
    ASSERT_EQ(grown.ok(), allowed) << grown.status();
    if (!grown.ok()) {
      const std::optional<Refusal> refusal = GetRefusal(grown.status());
      ASSERT_TRUE(refusal.has_value()) << grown.status();
      ASSERT_EQ(refusal->reason, reason) << grown.status();
      // A preallocated device holds its spare chunks, too.
      ASSERT_GE(refusal->held, model_.Held(id));
      ASSERT_TRUE(model_.devices.at(id).preallocate || refusal->held == model_.Held(id)) << grown.status();
      counts_.limit += reason == RefusalReason::kLimit ? 1 : 0;
      counts_.card += reason == RefusalReason::kCard ? 1 : 0;
      return;
    }
    ++counts_.granted;
    // A preallocated device gives what is there of `wanted`, a growing one all of it or what is needed.
    const bool preallocate = model_.devices.at(id).preallocate;
    const Bytes most = std::min(wanted, model_.Limit(id) - (preallocate ? model_.Held(id) : Bytes()));
    Bytes sum;
    for (const Chunk& chunk : *grown) sum += chunk.bytes;
    ASSERT_EQ(sum, model_.Allows(id, most) ? std::max(most, step.bytes) : step.bytes);
    for (const Chunk& chunk : *grown) {
      model_.pieces.push_back({id, 0, chunk.id, chunk.bytes, State::kGranted});
    }
  }

  void FailToGrow(Owner& owner, const LedgerStep& step) {
    const LedgerModel::Device& device = model_.devices.at(owner.device);
    const Bytes bytes = kUnit * (1 + step.share % 4);
    if (device.preallocate || stuck_[static_cast<std::size_t>(device.card)] ||
        !model_.Allows(owner.device, bytes)) {
      return;
    }
    backend_->FailCreateAfter(static_cast<int>(step.share / 4 % (bytes / kUnit)));
    const auto grown = owner.source->Grow({.at_least = bytes, .wanted = bytes});
    backend_->FailCreateAfter(-1);
    ASSERT_TRUE(GetRefusal(grown.status()).has_value()) << grown.status();
    ASSERT_EQ(GetRefusal(grown.status())->reason, RefusalReason::kBackend);
    ++counts_.backend;
  }

  void AskForNonsense(Owner& owner, const LedgerStep& step) {
    const Bytes bytes = step.wait ? Bytes() : step.bytes + Bytes(1 + step.share);
    ASSERT_TRUE(absl::IsInvalidArgument(owner.source->Grow({.at_least = bytes, .wanted = bytes}).status()));
  }

  void Return(Owner& owner, std::uint32_t share) {
    std::vector<ChunkId> ids;
    for (const LedgerModel::Piece& piece : model_.pieces) {
      if (piece.device == owner.device && piece.state == State::kGranted) ids.push_back(piece.chunk);
    }
    ids.resize((ids.size() * share + LedgerStep::kWhole - 1) / LedgerStep::kWhole);
    if (ids.empty()) return;
    const LedgerModel::Device& device = model_.devices.at(owner.device);
    const bool stays = stuck_[static_cast<std::size_t>(device.card)];
    for (const ChunkId chunk : ids) {
      const auto piece = std::find_if(model_.pieces.begin(), model_.pieces.end(),
                                      [&](const LedgerModel::Piece& it) { return it.chunk == chunk; });
      if (stays) {
        piece->state = State::kLeaving;
        ++counts_.unconfirmed;
      } else {
        model_.pieces.erase(piece);
      }
    }
    const absl::Status status = owner.source->Return(ids);
    ASSERT_TRUE(status.ok()) << status;
  }

  Counts& counts_;
  LedgerModel model_;
  std::unique_ptr<CountingBackend> backend_;
  std::unique_ptr<Broker> broker_;
  std::vector<CardId> card_ids_;
  std::vector<std::unique_ptr<Owner>> slots_;
  std::vector<bool> stuck_;  // by card: what is to be freed there is not
  bool may_stick_ = false;
};

TEST(BrokerSourcesPropertyTest, RandomSequencesKeepTheInvariantsAndRefuseNothingThatTheyAllow) {
  constexpr std::uint32_t kSeeds = 100;  // each is a broker with devices of its own
  constexpr int kSteps = 300;
  Counts counts;
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
  }
  std::printf(
      "seeds 1 to %u of %d steps: %zu granted, %zu short of the limit, %zu of the card, "
      "%zu backend failures, %zu preallocated, %zu unconfirmed\n",
      kSeeds, kSteps, counts.granted, counts.limit, counts.card, counts.backend, counts.preallocated,
      counts.unconfirmed);
  // A sequence that never comes to a case proves nothing about it.
  EXPECT_GT(counts.granted, 1000u);
  EXPECT_GT(counts.limit, 1000u);
  EXPECT_GT(counts.card, 100u);
  EXPECT_GT(counts.backend, 100u);
  EXPECT_GT(counts.preallocated, 50u);
  EXPECT_GT(counts.unconfirmed, 50u);
}

// One thread for each device, so that each knows what its device holds; the card is short of what all want.
TEST(BrokerSourcesPropertyTest, GuaranteedMemoryNeverFailsWhileOthersFightForTheCard) {
  constexpr std::uint32_t kSeed = 1;
  constexpr int kSteps = 1500;
  CountingBackend backend({64_MiB}, kUnit);
  const std::unique_ptr<Broker> broker = MakeBroker(backend);
  const CardId card = broker->Cards().front().id;
  const std::vector<Broker::DeviceSpec> specs = {
      {.card = card, .limit = 12_MiB, .preallocate = true, .lease = kLease},
      {.card = card, .limit = 32_MiB, .guarantee = 12_MiB, .lease = kLease},
      {.card = card, .limit = 40_MiB, .lease = kLease},
      {.card = card, .limit = 40_MiB, .guarantee = 6_MiB, .lease = kLease},
  };
  std::vector<std::unique_ptr<Owner>> owners;
  for (const Broker::DeviceSpec& spec : specs) {
    owners.push_back(MakeOwner(*broker, backend, *broker->AddDevice(spec), spec.limit, /*card=*/0));
  }
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random(kSeed + i);
      Owner& owner = *owners[i];
      const Bytes guarantee = specs[i].preallocate ? specs[i].limit : specs[i].guarantee;
      std::vector<ChunkId> held;
      for (int step = 0; step < kSteps; ++step) {
        const Bytes bytes = kUnit * (1 + random() % 4);
        const Bytes before = kUnit * held.size();
        if (random() % 5 < 3) {
          const auto grown = owner.source->Grow(
              {.at_least = bytes, .wanted = bytes + kUnit * (random() % 3), .timeout = kBriefly});
          EXPECT_TRUE(grown.ok() || before + bytes > guarantee) << "seed " << kSeed << grown.status();
          EXPECT_TRUE(grown.ok() || GetRefusal(grown.status()).has_value()) << grown.status();
          if (grown.ok()) {
            for (const Chunk& chunk : *grown) held.push_back(chunk.id);
          }
        } else {
          const std::size_t count = std::min<std::size_t>(held.size(), random() % 8);
          const std::vector<ChunkId> back(held.end() - static_cast<std::ptrdiff_t>(count), held.end());
          held.resize(held.size() - count);
          EXPECT_TRUE(owner.source->Return(back).ok());
        }
        EXPECT_EQ(broker->Held(owner.session), kUnit * held.size());
        EXPECT_LE(kUnit * held.size(), specs[i].limit);
        if (::testing::Test::HasFailure()) break;
      }
      owner.source.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(broker->CheckInvariants().ok()) << broker->CheckInvariants();
  EXPECT_EQ(backend.InUse(0), 12_MiB);
  for (const std::unique_ptr<Owner>& owner : owners) broker->RemoveDevice(owner->device);
  EXPECT_EQ(backend.Handles(), 0u);
}

}  // namespace
}  // namespace lgpu
