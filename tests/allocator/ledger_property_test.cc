// Random sequences against a model that keeps no sums: it has a list of single granules, each with its
// owner, and answers every question by counting them. The invariants alone decide what may be granted: the
// tests find both a grant that they forbid and a refusal that they do not demand.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "allocator/ledger.h"
#include "tests/support/ledger_sequences.h"

namespace lgpu {
namespace {

using testing::LedgerSequence;
using testing::LedgerSequenceOptions;
using testing::LedgerStep;

constexpr Bytes kUnit = 2_MiB;

struct Model {
  struct Granule {
    LogicalId owner;
    bool leaving;
  };
  struct Device {
    LogicalId id;
    CardId card;
    Bytes limit, guarantee;
  };
  struct Card {
    CardId id;
    Bytes total, reserve, overhead, foreign;
  };

  std::vector<Card> cards;
  std::vector<Device> devices;
  std::vector<Granule> granules;

  Card& At(CardId id) {
    return *std::find_if(cards.begin(), cards.end(), [&](const Card& card) { return card.id == id; });
  }
  Device& At(LogicalId id) {
    return *std::find_if(devices.begin(), devices.end(),
                         [&](const Device& device) { return device.id == id; });
  }
  Bytes Count(LogicalId owner, bool leaving) const {
    return kUnit * static_cast<std::uint64_t>(
                       std::count_if(granules.begin(), granules.end(), [&](const Granule& granule) {
                         return granule.owner == owner && granule.leaving == leaving;
                       }));
  }
  Bytes Held(LogicalId owner) const { return Count(owner, false) + Count(owner, true); }
  Bytes Promised(CardId id) {
    const Card& card = At(id);
    Bytes sum = card.overhead + card.reserve;
    for (const Device& device : devices) {
      if (device.card == id) sum += std::max(RoundUp(device.guarantee, kUnit), Held(device.id));
    }
    return sum;
  }
  void Grant(LogicalId logical, Bytes bytes) {
    for (std::uint64_t i = 0; i < bytes / kUnit; ++i) granules.push_back({logical, false});
  }
  // Takes up to `bytes` of the owner's granules in a state out, or to the state "leaving".
  void Take(LogicalId owner, bool leaving, Bytes bytes, bool to_leaving) {
    std::uint64_t left = bytes / kUnit;
    for (Granule& granule : granules) {
      if (left == 0 || granule.owner != owner || granule.leaving != leaving) continue;
      granule = to_leaving ? Granule{owner, true} : Granule{};
      --left;
    }
    granules.erase(
        std::remove_if(granules.begin(), granules.end(), [](const Granule& g) { return !g.owner; }),
        granules.end());
  }

  bool InLimit(LogicalId id, Bytes more) { return Held(id) + more <= RoundUp(At(id).limit, kUnit); }
  bool InGuarantee(LogicalId id, Bytes more) { return Held(id) + more <= RoundUp(At(id).guarantee, kUnit); }
  // Grants on trial: does the card bear it?
  bool InCard(LogicalId id, Bytes more) {
    Model trial = *this;
    trial.Grant(id, more);
    const CardId card = At(id).card;
    return InGuarantee(id, more) || trial.Promised(card) + At(card).foreign <= At(card).total;
  }
};

class Runner {
 public:
  explicit Runner(const LedgerSequenceOptions& options)
      : options_(options), slots_(static_cast<std::size_t>(options.slots)) {
    for (int i = 0; i < options.cards; ++i) {
      // Neither total nor reserve is a multiple of the granularity.
      const Bytes total = options.card_total + Bytes(4711u * static_cast<unsigned>(i));
      const Bytes reserve = Bytes(123457u * static_cast<unsigned>(i));
      const auto card = ledger_.AddCard({.total = total, .reserve = reserve, .granularity = kUnit});
      model_.cards.push_back({*card, total, reserve, Bytes(), Bytes()});
    }
  }

