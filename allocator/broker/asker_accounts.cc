#include "allocator/broker/asker_accounts.h"

#include <iterator>

namespace lgpu {

void AskerAccounts::Begin(WaiterId id) {
  accounts_.try_emplace(id, Account{.began = tables_.now()}).first->second.ended.reset();
}

void AskerAccounts::End(WaiterId id) {
  if (const auto found = accounts_.find(id); found != accounts_.end()) found->second.ended = tables_.now();
}

void AskerAccounts::Settle() {
  for (auto entry = accounts_.begin(); entry != accounts_.end();) {
    const auto next = std::next(entry);
    const auto waiter = waiting_.waiters.find(entry->first);
    if (waiter == waiting_.waiters.end() || waiter->second.phase != Waiter::Phase::kCard) {
      waited_ += entry->second.ended.value_or(tables_.now()) - entry->second.began;
      accounts_.erase(entry);
    }
    entry = next;
  }
}

}  // namespace lgpu
