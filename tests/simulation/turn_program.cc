#include "tests/simulation/turn_program.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/process.h"
#include "tests/simulation/attached_session.h"

namespace lgpu::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Where the session of the calling thread's program finds lgpud's tick.
thread_local const std::atomic<std::uint64_t>* tick = nullptr;

void Sleep(milliseconds time) { std::this_thread::sleep_for(time); }

}  // namespace

void TurnProgram::Run() {
  session_ = std::make_unique<shim::LeaseSession>(
      shim::LeaseSession::Options{.directory = options_.directory,
                                  .lease = options_.lease,
                                  .client = "a program that takes turns",
                                  .watch_tick = [](const std::atomic<std::uint64_t>* word) { tick = word; }});
  while (!is_finishing_ && card_ == shim::LeaseSession::kNoCard) {
    if (const auto cards = session_->AwaitCardUuids(); cards && !cards->empty()) {
      card_ = session_->CardOf(std::string_view(cards->front()));
    } else {
      Sleep(milliseconds(50));
    }
  }
  while (!is_finishing_) {
    if (used_ < options_.need) {
      Take(Below(3) == 0 ? options_.need - used_
                         : std::min<Bytes>(options_.need - used_, 2_MiB * (1 + Below(8))));
    } else if (Below(6) == 0) {
      Free(Below(2) == 0 ? used_ : 2_MiB);
    }
    Work(milliseconds(Below(Below(3) == 0 ? 20'000 : 1000)));
    if (Below(2) == 0) Sleep(milliseconds(Below(8000)));
  }
  Free(used_);
  session_->NoteExit();
}

Bytes TurnProgram::OnCard() const {
  return program_ != nullptr && program_->is_alive && state_ != State::kOnHost ? used_ : Bytes();
}

void TurnProgram::Call() {
  if (tick != nullptr) session_->NoteUse(tick->load());
  if (state_ == State::kRuns) return;
  const bool is_first = !waits_since_.has_value();
  if (is_first) waits_since_ = steady_clock::now();
  while (state_ != State::kRuns) Sleep(milliseconds(5));
  if (is_first) waits_since_.reset();
}

void TurnProgram::Work(milliseconds time) {
  const auto until = steady_clock::now() + time;
  do {
    Call();
    Sleep(milliseconds(100));
  } while (!is_finishing_ && steady_clock::now() < until);
}

void TurnProgram::Take(Bytes bytes) {
  waits_since_ = steady_clock::now();
  const bool is_granted = session_->Charge(card_, bytes.count(), wire::ChargeKind::kPlain, "cuMemAlloc_v2");
  if (is_granted) {
    Call();
    used_ += bytes;
  } else {
    ++refusals_;
  }
  waits_since_.reset();
}

void TurnProgram::Free(Bytes bytes) {
  bytes = std::min(bytes, used_);
  if (bytes.is_zero()) return;
  Call();
  used_ -= bytes;
  session_->Uncharge(card_, bytes.count(), wire::ChargeKind::kPlain);
}

void TurnProgram::RunParent() {
  while (program_->is_alive) {
    if (const std::unique_ptr<DaemonConnection> session = OpenParent(); session != nullptr) {
      ServeOrders(*session);
      (void)session->Close();
    }
    Sleep(milliseconds(1 + ParentBelow(50)));
  }
}

std::unique_ptr<DaemonConnection> TurnProgram::OpenParent() {
  return OpenAttached(options_.lease,
                      {.directory = options_.directory,
                       .suspends = true,
                       .makes_no_use = true,
                       .on_change = [this] { changed_.NotifyAll(); }},
                      options_.fail);
}

void TurnProgram::ServeOrders(DaemonConnection& session) {
  while (program_->is_alive) {
    if (session.IsOver()) {
      options_.fail(absl::StrCat("the session of a program's parent is over: ", session.status().ToString()));
    }
    for (const DaemonConnection::SuspendOfDaemon& order : session.TakeSuspends()) {
      if (order.generation != session.generation()) continue;  // as lgpu run
      const bool ran = state_ == State::kRuns;
      const absl::Status status = Follow(session, order.order);
      std::vector<wire::ProcessName> left;
      if (!status.ok() && order.order.resume && state_ == State::kOnHost && program_->is_alive) {
        left.push_back({.pid = program_->pid, .start_time = ProcessStartTime(program_->pid).value_or(0)});
      }
      bool is_lost = !left.empty();
      const absl::Status answered = session.AnswerSuspend(order, {.status = status, .left = std::move(left)});
      // As lgpu run: the next lgpud may not know that this one's order was followed.
      if (!answered.ok() && status.ok() && !order.order.resume && ran) is_lost = !Resume(session).ok();
      // Its user does what docs/giving-way.md says.
      if (is_lost) {
        Sleep(milliseconds(ParentBelow(5000)));
        Processes::Get().Kill(*program_);
      }
    }
    // A change may come before this wait.
    MutexLock lock(mutex_);
    changed_.WaitUntil(mutex_, steady_clock::now() + milliseconds(300));
  }
}

absl::Status TurnProgram::Follow(DaemonConnection& session, const wire::Suspend& order) {
  for (const wire::ProcessName& process : order.processes) {
    if (process.pid != program_->pid) {
      options_.fail(absl::StrCat("a parent is to move process ", process.pid, ", which is not its own"));
    }
  }
  if (!program_->is_alive) return absl::NotFoundError("the program has ended");
  // It may take longer than lgpud waits.
  if (options_.fails && ParentBelow(30) == 0) {
    Sleep(milliseconds(std::min<std::uint64_t>(order.limit_ms + 500, 20'000)));
  }
  return order.resume ? Resume(session) : Suspend(session);
}

void TurnProgram::Move() {
  // As long as the bytes take, and now and then longer.
  const auto mebibytes = static_cast<std::int64_t>(used_.count() >> 20);
  Sleep(milliseconds(1 + 2 * mebibytes + static_cast<std::int64_t>(ParentBelow(8) == 0 ? 500 : 5)));
}

absl::Status TurnProgram::Suspend(DaemonConnection& session) {
  if (state_ == State::kOnHost) return absl::OkStatus();
  session.NoteHasSuspended(true);
  state_ = State::kLocked;
  Sleep(milliseconds(ParentBelow(50)));  // until its work has ended
  if (options_.fails && ParentBelow(10) == 0) {
    state_ = State::kRuns;
    session.NoteHasSuspended(false);
    return absl::InternalError("the driver does not suspend it");
  }
  Move();
  state_ = State::kOnHost;
  ++suspensions_;
  return absl::OkStatus();
}

absl::Status TurnProgram::Resume(DaemonConnection& session) {
  if (state_ == State::kOnHost) {
    if (options_.fails && ParentBelow(10) == 0) return absl::InternalError("the driver does not restore it");
    state_ = State::kLocked;  // its memory is on the card from here on
    Move();
  }
  state_ = State::kRuns;
  session.NoteHasSuspended(false);
  return absl::OkStatus();
}

}  // namespace lgpu::simulation
