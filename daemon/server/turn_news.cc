#include "daemon/server/turn_news.h"

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
  std::map<Key, Told> waiting;
  for (const Broker::CardInfo& card : broker_.Cards()) {
    for (const Broker::Queued& request : card.queue) {
      const Key key(card.id, request.id);
      const bool is_new = !told_.contains(key);
      if (is_new && !request.turn_ends) continue;
      const Told told{.request = request, .card = card.card.index};
      if (is_new) {
        Tell(told, absl::StrCat("turn ", request.turns + 1, " of the request for "),
             " has begun: free memory is held back for it (memory.max_drain)");
      }
      waiting.emplace(key, told);
    }
  }
  for (const auto& [key, told] : told_) {
    if (!waiting.contains(key)) {
      Tell(told, "the request for ", absl::StrCat(" waits no longer, after ", told.request.turns, " turns"));
    }
  }
  told_ = std::move(waiting);
}

void TurnNews::Tell(const Told& told, const std::string& before, const std::string& behind) {
  v1::Event event;
  event.set_kind(v1::Event::KIND_TURN);
  event.set_lease_name(told.request.lease_name);
  event.set_pid(told.request.pid);
  event.set_text(absl::StrCat(before, FormatBytes(told.request.asked), " on GPU ", told.card, behind));
  // Turns of a user that the system does not know any more are shown to root alone.
  events_.Append(std::move(event), FindUser(told.request.owner).value_or(0));
}

}  // namespace lgpu::daemon
