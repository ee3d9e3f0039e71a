#include "daemon/leases/lease_suspender.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "allocator/broker/card_observer.h"
#include "allocator/broker/lease_suspensions.h"
#include "allocator/broker/reservations.h"
#include "allocator/broker/thread_waker.h"
#include "base/process.h"
#include "daemon/leases/host_memory.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

using std::chrono::milliseconds;

// For the work that a program has on its GPUs, and the slowest copy that is still worth while.
constexpr milliseconds kSettle{5000};
constexpr std::uint64_t kBytesPerMs = (std::uint64_t{512} << 20) / 1000;
// For the way, and the runner's own work.
constexpr milliseconds kSlack{2000};
// How soon a call whose caller is gone ends.
constexpr milliseconds kGivenUpLook{1000};
constexpr int kMostGenerations = 64;  // between a program and its runner

milliseconds TimeFor(Bytes bytes) {
  return kSettle + milliseconds(static_cast<std::int64_t>(bytes.count() / kBytesPerMs));
}

std::uint64_t MsSince(LeaseSuspender::Clock::time_point then) {
  const auto passed = std::chrono::duration_cast<milliseconds>(LeaseSuspender::Clock::now() - then);
  return static_cast<std::uint64_t>(passed.count());
}

std::string Seconds(std::uint64_t ms) { return absl::StrFormat("%.1fs", static_cast<double>(ms) / 1000); }

absl::Status NoRunner(const SessionState& program) {
  return absl::FailedPreconditionError(absl::StrCat(
      program.identity().command, " (pid ", program.process().pid,
      ") has no `lgpu run` or `lgpu exec` above it that could move it; start it with one of them"));
}

Bytes SumOf(const std::vector<LeaseSuspensions::Charge>& charges) {
  Bytes sum;
  for (const LeaseSuspensions::Charge& charge : charges) sum += charge.bytes;
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
  }
  if (lease.suspended) suspension.set_failed(lease.suspended->failed());
  return suspension;
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

SessionId LeaseSuspender::RunnerOf(const Lease& lease, std::int64_t pid) const {
  std::map<std::int64_t, SessionId> runners;
  for (const SessionId id : lease.live) {
    const std::shared_ptr<SessionState> session = sessions_.Find(id);
    if (session == nullptr || !session->identity().suspends) continue;
    if (session->phase() == SessionState::Phase::kLive) runners[session->process().pid] = id;
  }
  for (int i = 0; i < kMostGenerations && pid > 1; ++i) {
    if (const auto found = runners.find(pid); found != runners.end()) return found->second;
    pid = ParentProcess(pid);
  }
  return SessionId();
}

absl::StatusOr<LeaseSuspender::Programs> LeaseSuspender::ProgramsOf(const Lease& lease) const {
  std::set<SessionId> with_memory;
  for (const LeaseSuspensions::Charge& charge : broker_.suspensions().Charges(lease.key)) {
    with_memory.insert(charge.session);
  }
  Programs programs;
  std::set<std::int64_t> pids;  // a process may have several sessions
  for (const SessionId id : with_memory) {
    const std::shared_ptr<SessionState> session = sessions_.Find(id);
    if (session == nullptr || !pids.insert(session->process().pid).second) continue;
    const SessionId runner = RunnerOf(lease, session->process().pid);
    if (!runner) return NoRunner(*session);
    v1::ProcessName& name = programs[runner].emplace_back();
    name.set_pid(session->process().pid);
    name.set_start_time(session->process().start_time);
  }
  return programs;
}

std::uint64_t LeaseSuspender::Queue(SessionId runner, Order order) {
  const std::uint64_t id = ++last_order_;
  order.runner = runner;
  order.frame.set_order_id(id);
  orders_.emplace(id, std::move(order));
  return id;
}

std::map<SessionId, absl::Status> LeaseSuspender::Run(const Programs& programs, bool resume, Bytes bytes) {
  const milliseconds limit = TimeFor(bytes);
  const Clock::time_point deadline = Clock::now() + limit + kSlack;
  std::map<std::uint64_t, SessionId> sent;
  {
    MutexLock lock(mutex_);
    for (const auto& [runner, processes] : programs) {
      Order order;
      order.frame.set_resume(resume);
      order.frame.set_limit_ms(static_cast<std::uint64_t>(limit.count()));
      for (const v1::ProcessName& process : processes) *order.frame.add_processes() = process;
      sent[Queue(runner, std::move(order))] = runner;
    }
  }
  for (const auto& [id, runner] : sent) WakeRunner(runner);
  std::map<SessionId, absl::Status> answers;
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
    answers[runner] = answer ? *answer
                             : absl::DeadlineExceededError(absl::StrCat(
                                   "its `lgpu run` did not answer within ", (limit + kSlack).count(), "ms"));
    orders_.erase(id);
  }
  if (closed_) {
    for (auto& [runner, status] : answers) status.Update(absl::UnavailableError("lgpud is stopping"));
  }
  return answers;
}

