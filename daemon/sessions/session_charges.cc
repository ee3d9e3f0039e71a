// Memory that a program takes from the driver itself, and charges.

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/allowance.h"
#include "allocator/broker/session_restore.h"
#include "daemon/sessions/session.h"
#include "lgpu/status.h"
#include "proto/mapped_region.h"
#include "proto/refusal_codec.h"

namespace lgpu::daemon {
namespace {

constexpr std::size_t kMaxWhatBytes = 64;
constexpr std::size_t kMaxTotals = 1024;

/// The words of a client page. They share the ownership of the mapping.
class PageAllowances final : public Allowances {
 public:
  explicit PageAllowances(SharedPage<SharedCharges> table) : table_(std::move(table)) {}
  std::atomic<std::uint64_t>& Free(std::size_t card) override { return table_->cards.at(card).free; }
  std::atomic<std::uint64_t>& Keep(std::size_t card) override { return table_->cards.at(card).keep; }

 private:
  const SharedPage<SharedCharges> table_;
};

std::string CleanWhat(const std::string& what) {
  std::string clean = what.substr(0, kMaxWhatBytes);
  std::replace_if(
      clean.begin(), clean.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return clean;
}

}  // namespace

bool Session::ShareAllowances() {
  if (shares_allowances_) return true;
  if (!state_->has_charge_words()) {
    Break(absl::InvalidArgumentError("a charge came in a version of the protocol that has none"));
    return false;
  }
  PlainResult<SharedPage<SharedCharges>> table = SharedPages::MapCharges(MapWithBoost, state_->client_page());
  // Without the words every charge needs a frame.
  services_.broker.ShareAllowances(
      peer_.id, table.ok() ? std::make_shared<PageAllowances>(*std::move(table)) : nullptr);
  shares_allowances_ = true;
  return true;
}

void Session::HandleCharge(const wire::Charge& request) {
  if (!IsNewRequest(request.request_id, "Charge") || !ShareAllowances()) return;
  Broker::Answer answer;
  if (waiting_.size() + outgoing_.size() >= kMaxOpenGrows) {
    answer.status = TooManyOpen();
  } else {
    answer = services_.broker.ChargeCard({.session = peer_.id,
                                          .card_uuid = request.card_uuid,
                                          .bytes = Bytes(request.bytes),
                                          .what = CleanWhat(request.what),
                                          .asked_at = turn_,
                                          .deadline = turn_ + GrowTimeout(request.timeout_ms),
                                          .driver_refusals = request.driver_refusals});
  }
  AnswerCharge(request.request_id, turn_, answer);
}

void Session::AnswerCharge(std::uint64_t request_id, Clock::time_point asked_at,
                           const Broker::Answer& answer) {
  if (answer.status.ok() && answer.wait) {
    waiting_.push_back({.request_id = request_id,
                        .device = {},
                        .grow = *answer.wait,
                        .asked_at = asked_at,
                        .is_charge = true});
    return;
  }
  // The program looks at the numbers of its devices next.
  services_.leases.WriteStats(*state_);
  wire::Charged charged{.request_id = request_id,
                        .code = static_cast<int>(answer.status.code()),
                        .message = std::string(answer.status.message()),
                        .refusal = {}};
  if (const std::optional<Refusal> refusal = GetRefusal(answer.status)) {
    charged.refusal = RefusalToWire(*refusal);
  }
  if (!answer.status.ok()) TellRefused(answer.status);
  Send({.body = std::move(charged)});
}

void Session::HandleUncharge(const wire::Uncharge& request) {
  const absl::Status status = services_.broker.Uncharge(peer_.id, request.card_uuid, Bytes(request.bytes));
  if (!status.ok()) {
    Break(status);
    return;
  }
  services_.leases.WriteStats(*state_);
}

void Session::HandleChargeAttest(const wire::ChargeAttest& attest) {
  absl::Status status;
  if (!state_->has_charge_words()) {
    status = absl::InvalidArgumentError("a ChargeAttest came in a version of the protocol that has none");
  } else if (attest.totals.size() > kMaxTotals) {
    status = absl::InvalidArgumentError(
        absl::StrCat("at most ", kMaxTotals, " totals go into a ChargeAttest, not ", attest.totals.size()));
  }
  std::map<std::string, Bytes> sums;
  for (const wire::ChargeAttest::Total& total : attest.totals) {
    Bytes& sum = sums[total.card_uuid];
    sum = SaturatingAdd(sum, Bytes(total.bytes));
  }
  for (const auto& [card, bytes] : sums) {
    status.Update(services_.broker.restore().AttestCharge(peer_.id, card, bytes));
  }
  if (!status.ok()) Break(status);
}

bool Session::KeepsCharges() const {
  const std::vector<Broker::Charged> charges = services_.broker.ChargesOf(peer_.id);
  const bool charges_some = std::any_of(charges.begin(), charges.end(),
                                        [](const Broker::Charged& charge) { return !charge.lent.is_zero(); });
  const Process& process = state_->process();
  if (!charges_some || process.IsGone()) return false;
  const std::optional<std::set<std::uint64_t>> mapped = MappedFiles(process.pid, kClientPageFile);
  return !mapped || MapsOneOf(state_->pages(), *mapped);
}

}  // namespace lgpu::daemon
