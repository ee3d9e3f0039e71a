#include "cli/program_suspender.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/process.h"
#include "cli/checkpoint_guard.h"
#include "cli/suspendable.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

using std::chrono::milliseconds;

// An undoing must come to its end, however little of lgpud's time is left.
constexpr milliseconds kLeastForUndoing{10'000};
// For a question about a process; a busy machine is slow.
constexpr milliseconds kForLook{60'000};

milliseconds TimeUntil(std::chrono::steady_clock::time_point deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  return std::max(std::chrono::duration_cast<milliseconds>(left), milliseconds(1));
}

// The processes are those that lgpud means: their numbers may be others' meanwhile, or of another pid
// namespace.
absl::StatusOr<std::set<pid_t>> PidsOf(const wire::Suspend& order) {
  std::set<pid_t> pids;
  for (const wire::ProcessName& process : order.processes) {
    const absl::StatusOr<std::uint64_t> start_time = ProcessStartTime(process.pid);
    if (!start_time.ok() || *start_time != process.start_time) {
      return absl::NotFoundError(
          absl::StrCat("process ", process.pid, " has ended, or is not in the pid namespace of this lgpu"));
    }
    pids.insert(static_cast<pid_t>(process.pid));
  }
  return pids;
}

}  // namespace

ProgramSuspender::~ProgramSuspender() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.reset();
}

void ProgramSuspender::Look() {
  std::vector<DaemonConnection::SuspendOfDaemon> orders = session_.TakeSuspends();
  if (orders.empty()) return;
  if (const absl::Status started = StartThread(); !started.ok()) {
    for (const DaemonConnection::SuspendOfDaemon& order : orders) {
      (void)session_.AnswerSuspend(order, {.status = started});  // it has changed nothing
    }
    return;
  }
  MutexLock lock(mutex_);
  for (DaemonConnection::SuspendOfDaemon& order : orders) orders_.push_back(std::move(order));
  changed_.NotifyAll();
}

absl::Status ProgramSuspender::StartThread() {
  if (thread_) return absl::OkStatus();
  LGPU_ASSIGN_OR_RETURN(thread_, Thread::Start("lgpu-suspend", [this] { Run(); }));
  return absl::OkStatus();
}

void ProgramSuspender::Run() {
  while (true) {
    DaemonConnection::SuspendOfDaemon taken;
    {
      MutexLock lock(mutex_);
      while (orders_.empty() && !stopping_) changed_.Wait(mutex_);
      if (stopping_) return;
      taken = std::move(orders_.front());
      orders_.pop_front();
    }
    if (taken.generation != session_.generation()) continue;  // the next lgpud gives orders of its own
    const absl::Status status = FollowAndNote(taken.order);
    const absl::Status answered =
        session_.AnswerSuspend(taken, {.status = status, .left = std::exchange(left_, {})});
    if (answered.ok() || !status.ok() || taken.order.resume) continue;
    // That lgpud is gone. The next one may have been told, before this was done, that no program is
    // suspended, and resumes none then.
    taken.order.resume = true;
    (void)FollowAndNote(taken.order);
  }
}

absl::Status ProgramSuspender::FollowAndNote(const wire::Suspend& order) {
  const auto began = Clock::now();
  const absl::Status status = Suspend(order);
  const std::chrono::duration<double> took = Clock::now() - began;
  const char* const what = order.resume ? "resumed" : "suspended";
  options_.Note(status.ok() ? absl::StrFormat("lgpu: %s after %.1fs", what, took.count())
                            : absl::StrCat("lgpu: cannot be ", what, ": ", status.message()));
  return status;
}

absl::Status ProgramSuspender::Suspend(const wire::Suspend& order) {
  const Clock::time_point deadline = Clock::now() + milliseconds(static_cast<std::int64_t>(order.limit_ms));
  absl::StatusOr<std::set<pid_t>> pids = PidsOf(order);
  if (order.resume && (!pids.ok() || pids->empty())) pids = suspended_;
  LGPU_RETURN_IF_ERROR(pids.status());
  if (!order.resume) {
    for (const pid_t pid : *pids) LGPU_RETURN_IF_ERROR(CheckSuspendable(pid));
  }
  const absl::StatusOr<CheckpointGuard> guard = CheckpointGuard::Start(*pids, program_);
  if (!guard.ok() && !order.resume) return guard.status();
  if (guard.ok()) calls_.KeepOpen(guard->descriptor());
  const absl::Cleanup done = [this] { calls_.KeepOpen(-1); };
  if (order.resume) return ResumeAll(*pids, deadline);
  return SuspendOrUndo(*pids, deadline);
}

absl::Status ProgramSuspender::SuspendOrUndo(const std::set<pid_t>& pids, Clock::time_point deadline) {
  NoteSuspended(pids, true);
  const absl::Status status = SuspendAll(pids, deadline);
  if (status.ok()) return status;
  const absl::Status undone = ResumeAll(pids, std::max(deadline, Clock::now() + kLeastForUndoing));
  if (undone.ok()) return status;
  return absl::InternalError(
      absl::StrCat(status.message(), "; and it cannot be undone: ", std::string(undone.message())));
}

absl::Status ProgramSuspender::SuspendAll(const std::set<pid_t>& pids, Clock::time_point deadline) {
  // None is in host memory before all are locked: programs that work together fail together, and cheaply.
  for (const pid_t pid : pids) LGPU_RETURN_IF_ERROR(calls_.Lock(pid, TimeUntil(deadline)));
  for (const pid_t pid : pids) LGPU_RETURN_IF_ERROR(calls_.Checkpoint(pid, TimeUntil(deadline)));
  return absl::OkStatus();
}

absl::Status ProgramSuspender::ResumeAll(std::set<pid_t> pids, Clock::time_point deadline) {
  absl::Status all;
  left_.clear();
  for (const pid_t pid : pids) {
    const absl::Status resumed = calls_.PutBack(pid, deadline);
    all.Update(resumed);
    // A driver that did not answer may be moving it still.
    if (!resumed.ok() && !absl::IsDeadlineExceeded(resumed)) NoteIfLeft(pid);
  }
  if (all.ok()) NoteSuspended(pids, false);
  return all;
}

void ProgramSuspender::NoteIfLeft(pid_t pid) {
  const absl::StatusOr<CheckpointCalls::State> state = calls_.GetState(pid, kForLook);
  const absl::StatusOr<std::uint64_t> start_time = ProcessStartTime(pid);
  if (!state.ok() || *state != CheckpointCalls::State::kCheckpointed || !start_time.ok()) return;
  left_.push_back({.pid = pid, .start_time = *start_time});
}

void ProgramSuspender::NoteSuspended(const std::set<pid_t>& pids, bool are_suspended) {
  for (const pid_t pid : pids) {
    if (are_suspended) {
      suspended_.insert(pid);
    } else {
      suspended_.erase(pid);
    }
  }
  session_.NoteHasSuspended(!suspended_.empty());
}

}  // namespace lgpu::cli