bool LeaseSuspender::IsClosed() const {
  MutexLock lock(mutex_);
  return closed_;
}

absl::Status LeaseSuspender::MoveOut(const Lease& lease, const Programs& programs, Bytes bytes) {
  absl::Status failed;
  Programs undone;
  for (const auto& [runner, status] : Run(programs, /*resume=*/false, bytes)) {
    failed.Update(status);
    // A runner that says that it failed has undone its part.
    if (status.ok() || absl::IsDeadlineExceeded(status)) undone[runner] = programs.at(runner);
  }
  if (failed.ok() || IsClosed()) return failed;
  const absl::Status back = MoveBack(undone, bytes);
  if (back.ok()) return failed;
  return absl::InternalError(absl::StrCat(std::string(failed.message()), "; and its programs cannot go on: ",
                                          std::string(back.message()), "\ntry: lgpu rm --kill ", lease.name));
}

absl::Status LeaseSuspender::MoveBack(const Programs& programs, Bytes bytes) {
  absl::Status failed;
  for (const auto& [runner, status] : Run(programs, /*resume=*/true, bytes)) failed.Update(status);
  return failed;
}

absl::Status LeaseSuspender::MoveOutInRoom(const Lease& lease, Bytes bytes) {
  LGPU_ASSIGN_OR_RETURN(const Programs programs, ProgramsOf(lease));
  std::vector<std::int64_t> pids;
  for (const auto& [runner, processes] : programs) {
    for (const v1::ProcessName& process : processes) pids.push_back(process.pid());
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
  return MoveOut(lease, programs, bytes);
}

void LeaseSuspender::Observe(const Lease& lease) {
  std::set<std::string> cards;
  for (const LeaseDevice& device : lease.devices) cards.insert(device.card.device.uuid);
  for (const std::string& uuid : cards) broker_.observer().ObserveCard(uuid);
}

absl::StatusOr<v1::SuspendLeaseResponse> LeaseSuspender::Suspend(const Caller& caller,
                                                                 const std::string& name) {
  const Clock::time_point began = Clock::now();
  LGPU_ASSIGN_OR_RETURN(const Lease lease, leases_.BeginSuspension(caller, name));
  const Bytes bytes = SumOf(broker_.suspensions().Charges(lease.key));
  if (const absl::Status moved = MoveOutInRoom(lease, bytes); !moved.ok()) {
    leases_.EndSuspension(lease.key);
    Tell(lease, absl::StrCat("could not be suspended: ", std::string(moved.message())));
    MutexLock lock(mutex_);
    ++counters_.failures;
    return moved;
  }
  v1::SuspendLeaseResponse response;
  response.set_lease_id(lease.id);
  response.set_lease_name(lease.name);
  response.set_bytes(leases_.Park(lease.key).count());
  response.set_took_ms(MsSince(began));
  Observe(lease);
  Tell(lease, absl::StrCat("suspended: ", FormatBytes(Bytes(response.bytes())), " in host memory after ",
                           Seconds(response.took_ms())));
  MutexLock lock(mutex_);
  ++counters_.suspensions;
  counters_.bytes += response.bytes();
  return response;
}

absl::Status LeaseSuspender::AwaitMemory(const Lease& lease, const Patience& patience,
                                         std::vector<WaiterId>& rooms) {
  const auto waker = std::make_shared<ThreadWaker>();
  for (const auto& [card, bytes] : broker_.suspensions().NeedOf(lease.key)) {
    rooms.push_back(broker_.reservations().Queue({.card = card,
                                                  .bytes = bytes,
                                                  .lease_name = lease.name,
                                                  .owner = lease.owner.name,
                                                  .pid = 0,
                                                  .waker = waker}));
  }
  std::vector<WaiterId> waiting = rooms;
  while (true) {
    for (auto room = waiting.begin(); room != waiting.end();) {
      const std::optional<Reservations::Place> place = broker_.reservations().View(*room);
      const std::optional<Broker::Answer> answer = broker_.TakeAnswer(*room);
      if (answer && !answer->status.ok()) return answer->status;
      if (!answer && Clock::now() >= patience.deadline) {
        return absl::ResourceExhaustedError(
            absl::StrCat("there was no room for lease ", lease.name, " in that time",
                         place ? absl::StrCat(": ", place->text) : std::string()));
      }
      room = answer ? waiting.erase(room) : room + 1;
    }
    if (waiting.empty()) return absl::OkStatus();
    waker->WaitUntil(std::min(patience.deadline, Clock::now() + kGivenUpLook));
    if (patience.is_given_up()) return absl::CancelledError("the caller is gone");
    if (IsClosed()) return absl::UnavailableError("lgpud is stopping");
  }
}

absl::StatusOr<v1::ResumeLeaseResponse> LeaseSuspender::Resume(const Caller& caller, const std::string& name,
                                                               Clock::time_point deadline,
                                                               const std::function<bool()>& is_given_up) {
  LGPU_ASSIGN_OR_RETURN(const Lease lease, leases_.FindSuspended(caller, name));
  {
    MutexLock lock(mutex_);
    if (!resuming_.insert(lease.key).second) {
      return absl::FailedPreconditionError(
          absl::StrCat("lease ", lease.name, " is being resumed by another call already"));
    }
  }
  const absl::Cleanup done = [&] {
    MutexLock lock(mutex_);
    resuming_.erase(lease.key);
  };
  return ResumeIn(lease, {.deadline = deadline, .is_given_up = is_given_up});
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
  const Bytes bytes = SumOf(broker_.suspensions().Charges(lease.key));
  absl::StatusOr<Programs> programs = ProgramsOf(lease);
  const absl::Status back = programs.ok() ? MoveBack(*programs, bytes) : programs.status();
  if (!back.ok() && IsClosed()) return back;  // the next lgpud goes on
  if (!back.ok()) {
    leases_.FailSuspension(lease.key, std::string(back.message()));
    Observe(lease);
    Tell(lease, absl::StrCat("cannot be resumed: ", std::string(back.message())));
    MutexLock lock(mutex_);
    ++counters_.failures;
    return absl::InternalError(absl::StrCat("the programs of lease ", lease.name,
                                            " cannot be resumed: ", std::string(back.message()),
                                            "\ntry: lgpu rm --kill ", lease.name));
  }
  leases_.EndSuspension(lease.key);
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

std::vector<v1::Suspend> LeaseSuspender::TakeOrders(SessionId runner) {
  std::vector<v1::Suspend> frames;
  MutexLock lock(mutex_);
  for (auto& [id, order] : orders_) {
    if (order.runner != runner || std::exchange(order.is_sent, true)) continue;
    frames.push_back(order.frame);
  }
  return frames;
}

void LeaseSuspender::Answer(SessionId runner, std::uint64_t id, const absl::Status& status) {
  std::optional<LeaseKey> over;
  {
    MutexLock lock(mutex_);
    const auto found = orders_.find(id);
    if (found == orders_.end() || found->second.runner != runner) return;  // its time was over
    over = found->second.nobody_waits;
    found->second.answer = status;
    if (over) orders_.erase(found);
    answered_.NotifyAll();
  }
  if (!over || status.ok()) return;
  leases_.FailSuspension(*over, std::string(status.message()));
  leases_.TellOf(*over, [&](const LeaseEvents& events, const Lease& lease) {
    events.Suspended(lease, absl::StrCat("cannot be resumed: ", std::string(status.message())));
  });
}

void LeaseSuspender::RunnerBack(const SessionState& runner) {
  const auto suspension = broker_.suspensions().Find(runner.lease());
  if (suspension && suspension->is_parked) return;
  {
    MutexLock lock(mutex_);
    Order order;
    order.frame.set_resume(true);
    order.frame.set_limit_ms(
        static_cast<std::uint64_t>(std::chrono::milliseconds(std::chrono::minutes(10)).count()));
    order.nobody_waits = runner.lease();
    Queue(runner.id(), std::move(order));
  }
  WakeRunner(runner.id());
}

void LeaseSuspender::RunnerGone(SessionId runner) {
  MutexLock lock(mutex_);
  std::erase_if(orders_, [runner](const auto& entry) {
    return entry.second.runner == runner && entry.second.nobody_waits;
  });
  for (auto& [id, order] : orders_) {
    if (order.runner != runner || order.answer) continue;
    order.answer = absl::FailedPreconditionError("its `lgpu run` has ended meanwhile");
  }
  answered_.NotifyAll();
}

}  // namespace lgpu::daemon