  void Apply(const LedgerStep& step) {
    using Kind = LedgerStep::Kind;
    const std::optional<LogicalId> logical = slots_[static_cast<std::size_t>(step.slot)];
    const CardId card = model_.cards[static_cast<std::size_t>(step.card)].id;
    switch (step.kind) {
      case Kind::kAdd:
        return Add(step, card);
      case Kind::kChargeOverhead:
        return ChargeOverhead(card, step.bytes);
      case Kind::kRefundOverhead:
        return RefundOverhead(card, step.Part(model_.At(card).overhead, 1_B));
      case Kind::kForeign:
        ledger_.SetForeign(card, step.bytes);
        model_.At(card).foreign = step.bytes;
        return;
      case Kind::kGiveUp:
        return;
      default:
        if (logical) ApplyTo(*logical, step);
    }
  }

  void Check() {
    const absl::Status status = ledger_.CheckInvariants();
    ASSERT_TRUE(status.ok()) << status;
    for (const Model::Device& device : model_.devices) {
      const Ledger::LogicalView view = ledger_.View(device.id);
      ASSERT_EQ(view.granted, model_.Count(device.id, false));
      ASSERT_EQ(view.leaving, model_.Count(device.id, true));
      ASSERT_EQ(view.limit, device.limit);
      ASSERT_EQ(view.guarantee, RoundUp(device.guarantee, kUnit));
    }
    for (const Model::Card& card : model_.cards) {
      const Ledger::CardView view = ledger_.View(card.id);
      ASSERT_EQ(view.promised, model_.Promised(card.id));
      ASSERT_EQ(view.overcommitted(), model_.Promised(card.id) + card.foreign > card.total);
      ASSERT_TRUE(options_.adopt || view.promised <= view.total);
    }
  }

  // Everything goes back; every card must be as at the start.
  void Drain() {
    for (auto& slot : slots_) {
      if (!slot) continue;
      Die(*slot);
      Confirm(*slot, model_.Count(*slot, true));
      ASSERT_TRUE(ledger_.RemoveLogical(*slot).ok());
      Forget(*slot);
      slot.reset();
    }
    for (const Model::Card& card : model_.cards) {
      RefundOverhead(card.id, card.overhead);
      ledger_.SetForeign(card.id, Bytes());
      const Ledger::CardView view = ledger_.View(card.id);
      EXPECT_EQ(view.held, Bytes());
      EXPECT_EQ(view.promised, card.reserve);
      EXPECT_EQ(view.free(), card.total - card.reserve);
      EXPECT_TRUE(ledger_.LogicalsOf(card.id).empty());
    }
    EXPECT_TRUE(ledger_.CheckInvariants().ok());
  }

  std::size_t granted() const { return granted_; }
  std::size_t short_of_limit() const { return short_of_limit_; }
  std::size_t short_of_card() const { return short_of_card_; }

 private:
  void ApplyTo(LogicalId logical, const LedgerStep& step) {
    using Kind = LedgerStep::Kind;
    switch (step.kind) {
      case Kind::kRemove:
        return Remove(logical, step.slot);
      case Kind::kResize:
        return Resize(logical, {.limit = step.limit, .guarantee = step.guarantee});
      case Kind::kRequest:
        return Request(logical, step);
      case Kind::kRefund: {
        const Bytes part = step.Part(model_.Count(logical, false), kUnit);
        ledger_.Refund(logical, part);
        model_.Take(logical, false, part, false);
        return;
      }
      case Kind::kReturn: {
        const Bytes part = step.Part(model_.Count(logical, false), kUnit);
        ledger_.StartLeaving(logical, part);
        return model_.Take(logical, false, part, true);
      }
      case Kind::kDie:
        return Die(logical);
      case Kind::kConfirm:
        return Confirm(logical, step.Part(model_.Count(logical, true), kUnit));
      case Kind::kAdopt:
        ledger_.Adopt(logical, step.bytes);
        model_.Grant(logical, step.bytes);
        return;
      default:
        FAIL() << "not a step of a logical device: " << step;
    }
  }

