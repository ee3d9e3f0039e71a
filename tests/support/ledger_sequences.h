#ifndef LGPU_TESTS_SUPPORT_LEDGER_SEQUENCES_H_
#define LGPU_TESTS_SUPPORT_LEDGER_SEQUENCES_H_

#include <cstdint>
#include <ostream>
#include <random>

#include "lgpu/bytes.h"

namespace lgpu::testing {

/// One thing that happens to an owner of a Ledger. It names no ids: logical devices are slots, of which
/// some are taken, and where a step needs something that is not there (a slot that is free, nothing to give
/// back) the owner skips it.
struct LedgerStep {
  enum class Kind {
    kAdd,             // slot gets a logical device on `card` with `limit` and `guarantee`; skip if taken
    kRemove,          // slot's logical device goes, if the ledger lets it
    kResize,          // to `limit` and `guarantee`
    kRequest,         // `bytes`; with `wait` it waits where it is short of the card
    kRefund,          // `share` of the granted bytes
    kReturn,          // `share` of the granted bytes starts to leave
    kDie,             // all granted bytes start to leave, its waiters leave the queue
    kConfirm,         // `share` of the leaving bytes is confirmed free
    kAdopt,           // `bytes`, also where the card has no room
    kChargeOverhead,  // `bytes` on `card`
    kRefundOverhead,  // of the overhead of `card`, `share`
    kForeign,         // programs outside lgpu use `bytes` of `card`
    kGiveUp,          // the waiter at `share` of the queue of `card` leaves it
  };
  Kind kind = Kind::kRequest;
  int card = 0;
  int slot = 0;
  Bytes bytes;
  Bytes limit;
  Bytes guarantee;
  bool wait = false;
  std::uint32_t share = 0;  // of kWhole

  static constexpr std::uint32_t kWhole = 1000;
  /// `share` of `amount`, in whole units.
  Bytes Part(Bytes amount, Bytes unit) const {
    const std::uint64_t units = amount / unit;
    return unit * ((units * share + kWhole - 1) / kWhole);
  }
};

inline std::ostream& operator<<(std::ostream& out, const LedgerStep& step) {
  return out << "step of kind " << static_cast<int>(step.kind) << ", card " << step.card << ", slot "
             << step.slot << ", bytes " << step.bytes.count() << ", limit " << step.limit.count()
             << ", guarantee " << step.guarantee.count() << ", wait " << step.wait << ", share "
             << step.share;
}

struct LedgerSequenceOptions {
  std::uint32_t seed = 1;
  int cards = 2;
  int slots = 8;
  Bytes card_total = 64_MiB;
  Bytes granularity = 2_MiB;
  bool adopt = false;  // whether memory is adopted; it can bring a card over its total
};

/// A LedgerSequence is an endless random sequence of steps; the same options give the same steps.
class LedgerSequence {
 public:
  explicit LedgerSequence(const LedgerSequenceOptions& options) : options_(options), random_(options.seed) {}

  LedgerStep Next() {
    LedgerStep step;
    step.kind = NextKind();
    step.card = static_cast<int>(Below(static_cast<std::uint64_t>(options_.cards)));
    step.slot = static_cast<int>(Below(static_cast<std::uint64_t>(options_.slots)));
    step.wait = Below(2) == 0;
    step.share = static_cast<std::uint32_t>(Below(LedgerStep::kWhole + 1));
    const std::uint64_t total = options_.card_total.count();
    step.limit = Bytes(Below(16) == 0 ? Below(2 * total) : 1 + Below(total / 2));
    step.guarantee = Bytes(Below(2) == 0 ? 0 : Below(step.limit.count() / 2 + 2));
    step.bytes = Amount(step.kind);
    return step;
  }

 private:
  // Modulo, not a distribution of the standard library: the same sequence on every machine.
  std::uint64_t Below(std::uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }

  LedgerStep::Kind NextKind() {
    using Kind = LedgerStep::Kind;
    static constexpr struct {
      Kind kind;
      std::uint64_t weight;
    } kMix[] = {{Kind::kAdd, 6},
                {Kind::kRemove, 3},
                {Kind::kResize, 5},
                {Kind::kRequest, 36},
                {Kind::kRefund, 3},
                {Kind::kReturn, 14},
                {Kind::kDie, 2},
                {Kind::kConfirm, 16},
                {Kind::kForeign, 4},
                {Kind::kChargeOverhead, 3},
                {Kind::kRefundOverhead, 3},
                {Kind::kGiveUp, 4}};
    if (options_.adopt && Below(50) == 0) return Kind::kAdopt;
    std::uint64_t at = Below(99);
    for (const auto& entry : kMix) {
      if (at < entry.weight) return entry.kind;
      at -= entry.weight;
    }
    return Kind::kRequest;
  }

  Bytes Amount(LedgerStep::Kind kind) {
    const std::uint64_t units = options_.card_total / options_.granularity;
    switch (kind) {
      case LedgerStep::Kind::kForeign:
        return Bytes(Below(3) == 0 ? Below(options_.card_total.count()) : 0);
      case LedgerStep::Kind::kChargeOverhead:
        return Bytes(Below(options_.card_total.count() / 16));
      default:
        // Mostly small, now and then more than there can be.
        return options_.granularity * (1 + Below(Below(32) == 0 ? 2 * units : units / 4));
    }
  }

  const LedgerSequenceOptions options_;
  std::mt19937_64 random_;
};

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_SUPPORT_LEDGER_SEQUENCES_H_
