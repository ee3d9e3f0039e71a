#include "daemon/leases/waiting_lease.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/reservations.h"
#include "base/refusal_text.h"
#include "daemon/leases/users.h"

namespace lgpu::daemon {
namespace {

// How often a lease is tried that stands in no queue, or could be made on other cards too.
constexpr std::chrono::milliseconds kTryEvery{500};
// How often a lease that stands in a queue is told its place.
constexpr std::chrono::seconds kTextEvery{1};

}  // namespace

std::optional<absl::StatusOr<v1::Lease>> WaitingLease::Try() {
  const bool is_late = Clock::now() >= deadline_;
  const bool has_room = HasRoom();
  // In the queue another card is tried with a plan of its own, which leaves the place alone.
  LeaseAttempt elsewhere;
  LeaseAttempt& attempt = attempt_.room && !has_room ? elsewhere : attempt_;
  attempt.short_of.reset();
  absl::StatusOr<v1::Lease> lease = leases_.Create(caller_, request_, Clock::now(), attempt);
  made_new_ = lease.ok() && attempt.is_new;
  if (lease.ok() || is_late || !absl::IsResourceExhausted(lease.status())) {
    LeaveQueue(lease.ok());
    return lease;
  }
  last_ = lease.status();
  next_try_ = Clock::now() + kTryEvery;
  if (has_room) rests_until_ = next_try_;
  if (&attempt == &elsewhere) return std::nullopt;
  LeaveQueue();
  if (attempt_.short_of && !attempt_.short_of->bytes.is_zero()) {
    attempt_.room = broker_.reservations().Queue(
        {.card = attempt_.short_of->card,
         .bytes = attempt_.short_of->bytes,
         .lease_name = request_.name(),
         .owner = UserName(request_.has_management() ? request_.owner_uid() : caller_.uid),
         .pid = caller_.session == nullptr ? 0 : caller_.session->process().pid,
         .waker = waker_,
         .preemptible = FromProto(request_.preemptible())});
  }
  return std::nullopt;
}

WaitingLease::News WaitingLease::Look() {
  const Clock::time_point now = Clock::now();
  News news;
  v1::LeaseWait wait;
  if (attempt_.room) {
    news.try_now = (HasRoom() && now >= rests_until_) || now >= deadline_;
    const std::optional<Reservations::Place> view =
        now < next_text_ ? std::nullopt : broker_.reservations().View(attempt_.room);
    if (!view) return news;
    next_text_ = now + kTextEvery;
    wait.set_place(static_cast<std::uint32_t>(view->place));
    wait.set_waiting(static_cast<std::uint32_t>(view->waiting));
    wait.set_text(view->text);
    // Another card may have room meanwhile.
    news.try_now = news.try_now || (now >= next_try_ && broker_.Cards().size() > 1);
  } else {
    news.try_now = now >= next_try_ || now >= deadline_;
    wait.set_text(StatusHeadline(last_));
  }
  // Amounts change all the time: a new place or another cap is news.
  const bool is_news = told_.text().empty() || wait.place() != told_.place() ||
                       (wait.place() == 0 && wait.text() != told_.text());
  if (is_news) {
    told_ = wait;
    news.told = std::move(wait);
  }
  return news;
}

void WaitingLease::TakeBack(const v1::Lease& lease) {
  // A lease that an earlier call of the same request made stays.
  if (made_new_) leases_.TakeBack(lease);
}

void WaitingLease::LeaveQueue(bool is_served) {
  has_room_ = false;
  next_text_ = {};
  const WaiterId room = std::exchange(attempt_.room, {});
  if (room) broker_.reservations().Leave(room, is_served);
}

bool WaitingLease::HasRoom() {
  has_room_ = has_room_ || (attempt_.room && broker_.TakeAnswer(attempt_.room).has_value());
  return has_room_;
}

}  // namespace lgpu::daemon