  // The answer of AddLogical and Resize for these options; `promised`: all promises with the new ones.
  absl::StatusCode Expected(const Model::Card& card, const Ledger::LogicalOptions& options, Bytes promised,
                            bool more) {
    const Bytes most = card.total - card.reserve;
    if (options.limit.is_zero() || options.guarantee > options.limit || options.limit > most ||
        RoundUp(options.guarantee, kUnit) > most) {
      return absl::StatusCode::kInvalidArgument;
    }
    return more && promised + card.foreign > card.total ? absl::StatusCode::kResourceExhausted
                                                        : absl::StatusCode::kOk;
  }

  void Add(const LedgerStep& step, CardId card) {
    std::optional<LogicalId>& slot = slots_[static_cast<std::size_t>(step.slot)];
    if (slot) return;
    const Ledger::LogicalOptions options{.limit = step.limit, .guarantee = step.guarantee};
    const absl::StatusOr<LogicalId> added = ledger_.AddLogical(card, options);
    const Bytes set_aside = RoundUp(step.guarantee, kUnit);
    ASSERT_EQ(added.status().code(),
              Expected(model_.At(card), options, model_.Promised(card) + set_aside, !set_aside.is_zero()))
        << added.status();
    if (!added.ok()) return;
    slot = *added;
    model_.devices.push_back({*added, card, step.limit, step.guarantee});
  }

  void Remove(LogicalId logical, int slot) {
    const bool busy = !model_.Held(logical).is_zero();
    const absl::Status status = ledger_.RemoveLogical(logical);
    ASSERT_EQ(status.code(), busy ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kOk) << status;
    if (busy) return;
    Forget(logical);
    slots_[static_cast<std::size_t>(slot)].reset();
  }

  void Forget(LogicalId logical) {
    model_.devices.erase(std::find_if(model_.devices.begin(), model_.devices.end(),
                                      [&](const Model::Device& device) { return device.id == logical; }));
  }

  void Resize(LogicalId logical, const Ledger::LogicalOptions& options) {
    Model trial = model_;
    trial.At(logical).limit = options.limit;
    trial.At(logical).guarantee = options.guarantee;
    const CardId card = model_.At(logical).card;
    const Bytes promised = trial.Promised(card);
    const absl::Status status = ledger_.Resize(logical, options);
    ASSERT_EQ(status.code(), Expected(model_.At(card), options, promised, promised > model_.Promised(card)))
        << status;
    if (!status.ok()) return;
    model_ = trial;
  }

  void Request(LogicalId logical, const LedgerStep& step) {
    const Bytes bytes = step.bytes;
    const Ledger::Verdict checked = ledger_.Check(logical, bytes);
    const Ledger::Verdict verdict = ledger_.Request(logical, bytes);
    if (model_.InGuarantee(logical, bytes)) {
      ASSERT_EQ(verdict.shortage, Ledger::Shortage::kNone) << "refused inside its guarantee";
    }
    Ledger::Shortage expected = Ledger::Shortage::kNone;
    if (!model_.InLimit(logical, bytes)) {
      expected = Ledger::Shortage::kLimit;
    } else if (!model_.InCard(logical, bytes)) {
      expected = Ledger::Shortage::kCard;
    }
    ASSERT_EQ(verdict.shortage, expected);
    ASSERT_EQ(checked.shortage, expected);
    if (expected == Ledger::Shortage::kNone) {
      ++granted_;
      model_.Grant(logical, bytes);
      return;
    }
    (expected == Ledger::Shortage::kLimit ? short_of_limit_ : short_of_card_)++;
    CheckVerdict(logical, bytes, verdict);
  }

