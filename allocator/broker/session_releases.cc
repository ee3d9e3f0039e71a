#include "allocator/broker/session_releases.h"

#include "allocator/broker/broker_core.h"

namespace lgpu {

std::vector<ReleaseOrder> SessionReleases::TakeOrders(SessionId session) {
  BrokerLock lock(core_);
  return core_.giving_way.TakeOrders(session);
}

absl::Status SessionReleases::Answer(SessionId session, ReleaseId id, ReleaseOutcome outcome) {
  BrokerLock lock(core_);
  const absl::StatusOr<std::optional<CardId>> card = core_.giving_way.Answer(session, id, outcome);
  if (card.ok() && *card) core_.scheduler.Serve(**card);
  return card.status();
}

std::optional<Broker::TimePoint> SessionReleases::LongerWait(WaiterId request) const {
  BrokerLock lock(core_);
  const auto found = core_.waiting.waiters.find(request);
  if (found == core_.waiting.waiters.end() || !found->second.own_deadline) return std::nullopt;
  return found->second.spec.deadline;
}

std::vector<GivingWayView> SessionReleases::Views() const {
  BrokerLock lock(core_);
  return core_.giving_way.Views();
}

GivingWayCounters SessionReleases::counters() const {
  BrokerLock lock(core_);
  return core_.giving_way.counters();
}

std::vector<GivingWayNews> SessionReleases::TakeNews() {
  BrokerLock lock(core_);
  return core_.giving_way.TakeNews();
}

}  // namespace lgpu
