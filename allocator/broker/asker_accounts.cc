#include "allocator/broker/asker_accounts.h"

#include <algorithm>
#include <iterator>

namespace lgpu {

void AskerAccounts::Begin(WaiterId id, const Waiter& waiter) {
  const auto [entry, is_new] = accounts_.try_emplace(id);
  if (is_new) entry->second = {.payer = PayerOf(waiter), .began = tables_.now()};
  entry->second.ended.reset();
}

void AskerAccounts::End(WaiterId id) {
  if (const auto found = accounts_.find(id); found != accounts_.end()) found->second.ended = tables_.now();
}

void AskerAccounts::Forgive(WaiterId id) {
  if (const auto found = accounts_.find(id); found != accounts_.end()) found->second.is_forgiven = true;
}

void AskerAccounts::Settle() {
  const Broker::TimePoint now = tables_.now();
  std::erase_if(pays_until_, [now](const auto& entry) { return entry.second <= now; });
  for (auto entry = accounts_.begin(); entry != accounts_.end();) {
    const auto next = std::next(entry);
    if (!WaitsForCard(entry->first)) {
      const Account& account = entry->second;
      const Broker::TimePoint::duration lasted = account.ended.value_or(now) - account.began;
      waited_ += lasted;
      if (!account.is_forgiven && WasGivenUp(entry->first)) {
        Broker::TimePoint& until = pays_until_[account.payer];
        until = std::max(until, now + std::max<Broker::TimePoint::duration>(lasted, kLeastPaid));
      }
      accounts_.erase(entry);
    }
    entry = next;
  }
}

bool AskerAccounts::MayAsk(const Waiter& waiter) const {
  const auto pays = pays_until_.find(PayerOf(waiter));
  return pays == pays_until_.end() || pays->second <= tables_.now();
}

AskerAccounts::Payer AskerAccounts::PayerOf(const Waiter& waiter) const {
  if (!waiter.user.empty() || !waiter.spec.session) return {.user = waiter.user, .lease = {}};
  return {.user = "", .lease = tables_.sessions.at(waiter.spec.session).lease};
}

bool AskerAccounts::WaitsForCard(WaiterId id) const {
  const auto found = waiting_.waiters.find(id);
  return found != waiting_.waiters.end() && found->second.phase == Waiter::Phase::kCard;
}

bool AskerAccounts::WasGivenUp(WaiterId id) const {
  const auto found = waiting_.waiters.find(id);
  if (found == waiting_.waiters.end()) return true;  // with its program
  // Cancelled, or its lease has ended; lgpud's own refusals are of another kind.
  const Waiter& waiter = found->second;
  return waiter.phase == Waiter::Phase::kRefused && !absl::IsResourceExhausted(waiter.refusal);
}

}  // namespace lgpu
