#include "daemon/leases/lease_suspender.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "allocator/broker/card_observer.h"
#include "allocator/broker/lease_suspensions.h"
#include "allocator/broker/thread_waker.h"
#include "base/host_memory.h"
#include "lgpu/refusal.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

using std::chrono::milliseconds;

// The slowest copy that is still worth while.
constexpr std::uint64_t kBytesPerMs = (std::uint64_t{512} << 20) / 1000;
constexpr milliseconds kLongestRestore = std::chrono::minutes(10);
// Where programs are killed next.
constexpr milliseconds kBeforeKill{4000};
// How soon a call whose caller is gone ends.
constexpr milliseconds kGivenUpLook{1000};

std::uint64_t MsSince(LeaseSuspender::Clock::time_point then) {
  const auto passed = std::chrono::duration_cast<milliseconds>(LeaseSuspender::Clock::now() - then);
  return static_cast<std::uint64_t>(passed.count());
}

std::string Seconds(std::uint64_t ms) { return absl::StrFormat("%.1fs", static_cast<double>(ms) / 1000); }

// For events, which have one line.
std::string WithoutAdvice(const absl::Status& status) {
  const std::string text(status.message());
  return text.substr(0, text.find('\n'));
}

// To a caller these codes of gRPC say that lgpud itself is gone, or silent.
absl::Status AsAnswer(const absl::Status& status) {
  const bool is_for_caller =
      !absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status) && !absl::IsAborted(status);
  if (is_for_caller) return status;
  return absl::FailedPreconditionError(status.message());
}

absl::Status NoRoomNow(const Lease& lease, const absl::Status& status) {
  const std::optional<Refusal> refusal = GetRefusal(status);
  if (!refusal) return status;
  return absl::ResourceExhaustedError(absl::StrCat(
      "there is no room for lease ", lease.name, " now: ", refusal->card, " has ",
      FormatBytes(refusal->card_free.value_or(Bytes())), " free, and the lease needs ",
      FormatBytes(refusal->asked),
      refusal->asked <= refusal->card_free.value_or(Bytes()) ? "; the rest is kept for others" : ""));
}

absl::Status FailedFor(const Lease& lease, const absl::Status& why, const std::set<std::int64_t>& left) {
  const std::string pids = absl::StrJoin(left, " ");
  return absl::InternalError(absl::StrCat(
      "the programs of lease ", lease.name, " cannot be resumed: ", std::string(why.message()),
      "\ntry: lgpu rm --kill ", lease.name,
      left.empty() ? "" : absl::StrCat(", or kill -9 ", pids, " to keep the lease's other programs")));
}

Bytes SumOf(const std::vector<LeaseSuspensions::Charge>& charges) {
  Bytes sum;
  for (const LeaseSuspensions::Charge& charge : charges) sum += charge.bytes;
  return sum;
}

Bytes SumOf(const std::map<LogicalId, Bytes>& by_device) {
  Bytes sum;
  for (const auto& [device, bytes] : by_device) sum += bytes;
  return sum;
}

}  // namespace

std::optional<v1::LeaseSuspension> SuspensionOf(const Lease& lease, const Broker& broker) {
  const std::optional<LeaseSuspensions::Info> info = broker.suspensions().Find(lease.key);
  if (!info && !lease.suspended) return std::nullopt;
  v1::LeaseSuspension suspension;
  if (info) {
    suspension.set_in_host_memory(info->is_parked);
    suspension.set_bytes(info->parked.count());
    suspension.set_place(static_cast<std::uint32_t>(info->place));
  }
  if (lease.suspended) {
    suspension.set_bytes(suspension.bytes() + lease.suspended->own_bytes());
    suspension.set_failed(lease.suspended->failed());
  }
  return suspension;
}

milliseconds LeaseSuspender::TimeFor(Bytes bytes) const {
  return times_.settle + milliseconds(static_cast<std::int64_t>(bytes.count() / kBytesPerMs));
}

void LeaseSuspender::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  answered_.NotifyAll();
}

LeaseSuspender::Counters LeaseSuspender::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

void LeaseSuspender::Tell(const Lease& lease, const std::string& text) {
  leases_.TellOf(lease.key,
                 [&](const LeaseEvents& events, const Lease& found) { events.Suspended(found, text); });
}

