#include "daemon/server/turn_news.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/leases/users.h"

namespace lgpu::daemon {
namespace {

constexpr std::chrono::milliseconds kLookEvery{500};

}  // namespace

void TurnNews::Look() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLookEvery;
  for (const Broker::CardInfo& card : broker_.Cards()) {
    const auto running = std::find_if(card.queue.begin(), card.queue.end(),
                                      [](const Broker::Queued& request) { return request.turn_ends; });
    const auto before = told_.find(card.id);
    const bool same = before != told_.end() && running != card.queue.end() &&
                      running->id == before->second.id && running->turns == before->second.turns;
    if (same) continue;
    if (before != told_.end()) {
      const bool waits =
          std::any_of(card.queue.begin(), card.queue.end(),
                      [&before](const Broker::Queued& request) { return request.id == before->second.id; });
      Tell(before->second, card.card.index,
           waits ? "is over without enough memory; the request waits on" : "is over, and so is the request");
      told_.erase(before);
    }
    if (running != card.queue.end()) {
      Tell(*running, card.card.index, "has begun: free memory is held back for it (memory.max_drain)");
      told_.emplace(card.id, *running);
    }
  }
}

void TurnNews::Tell(const Broker::Queued& request, int card, const char* what) {
  v1::Event event;
  event.set_kind(v1::Event::KIND_TURN);
  event.set_lease_name(request.lease_name);
  event.set_pid(request.pid);
  event.set_text(absl::StrCat("turn ", request.turns + 1, " of the request for ", FormatBytes(request.asked),
                              " on GPU ", card, " ", what));
  // Turns of a user that the system does not know any more are shown to root alone.
  events_.Append(std::move(event), FindUser(request.owner).value_or(0));
}

}  // namespace lgpu::daemon
