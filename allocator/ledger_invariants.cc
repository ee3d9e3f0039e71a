#include <string>
#include <utility>

#include "allocator/ledger.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

// Bytes, not rounded for people: a broken invariant is off by any amount.
std::string CountText(Bytes amount) { return std::to_string(amount.count()); }

// A Claim checks invariants of one subject and keeps the first that does not hold.
class Claim {
 public:
  explicit Claim(std::string subject) : subject_(std::move(subject)) {}

  void AtMost(const char* left_name, Bytes left, const char* right_name, Bytes right) {
    if (left > right) {
      Fail(std::string(left_name) + " " + CountText(left) + " > " + right_name + " " + CountText(right));
    }
  }
  void Equal(const char* name, Bytes kept, Bytes counted) {
    if (kept != counted) {
      Fail(std::string(name) + ": kept " + CountText(kept) + ", counted " + CountText(counted));
    }
  }
  void Equal(const char* name, std::size_t kept, std::size_t counted) {
    Equal(name, Bytes(kept), Bytes(counted));
  }
  void Holds(bool condition, const char* what) {
    if (!condition) Fail(what);
  }
  absl::Status status() const { return status_; }

 private:
  void Fail(const std::string& what) {
    if (status_.ok()) status_ = absl::InternalError(subject_ + ": " + what);
  }

  std::string subject_;
  absl::Status status_;
};

}  // namespace

absl::Status Ledger::CheckLogical(LogicalId id, const Logical& logical) const {
  Claim claim("logical " + std::to_string(id.value));
  const auto found = cards_.find(logical.card);
  if (found == cards_.end()) {
    return absl::InternalError("logical " + std::to_string(id.value) + " is on no card");
  }
  const Card& card = found->second;
  const Bytes unit = card.options.granularity;
  claim.Holds(card.logicals.count(id) == 1, "its card does not list it");
  claim.Holds(RoundDown(logical.granted, unit) == logical.granted,
              "granted is no multiple of the granularity");
  claim.Holds(RoundDown(logical.leaving, unit) == logical.leaving,
              "leaving is no multiple of the granularity");
  claim.Holds(RoundDown(logical.guarantee, unit) == logical.guarantee,
              "guarantee is no multiple of the granularity");
  claim.AtMost("guarantee", logical.guarantee, "limit", LimitOf(card, logical));
  claim.AtMost("held", logical.held(), "limit, or what it held before,",
               std::max(LimitOf(card, logical), logical.ceiling));
  return claim.status();
}

absl::Status Ledger::CheckCard(CardId id, const Card& card) const {
  Claim claim("card " + std::to_string(id.value));
  Card counted;
  std::size_t on_card = 0;
  for (const auto& [logical_id, logical] : logicals_) {
    if (logical.card != id) continue;
    ++on_card;
    counted.held += logical.granted + logical.leaving;
    counted.guaranteed += logical.guarantee;
    counted.promised += std::max(logical.guarantee, logical.granted + logical.leaving);
    counted.coming_back +=
        SaturatingSub(logical.granted + logical.leaving, std::max(logical.guarantee, logical.granted));
  }
  claim.Equal("logical devices", card.logicals.size(), on_card);
  claim.Equal("held", card.held, counted.held);
  claim.Equal("guarantees", card.guaranteed, counted.guaranteed);
  claim.Equal("promised", card.promised, counted.promised);
  claim.Equal("coming back", card.coming_back, counted.coming_back);
  claim.AtMost("promised", counted.promised + card.overhead + card.options.reserve,
               "total, or what was adopted,", std::max(card.options.total, card.adopted_ceiling));
  return claim.status();
}

absl::Status Ledger::CheckInvariants() const {
  for (const auto& [id, logical] : logicals_) LGPU_RETURN_IF_ERROR(CheckLogical(id, logical));
  for (const auto& [id, card] : cards_) LGPU_RETURN_IF_ERROR(CheckCard(id, card));
  return absl::OkStatus();
}

}  // namespace lgpu