void LeaseSuspender::WakeRunner(SessionId runner) const {
  if (const std::shared_ptr<SessionState> session = sessions_.Find(runner)) session->waker()->Wake();
}

std::uint64_t LeaseSuspender::Queue(SessionId runner, Order order) {
  const std::uint64_t id = ++last_order_;
  order.runner = runner;
  order.frame.order_id = id;
  orders_.emplace(id, std::move(order));
  return id;
}

LeaseSuspender::Answers LeaseSuspender::Run(const Lease& lease, const Programs& programs, bool resume,
                                            milliseconds time) {
  const milliseconds limit = resume ? kLongestRestore : time;
  const milliseconds patience = time + (resume ? times_.restore_slack : times_.slack);
  const Clock::time_point deadline = Clock::now() + patience;
  std::map<std::uint64_t, SessionId> sent;
  {
    MutexLock lock(mutex_);
    if (closed_) {
      Answers none;
      for (const auto& entry : programs) none.of[entry.first] = absl::UnavailableError("lgpud is stopping");
      return none;
    }
    for (const auto& [runner, processes] : programs) {
      Order order;
      order.frame.resume = resume;
      order.frame.limit_ms = static_cast<std::uint64_t>(limit.count());
      order.frame.processes = processes;
      order.is_to_itself = processes.empty();
      sent[Queue(runner, std::move(order))] = runner;
    }
  }
  for (const auto& [id, runner] : sent) WakeRunner(runner);
  const auto none = [&](SessionId runner) {
    return absl::DeadlineExceededError(
        absl::StrCat(programs.at(runner).empty() ? "its program" : "its `lgpu run`",
                     " did not answer within ", Seconds(static_cast<std::uint64_t>(patience.count()))));
  };
  Answers answers;
  MutexLock lock(mutex_);
  const auto all_answered = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::all_of(sent.begin(), sent.end(),
                       [&](const auto& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                         return orders_.at(entry.first).answer.has_value();
                       });
  };
  while (!closed_ && !all_answered() && answered_.WaitUntil(mutex_, deadline)) {
  }
  for (const auto& [id, runner] : sent) {
    const std::optional<absl::Status> answer = orders_.at(id).answer;
    answers.of[runner] =
        answer.value_or(closed_ ? absl::UnavailableError("lgpud is stopping") : none(runner));
    if (!answer) answers.silent.insert(runner);
    if (orders_.at(id).is_gone) answers.gone.insert(runner);
    answers.needs.insert(orders_.at(id).needs.begin(), orders_.at(id).needs.end());
    answers.left.insert(orders_.at(id).left.begin(), orders_.at(id).left.end());
    if (!answer && resume) {
      orders_.at(id).nobody_waits = lease.key;
    } else {
      orders_.erase(id);
    }
  }
  if (closed_) {
    for (auto& [runner, status] : answers.of) status.Update(absl::UnavailableError("lgpud is stopping"));
  }
  return answers;
}

bool LeaseSuspender::IsClosed() const {
  MutexLock lock(mutex_);
  return closed_;
}

absl::StatusOr<LeaseSuspender::Answers> LeaseSuspender::MoveOut(const Lease& lease, const Programs& programs,
                                                                Bytes bytes, Purpose purpose) {
  absl::Status failed;
  Programs undone;
  const bool is_for_kill = purpose == Purpose::kKill;
  const milliseconds time = is_for_kill ? std::min(kBeforeKill, TimeFor(bytes)) : TimeFor(bytes);
  const Answers out = Run(lease, programs, /*resume=*/false, time);
  for (const auto& [runner, status] : out.of) {
    failed.Update(status);
    // A runner that says that it failed has undone its part.
    if (status.ok() || out.silent.contains(runner)) undone[runner] = programs.at(runner);
  }
  if (failed.ok()) return out;
  if (IsClosed() || is_for_kill) return failed;
  const bool are_moved_by_driver =
      std::any_of(undone.begin(), undone.end(), [](const auto& entry) { return !entry.second.empty(); });
  if (are_moved_by_driver) leases_.NoteResumed(lease.key);
  absl::Status back;
  const Answers undoing = MoveBack(lease, undone, bytes);
  for (const auto& [runner, status] : undoing.of) {
    // What is silent follows its orders one after the other: its programs run in the end.
    if (!undoing.silent.contains(runner)) back.Update(status);
  }
  if (back.ok()) return failed;
  return absl::InternalError(absl::StrCat(std::string(failed.message()), "; and its programs cannot go on: ",
                                          std::string(back.message()), "\ntry: lgpu rm --kill ", lease.name));
}

