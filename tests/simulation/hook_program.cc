#include "tests/simulation/hook_program.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/attached_session.h"

namespace lgpu::simulation {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

void HookProgram::Run() {
  while (!is_finishing_) {
    if (const std::unique_ptr<DaemonConnection> session = Open(); session != nullptr) {
      Serve(*session);
      (void)session->Close();
    }
    std::this_thread::sleep_for(milliseconds(1 + Below(50)));
  }
}

std::unique_ptr<DaemonConnection> HookProgram::Open() {
  return OpenAttached(options_.lease,
                      {.directory = options_.directory,
                       .runs_release = true,
                       .makes_no_use = true,
                       .on_change = [this] { changed_.NotifyAll(); }},
                      options_.fail);
}

void HookProgram::Serve(DaemonConnection& session) {
  const auto until = steady_clock::now() + milliseconds(Below(60'000));
  while (!is_finishing_ && steady_clock::now() < until) {
    if (session.IsOver()) {
      options_.fail(absl::StrCat("the session with a hook is over: ", session.status().ToString()));
    }
    for (const DaemonConnection::ReleaseOfDaemon& release : session.TakeReleases()) {
      ++runs_;
      session.AnswerRelease(release, RunHook(release.order));
    }
    // A change may come before this wait.
    MutexLock lock(mutex_);
    changed_.WaitUntil(mutex_, steady_clock::now() + milliseconds(300));
  }
}

absl::Status HookProgram::RunHook(const wire::Release& order) {
  const auto deadline = steady_clock::now() + milliseconds(order.limit_ms);
  std::this_thread::sleep_for(milliseconds(Below(Below(2) == 0 ? 20 : 1000)));
  const Bytes held = options_.held();
  switch (static_cast<Way>(Below(6))) {
    case Way::kGivesAll:
      options_.let_go(100);
      return AwaitLess(held, deadline);
    case Way::kGivesSome:
      options_.let_go(50);
      return AwaitLess(held, deadline);
    case Way::kGivesNothing:
      return absl::OkStatus();
    case Way::kFails:
      return absl::InternalError("it ended with 1");
    case Way::kKills:
      options_.kill_programs();
      return absl::OkStatus();
    case Way::kTakesTooLong:
      break;
  }
  while (!is_finishing_ && steady_clock::now() < deadline) std::this_thread::sleep_for(milliseconds(100));
  return absl::DeadlineExceededError("it took too long, and was ended");
}

absl::Status HookProgram::AwaitLess(Bytes bytes, steady_clock::time_point deadline) {
  while (!is_finishing_ && steady_clock::now() < deadline) {
    if (options_.held() < bytes) return absl::OkStatus();
    std::this_thread::sleep_for(milliseconds(20));
  }
  return absl::DeadlineExceededError("it took too long, and was ended");
}

}  // namespace lgpu::simulation
