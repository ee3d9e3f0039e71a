#include "cli/checkpoint_calls.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/process.h"
#include "base/spawn.h"
#include "cli/output.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLockGrace{1000};  // for the child itself: the driver knows the lock's limit
constexpr milliseconds kKillPatience{2000};
// A question that is given up counts as a failure, and a busy machine is slow.
constexpr milliseconds kForState{60'000};

// Numbers of cuda.h.
constexpr int kInvalidValue = 1, kOutOfMemory = 2, kIllegalState = 401, kNotReady = 600, kNotPermitted = 800,
              kNotSupported = 801;

std::string ProcessText(pid_t pid) {
  const std::string command = ProcessCommand(pid);
  return absl::StrCat("process ", pid, command.empty() ? "" : absl::StrCat(" (", Printable(command), ")"));
}

absl::Status StatusOfResult(const std::string& text, int result) {
  switch (result) {
    case kInvalidValue:
      return absl::NotFoundError(text);
    case kOutOfMemory:
      return absl::ResourceExhaustedError(text);
    case kIllegalState:
      return absl::FailedPreconditionError(text);
    case kNotReady:
      return absl::UnavailableError(text);
    case kNotPermitted:
      return absl::PermissionDeniedError(text);
    case kNotSupported:
      return absl::UnimplementedError(text);
    default:
      return absl::InternalError(text);
  }
}

const char* MeaningOf(int result) {
  switch (result) {
    case kInvalidValue:
      return ": it does not use the driver, or has ended";
    case kIllegalState:
      return ": it is in another state";
    case kNotReady:
      return ": its work did not end in time";
    case kNotPermitted:
      return ": the system does not let this user trace it";
    case kNotSupported:
      return ": the driver does not support it, or not for this process";
    default:
      return "";
  }
}

/// The child's line: "state 1" gives 1, "ok" gives 0.
absl::StatusOr<int> ParseAnswer(absl::string_view line, const std::string& verb, pid_t pid) {
  const std::string about = absl::StrCat(verb, " of ", ProcessText(pid));
  int number = 0;
  if (line == "ok") return 0;
  if (absl::ConsumePrefix(&line, "missing ")) {
    return absl::UnimplementedError(absl::StrCat(about, ": ", std::string(line)));
  }
  if (absl::ConsumePrefix(&line, "state ") && absl::SimpleAtoi(line, &number)) return number;
  if (absl::ConsumePrefix(&line, "error ")) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ');
    if (absl::SimpleAtoi(fields.back(), &number)) {
      line.remove_suffix(fields.back().size());
      std::string said(absl::StripSuffix(line, " "));
      said = absl::StrCat(about, ": ", said.replace(said.find(' '), 1, " gave "), " (", number, ")");
      // No word about the process: the call was not made.
      if (fields.front() == "cuInit") return absl::InternalError(said);
      return StatusOfResult(absl::StrCat(said, MeaningOf(number)), number);
    }
  }
  return absl::InternalError(absl::StrCat(about, ": lgpu's own process for it ended before its answer"));
}