absl::StatusOr<LeaseSuspender::Answers> LeaseSuspender::MoveOutInRoom(const Lease& lease,
                                                                      const Programs& programs, Bytes bytes,
                                                                      Purpose purpose) {
  std::vector<std::int64_t> pids;
  for (const auto& [runner, processes] : programs) {
    for (const wire::ProcessName& process : processes) pids.push_back(process.pid);
    const std::shared_ptr<SessionState> itself = processes.empty() ? sessions_.Find(runner) : nullptr;
    if (itself != nullptr) pids.push_back(itself->process().pid);
  }
  Bytes all;
  {
    MutexLock lock(mutex_);
    on_the_way_ += bytes;
    all = on_the_way_;
  }
  const absl::Cleanup there = [&] {
    MutexLock lock(mutex_);
    on_the_way_ -= bytes;
  };
  LGPU_RETURN_IF_ERROR(CheckHostMemory(pids, all));
  return MoveOut(lease, programs, bytes, purpose);
}

void LeaseSuspender::Observe(const Lease& lease) {
  std::set<std::string> cards;
  for (const LeaseDevice& device : lease.devices) cards.insert(device.card.device.uuid);
  for (const std::string& uuid : cards) broker_.observer().ObserveCard(uuid);
}

absl::StatusOr<v1::SuspendLeaseResponse> LeaseSuspender::Suspend(const Caller& caller,
                                                                 const std::string& name,
                                                                 std::optional<UseTime> preempted_at) {
  return SuspendFor(Purpose::kSuspension, caller, name, preempted_at);
}

void LeaseSuspender::PrepareKill(const Caller& caller, const std::string& name) {
  const absl::StatusOr<std::vector<Lease>> found = leases_.Find(caller, {name});
  if (!found.ok() || found->size() != 1 || !found->front().was_resumed) return;
  SuspendFor(Purpose::kKill, caller, name, std::nullopt).IgnoreError();
}

absl::StatusOr<v1::SuspendLeaseResponse> LeaseSuspender::SuspendFor(Purpose purpose, const Caller& caller,
                                                                    const std::string& name,
                                                                    std::optional<UseTime> preempted_at) {
  const Clock::time_point began = Clock::now();
  LGPU_ASSIGN_OR_RETURN(const Lease found, leases_.FindToSuspend(caller, name));
  {
    MutexLock lock(mutex_);
    if (!asked_.insert(found.key).second) {
      return absl::FailedPreconditionError("the lease is being suspended or resumed already");
    }
  }
  const absl::Cleanup done = [&] {
    MutexLock lock(mutex_);
    asked_.erase(found.key);
  };
  if (const std::optional<SessionId> mover = SelfMover(found)) {
    if (purpose == Purpose::kKill) return absl::FailedPreconditionError("it needs no suspension");
    return SuspendByItself(found, *mover, preempted_at);
  }
  LGPU_ASSIGN_OR_RETURN(const Lease lease, leases_.BeginSuspension(caller, name));
  const Bytes bytes = SumOf(broker_.suspensions().Charges(lease.key));
  const absl::StatusOr<Programs> programs = ProgramsOf(lease);
  const absl::Status moved =
      programs.ok() ? MoveOutInRoom(lease, *programs, bytes, purpose).status() : programs.status();
  if (!moved.ok()) {
    broker_.suspensions().End(lease.key);
    NoteNotSuspended(lease, moved);
    return AsAnswer(moved);
  }
  return ParkAndTell(lease, {.movers = MoversOf(*programs), .preempted_at = preempted_at}, began);
}

void LeaseSuspender::NoteNotSuspended(const Lease& lease, const absl::Status& why) {
  Tell(lease, absl::StrCat("could not be suspended: ", WithoutAdvice(why)));
  MutexLock lock(mutex_);
  ++counters_.failures;
}

