// The orders of a LeaseSuspender, as the sessions of runners see them.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "allocator/broker/lease_suspensions.h"
#include "daemon/leases/lease_suspender.h"

namespace lgpu::daemon {
namespace {

absl::Status RunnerEnded(const wire::Suspend& order) {
  if (order.processes.empty()) return absl::FailedPreconditionError("the program ended during the move");
  std::vector<std::int64_t> pids;
  for (const wire::ProcessName& process : order.processes) pids.push_back(process.pid);
  return absl::FailedPreconditionError(
      absl::StrCat("the `lgpu run` or `lgpu exec` of process ", absl::StrJoin(pids, ", "),
                   " ended during the move; its guard process moves them back to their GPUs\n",
                   "try: if they do not go on, kill -9 ", absl::StrJoin(pids, " ")));
}

}  // namespace

std::vector<wire::Suspend> LeaseSuspender::TakeOrders(SessionId runner) {
  std::vector<wire::Suspend> frames;
  MutexLock lock(mutex_);
  for (auto& [id, order] : orders_) {
    if (order.runner != runner || std::exchange(order.is_sent, true)) continue;
    frames.push_back(order.frame);
  }
  return frames;
}

void LeaseSuspender::Answer(SessionId runner, std::uint64_t id, const absl::Status& status,
                            const std::set<std::int64_t>& left, const std::map<LogicalId, Bytes>& needs) {
  std::optional<LeaseKey> over;
  bool is_last = false;
  bool is_to_itself = false;
  {
    MutexLock lock(mutex_);
    const auto found = orders_.find(id);
    if (found == orders_.end() || found->second.runner != runner) return;  // its time was over
    over = found->second.nobody_waits;
    is_to_itself = found->second.is_to_itself;
    found->second.answer = status;
    found->second.left = left;
    found->second.needs = needs;
    if (over) orders_.erase(found);
    is_last = over && !HasOpenOrder(*over) && late_.erase(*over) > 0;
    answered_.NotifyAll();
  }
  if (!over) return;
  if (status.ok() || is_to_itself) {  // a program that moves itself has its contents in any case
    if (is_last) broker_.suspensions().End(*over);
    return;
  }
  leases_.FailSuspension(*over, std::string(status.message()), left);
  leases_.TellOf(*over, [&](const LeaseEvents& events, const Lease& lease) {
    events.Suspended(lease, absl::StrCat("cannot be resumed: ", std::string(status.message())));
  });
}

void LeaseSuspender::RunnerBack(const SessionState& runner) {
  const auto suspension = broker_.suspensions().Find(runner.lease());
  if (suspension && suspension->is_parked) return;
  const bool is_to_itself = runner.identity().suspends_itself;
  if (!is_to_itself) leases_.NoteResumed(runner.lease());
  {
    MutexLock lock(mutex_);
    Order order;
    order.is_to_itself = is_to_itself;
    order.frame.resume = true;
    order.frame.limit_ms =
        static_cast<std::uint64_t>(std::chrono::milliseconds(std::chrono::minutes(10)).count());
    order.nobody_waits = runner.lease();
    Queue(runner.id(), std::move(order));
  }
  WakeRunner(runner.id());
}

void LeaseSuspender::EndEmpty() {
  for (const LeaseKey key : leases_.EmptySuspensions()) {
    {
      MutexLock lock(mutex_);
      if (!resuming_.insert(key).second) continue;
    }
    if (leases_.TakeBack(key, {}).ok()) {
      broker_.suspensions().End(key);
      leases_.TellOf(key, [](const LeaseEvents& events, const Lease& lease) {
        events.Suspended(lease, "is not suspended any more: its suspended programs have ended");
      });
    }
    MutexLock lock(mutex_);
    resuming_.erase(key);
  }
}

bool LeaseSuspender::HasOpenOrder(LeaseKey lease) const {
  return std::any_of(orders_.begin(), orders_.end(),
                     [lease](const auto& entry) { return entry.second.nobody_waits == lease; });
}

void LeaseSuspender::EndWhenAnswered(LeaseKey lease) {
  {
    MutexLock lock(mutex_);
    if (HasOpenOrder(lease)) {
      late_.insert(lease);
      return;
    }
  }
  broker_.suspensions().End(lease);  // the answer has come just now
}

void LeaseSuspender::RunnerGone(SessionId runner) {
  std::vector<LeaseKey> over;
  {
    MutexLock lock(mutex_);
    std::erase_if(orders_, [runner](const auto& entry) {
      return entry.second.runner == runner && entry.second.nobody_waits;
    });
    for (auto& [id, order] : orders_) {
      if (order.runner != runner || order.answer) continue;
      order.answer = RunnerEnded(order.frame);
      order.is_gone = true;
    }
    for (const LeaseKey lease : late_) {
      if (!HasOpenOrder(lease)) over.push_back(lease);
    }
    for (const LeaseKey lease : over) late_.erase(lease);
    answered_.NotifyAll();
  }
  for (const LeaseKey lease : over) broker_.suspensions().End(lease);
}

}  // namespace lgpu::daemon
