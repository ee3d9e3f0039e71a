#include "cli/checkpoint_guard.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/checkpoint_calls.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

// A restore that is given up has lost its program.
constexpr std::chrono::minutes kPatienceOfGuard{10};

}  // namespace

absl::StatusOr<CheckpointGuard> CheckpointGuard::Start(const std::set<pid_t>& pids,
                                                       const std::string& program) {
  LGPU_ASSIGN_OR_RETURN(Pipe pipe, Pipe::Make());
  std::vector<std::string> argv = {program, kCheckpointVerb, kGuardWord};
  for (const pid_t pid : pids) argv.push_back(absl::StrCat(pid));
  LGPU_ASSIGN_OR_RETURN(
      SpawnedProcess process,
      SpawnedProcess::Start({.argv = std::move(argv), .descriptors = {{pipe.read.get(), STDIN_FILENO}}}));
  return CheckpointGuard(std::move(process), std::move(pipe.write));
}

// The guard has nothing to do: it is killed with its owner.
CheckpointGuard::~CheckpointGuard() { process_.Kill(); }

int RunCheckpointGuard(const std::vector<std::string>& words) {
  // A signal from the terminal is for the program.
  ::setsid();
  char ignored = 0;
  while (::read(STDIN_FILENO, &ignored, 1) < 0 && errno == EINTR) {
  }
  const CheckpointCalls calls;
  for (std::size_t i = 1; i < words.size(); ++i) {
    int pid = 0;
    if (absl::SimpleAtoi(words[i], &pid) && pid > 0) {
      calls.PutBack(pid, std::chrono::steady_clock::now() + kPatienceOfGuard).IgnoreError();
    }
  }
  return kExitOk;
}

}  // namespace lgpu::cli