  void CheckVerdict(LogicalId logical, Bytes bytes, const Ledger::Verdict& verdict) {
    const CardId card = model_.At(logical).card;
    Model now = model_, later = model_, best = model_;
    for (const Model::Device& device : model_.devices) {
      if (device.card == card) later.Take(device.id, true, later.Held(device.id), false);
      if (device.card != card || device.id == logical) continue;
      const Bytes beyond = SaturatingSub(model_.Held(device.id), RoundUp(device.guarantee, kUnit));
      const Bytes leaving = std::min(beyond, model_.Count(device.id, true));
      best.Take(device.id, true, leaving, false);
      best.Take(device.id, false, beyond - leaving, false);
    }
    best.Take(logical, true, best.Held(logical), false);
    best.At(card).foreign = Bytes();
    if (verdict.shortage == Ledger::Shortage::kLimit) {
      ASSERT_EQ(verdict.short_by, model_.Held(logical) + bytes - RoundUp(model_.At(logical).limit, kUnit));
      ASSERT_EQ(verdict.coming_back, model_.Count(logical, true));
      ASSERT_EQ(verdict.hopeless, !best.InLimit(logical, bytes));
      return;
    }
    now.Grant(logical, bytes);
    later.Grant(logical, bytes);
    ASSERT_EQ(verdict.coming_back, now.Promised(card) - later.Promised(card));
    ASSERT_EQ(verdict.hopeless, !best.InCard(logical, bytes));
    const Bytes over = SaturatingSub(now.Promised(card) + model_.At(card).foreign, model_.At(card).total);
    ASSERT_EQ(verdict.short_by, over);
    ASSERT_EQ(ledger_.NeedOf(logical, bytes), now.Promised(card) - model_.Promised(card));
  }

  void Confirm(LogicalId logical, Bytes bytes) {
    ledger_.ConfirmFree(logical, bytes);
    model_.Take(logical, true, bytes, false);
  }

  void Die(LogicalId logical) {
    const Bytes granted = model_.Count(logical, false);
    ledger_.StartLeaving(logical, granted);
    model_.Take(logical, false, granted, true);
  }

  void ChargeOverhead(CardId card, Bytes bytes) {
    const bool fits =
        bytes <= SaturatingSub(model_.At(card).total, model_.Promised(card) + model_.At(card).foreign);
    const absl::Status status = ledger_.ChargeOverhead(card, bytes);
    ASSERT_EQ(status.code(), fits ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted) << status;
    if (fits) model_.At(card).overhead += bytes;
  }

  void RefundOverhead(CardId card, Bytes bytes) {
    ledger_.RefundOverhead(card, bytes);
    model_.At(card).overhead -= bytes;
  }

  const LedgerSequenceOptions options_;
  Ledger ledger_;
  Model model_;
  std::vector<std::optional<LogicalId>> slots_;
  std::size_t granted_ = 0, short_of_limit_ = 0, short_of_card_ = 0;
};

class LedgerPropertyTest : public ::testing::TestWithParam<bool> {};

TEST_P(LedgerPropertyTest, RandomSequencesKeepTheInvariantsAndRefuseNothingThatTheyAllow) {
  constexpr int kSeeds = 10;
  constexpr int kSteps = 12000;
  std::size_t granted = 0, limit = 0, card = 0;
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    const LedgerSequenceOptions options{.seed = seed,
                                        .cards = 1 + static_cast<int>(seed % 2),
                                        .slots = 4 + static_cast<int>(seed % 5),
                                        .card_total = 40_MiB + 7_MiB * seed,
                                        .granularity = kUnit,
                                        .adopt = GetParam()};
    LedgerSequence sequence(options);
    Runner runner(options);
    for (int i = 0; i < kSteps; ++i) {
      const LedgerStep step = sequence.Next();
      runner.Apply(step);
      runner.Check();
      ASSERT_FALSE(HasFailure()) << "seed " << seed << ", step " << i << ": " << step;
    }
    runner.Drain();
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ", after everything went back";
    granted += runner.granted();
    limit += runner.short_of_limit();
    card += runner.short_of_card();
  }
  // A sequence that never comes to a case proves nothing about it.
  EXPECT_GT(granted, 1000u);
  EXPECT_GT(limit, 1000u);
  EXPECT_GT(card, 1000u);
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutAdoption, LedgerPropertyTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "Adopting" : "Plain"; });

}  // namespace
}  // namespace lgpu