/// The first line that comes before the deadline, or all text until the end; nothing: neither came.
std::optional<std::string> ReadAnswer(int fd, std::chrono::steady_clock::time_point deadline) {
  std::string text;
  while (true) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd polled{fd, POLLIN, 0};
    const int ready = ::poll(&polled, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    char bytes[512];
    const ssize_t count = ::read(fd, bytes, sizeof(bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count > 0) text.append(bytes, static_cast<std::size_t>(count));
    if (const std::size_t end = text.find('\n'); end != std::string::npos) return text.substr(0, end);
    if (count <= 0) return text;
  }
}

/// Ends the child. One that the system does not end, because the driver holds it in the kernel, is left.
void EndChild(SpawnedProcess& child) {
  ::kill(child.pid(), SIGKILL);
  const auto deadline = std::chrono::steady_clock::now() + kKillPatience;
  while (!child.TryWait()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      child.Release();
      return;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
}

milliseconds LeftUntil(std::chrono::steady_clock::time_point deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  return std::max(std::chrono::duration_cast<milliseconds>(left), milliseconds(1));
}

}  // namespace

/// Makes a call in a child: the number in its answer.
absl::StatusOr<int> CheckpointCalls::Call(const std::string& verb, pid_t pid, milliseconds limit) const {
  const bool is_lock = verb == "lock";
  // 0 is no limit for the driver.
  const std::int64_t timeout_ms = is_lock ? std::clamp<std::int64_t>(limit.count(), 1, 0x7fffffff) : 0;
  const auto deadline = std::chrono::steady_clock::now() + limit + (is_lock ? kLockGrace : milliseconds(0));
  LGPU_ASSIGN_OR_RETURN(Pipe output, Pipe::Make());
  std::vector<std::pair<int, int>> descriptors = {{output.write.get(), STDOUT_FILENO}};
  if (kept_ >= 0) descriptors.emplace_back(kept_, kept_);
  absl::StatusOr<SpawnedProcess> child = SpawnedProcess::Start(
      {.argv = {program_, kCheckpointVerb, verb, absl::StrCat(pid), absl::StrCat(timeout_ms)},
       // The driver itself, with all devices.
       .environment = {{"LD_PRELOAD", std::nullopt}, {"CUDA_VISIBLE_DEVICES", std::nullopt}},
       .descriptors = descriptors});
  if (!child.ok()) {
    return absl::InternalError(absl::StrCat(verb, " of ", ProcessText(pid),
                                            ": lgpu cannot start itself for it: ", child.status().message()));
  }
  output.write.Reset();
  const std::optional<std::string> line = ReadAnswer(output.read.get(), deadline);
  EndChild(*child);
  if (line) return ParseAnswer(*line, verb, pid);
  return absl::DeadlineExceededError(
      absl::StrCat(verb, " of ", ProcessText(pid), ": the driver did not answer in ", limit.count(), " ms"));
}

absl::Status CheckpointCalls::Lock(pid_t pid, milliseconds limit) const {
  return Call("lock", pid, limit).status();
}

absl::Status CheckpointCalls::Checkpoint(pid_t pid, milliseconds limit) const {
  return Call("checkpoint", pid, limit).status();
}

absl::Status CheckpointCalls::Restore(pid_t pid, milliseconds limit) const {
  return Call("restore", pid, limit).status();
}

absl::Status CheckpointCalls::Unlock(pid_t pid, milliseconds limit) const {
  return Call("unlock", pid, limit).status();
}

absl::StatusOr<CheckpointCalls::State> CheckpointCalls::GetState(pid_t pid, milliseconds limit) const {
  LGPU_ASSIGN_OR_RETURN(const int state, Call("state", pid, limit));
  constexpr State kStates[] = {State::kRunning, State::kLocked, State::kCheckpointed, State::kFailed};
  if (state >= 0 && static_cast<std::size_t>(state) < std::size(kStates)) return kStates[state];
  return absl::InternalError(absl::StrCat("state of ", ProcessText(pid), ": the driver gave ", state,
                                          ", which this lgpu does not know"));
}

absl::Status CheckpointCalls::PutBack(pid_t pid, std::chrono::steady_clock::time_point deadline) const {
  const absl::StatusOr<State> state = GetState(pid, std::min(LeftUntil(deadline), kForState));
  if (absl::IsNotFound(state.status())) return absl::OkStatus();
  LGPU_RETURN_IF_ERROR(state.status());
  if (*state == State::kRunning) return absl::OkStatus();
  if (*state == State::kCheckpointed) LGPU_RETURN_IF_ERROR(Restore(pid, LeftUntil(deadline)));
  return Unlock(pid, LeftUntil(deadline));
}

}  // namespace lgpu::cli