v1::SuspendLeaseResponse LeaseSuspender::ParkAndTell(const Lease& lease, const LeaseTable::Parking& parking,
                                                     Clock::time_point began) {
  v1::SuspendLeaseResponse response;
  response.set_lease_id(lease.id);
  response.set_lease_name(lease.name);
  response.set_bytes(leases_.Park(lease.key, parking).count());
  response.set_took_ms(MsSince(began));
  Observe(lease);
  Tell(lease, absl::StrCat("suspended: ", FormatBytes(Bytes(response.bytes())), " in host memory after ",
                           Seconds(response.took_ms())));
  MutexLock lock(mutex_);
  ++counters_.suspensions;
  counters_.bytes += response.bytes();
  return response;
}

absl::StatusOr<v1::SuspendLeaseResponse> LeaseSuspender::SuspendByItself(
    const Lease& lease, SessionId mover, std::optional<UseTime> preempted_at) {
  const Clock::time_point began = Clock::now();
  const std::map<LogicalId, Bytes> held_before = broker_.suspensions().HeldBy(lease.key);
  std::map<LogicalId, Bytes> needs = held_before;
  const Programs itself = {{mover, {}}};
  const absl::StatusOr<Answers> answers = MoveOutInRoom(lease, itself, SumOf(needs), Purpose::kSuspension);
  absl::Status moved = answers.status();
  if (moved.ok()) {
    for (const LeaseDevice& device : lease.devices) {
      const auto said = answers->needs.find(device.id);
      needs[device.id] = said == answers->needs.end() ? Bytes() : std::min(said->second, device.limit);
    }
    moved = BeginOrdered(lease, mover, needs, held_before);
    if (!moved.ok()) MoveBack(lease, itself, SumOf(needs));
  }
  if (!moved.ok()) {
    NoteNotSuspended(lease, moved);
    return AsAnswer(moved);
  }
  return ParkAndTell(lease,
                     {.movers = {},
                      .preempted_at = preempted_at,
                      .own_session = mover,
                      .own_bytes = SumOf(needs),
                      .is_by_order = true},
                     began);
}

absl::Status LeaseSuspender::AwaitMemory(const Lease& lease, const Patience& patience,
                                         std::vector<WaiterId>& rooms) {
  // One card after the other, always in the same order: no two leases have each the room that the other one
  // waits for.
  for (const auto& [card, bytes] : broker_.suspensions().NeedOf(lease.key)) {
    LGPU_RETURN_IF_ERROR(AwaitRoom(lease, {.card = card, .bytes = bytes}, patience, rooms));
  }
  return absl::OkStatus();
}

absl::Status LeaseSuspender::AwaitRoom(const Lease& lease, const Reservations::Request& need,
                                       const Patience& patience, std::vector<WaiterId>& rooms) {
  const auto waker = std::make_shared<ThreadWaker>();
  const bool at_once = Clock::now() >= patience.deadline;
  const WaiterId room = broker_.reservations().Queue({.card = need.card,
                                                      .bytes = need.bytes,
                                                      .lease_name = lease.name,
                                                      .owner = lease.owner.name,
                                                      .pid = 0,
                                                      .waker = waker,
                                                      .at_once = at_once,
                                                      .preemptible = lease.preemptible,
                                                      .lease = lease.key});
  rooms.push_back(room);
  while (true) {
    const std::optional<Reservations::Place> place = broker_.reservations().View(room);
    const std::optional<Broker::Answer> answer = broker_.TakeAnswer(room);
    if (answer) return at_once ? NoRoomNow(lease, answer->status) : answer->status;
    if (Clock::now() >= patience.deadline) {
      return absl::ResourceExhaustedError(
          absl::StrCat("there was no room for lease ", lease.name, " in that time",
                       place ? absl::StrCat(": ", place->text) : std::string()));
    }
    waker->WaitUntil(std::min(patience.deadline, Clock::now() + kGivenUpLook));
    if (patience.is_given_up()) return absl::CancelledError("the caller is gone");
    if (IsClosed()) return absl::UnavailableError("lgpud is stopping");
  }
}

