#include "allocator/broker/waiting_requests.h"

#include <cstddef>

#include "absl/strings/str_cat.h"

namespace lgpu {

void WaitingRequests::AddQueues() {
  for (const auto& [id, card] : tables.cards) queues.emplace(id, CardQueue(max_drain));
}

absl::Status WaitingRequests::CheckInvariants() const {
  std::size_t queued = 0;
  for (const auto& [id, waiter] : waiters) {
    const bool in_queue = queues.at(waiter.card).Contains(id);
    queued += in_queue ? 1 : 0;
    const auto aside = set_aside.find(id);
    if (!waiter.aside.is_zero() && (!in_queue || aside == set_aside.end() ||
                                    tables.ledger.View(aside->second).guarantee != waiter.aside)) {
      return absl::InternalError(absl::StrCat("request ", id.value, " has ", waiter.aside.count(),
                                              " bytes set aside, the ledger has not"));
    }
    if (in_queue != (waiter.phase == Waiter::Phase::kCard)) {
      return absl::InternalError(absl::StrCat("request ", id.value, in_queue ? " stands" : " does not stand",
                                              " in its card's queue, against its phase"));
    }
  }
  std::size_t in_queues = 0;
  for (const auto& [card, queue] : queues) in_queues += queue.size();
  if (in_queues != queued) {
    return absl::InternalError(absl::StrCat(in_queues, " requests stand in queues, ", queued, " wait there"));
  }
  return absl::OkStatus();
}

}  // namespace lgpu