absl::StatusOr<v1::ResumeLeaseResponse> LeaseSuspender::ResumeFor(Whose suspension, const Caller& caller,
                                                                  const std::string& name,
                                                                  const Patience& patience) {
  LGPU_ASSIGN_OR_RETURN(const Lease lease,
                        leases_.FindSuspended(caller, name, suspension == Whose::kProgram));
  {
    MutexLock lock(mutex_);
    if (!resuming_.insert(lease.key).second) {
      return absl::FailedPreconditionError(
          absl::StrCat("lease ", lease.name,
                       " is being resumed already, by another call or by lgpud; it may be waiting for room"));
    }
  }
  const absl::Cleanup done = [&] {
    MutexLock lock(mutex_);
    resuming_.erase(lease.key);
  };
  return ResumeIn(lease, patience);
}

absl::StatusOr<v1::ResumeLeaseResponse> LeaseSuspender::ResumeIn(const Lease& lease,
                                                                 const Patience& patience) {
  const Clock::time_point asked = Clock::now();
  LGPU_RETURN_IF_ERROR(ProgramsOf(lease).status());
  std::vector<WaiterId> rooms;
  absl::Status ready = AwaitMemory(lease, patience, rooms);
  if (ready.ok()) ready = leases_.TakeBack(lease.key, rooms);
  for (const WaiterId room : rooms) broker_.reservations().Leave(room);
  LGPU_RETURN_IF_ERROR(ready);
  const Clock::time_point began = Clock::now();
  v1::ResumeLeaseResponse response;
  response.set_lease_id(lease.id);
  response.set_lease_name(lease.name);
  response.set_waited_ms(
      static_cast<std::uint64_t>(std::chrono::duration_cast<milliseconds>(began - asked).count()));
  const bool is_own = lease.suspended->own_session_id() != 0;
  const Bytes bytes =
      is_own ? Bytes(lease.suspended->own_bytes()) : SumOf(broker_.suspensions().Charges(lease.key));
  const absl::StatusOr<Programs> programs = ProgramsOf(lease);
  if (!programs.ok()) {  // none was told anything: they are suspended as before
    leases_.Park(lease.key, LeaseTable::ParkingOf(*lease.suspended));
    Observe(lease);
    return programs.status();
  }
  absl::Status back;
  absl::Status late;
  absl::Status gone;
  const Answers answers = MoveBack(lease, *programs, bytes);
  for (const auto& [runner, status] : answers.of) {
    (answers.silent.contains(runner) ? late : answers.gone.contains(runner) ? gone : back).Update(status);
  }
  const bool has_failed = !back.ok() || !late.ok() || !gone.ok();
  if (has_failed && IsClosed()) return absl::UnavailableError("lgpud is stopping");  // the next one goes on
  if (back.ok() && !late.ok()) {
    EndWhenAnswered(lease.key);
    Tell(lease, absl::StrCat("is being resumed: ", std::string(late.message())));
    return absl::FailedPreconditionError(
        absl::StrCat(std::string(late.message()), "; lease ", lease.name,
                     " has its memory again, and its programs go on as soon as that one answers"));
  }
  if (!back.ok() && is_own) return NotBackByItself(lease, back);
  if (!back.ok()) {
    leases_.FailSuspension(lease.key, std::string(back.message()), answers.left);
    Observe(lease);
    Tell(lease, absl::StrCat("cannot be resumed: ", std::string(back.message())));
    MutexLock lock(mutex_);
    ++counters_.failures;
    return FailedFor(lease, back, answers.left);
  }
  broker_.suspensions().End(lease.key);
  if (!gone.ok()) {
    Tell(lease, absl::StrCat("has its memory again: ", WithoutAdvice(gone)));
    return gone;
  }
  response.set_bytes(bytes.count());
  response.set_took_ms(MsSince(began));
  Tell(lease,
       absl::StrCat("resumed: ", FormatBytes(bytes), " back on its GPUs after ", Seconds(response.took_ms()),
                    ", and ", Seconds(response.waited_ms()), " of waiting for memory"));
  MutexLock lock(mutex_);
  ++counters_.resumptions;
  counters_.bytes += response.bytes();
  return response;
}

}  // namespace lgpu::daemon
