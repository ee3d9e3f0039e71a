#include "tests/support/child_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu::testing {
namespace {

using Clock = std::chrono::steady_clock;

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

// A test sets its daemon and its visible devices itself.
SpawnOptions::Environment WithoutLgpu(SpawnOptions::Environment changes) {
  changes.insert({{"LGPU_ENDPOINT", std::nullopt},
                  {"LGPU_LEASE", std::nullopt},
                  {"CUDA_VISIBLE_DEVICES", std::nullopt},
                  {"TF_FORCE_GPU_ALLOW_GROWTH", std::nullopt}});
  return changes;
}

}  // namespace

namespace internal {
void PollPause() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }
}  // namespace internal

TempDir::TempDir() {
  const char* base = std::getenv("TMPDIR");
  path_ = absl::StrCat(base == nullptr ? "/tmp" : base, "/lgpu-test-XXXXXX");
  LGPU_CHECK(::mkdtemp(path_.data()) != nullptr);
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TempDir::OpenToEverybody() const { LGPU_CHECK(::chmod(path_.c_str(), 0755) == 0); }

absl::StatusOr<std::unique_ptr<ChildProgram>> ChildProgram::Start(const Options& options) {
  std::unique_ptr<ChildProgram> child(new ChildProgram());
  LGPU_ASSIGN_OR_RETURN(Pipe in, Pipe::Make());
  LGPU_ASSIGN_OR_RETURN(Pipe out, Pipe::Make());
  child->stderr_ = UniqueFd(::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  LGPU_CHECK(child->stderr_);

  std::vector<std::string> arguments = options.argv;
  if (options.open_files != 0) {
    const std::string limit = absl::StrCat("ulimit -n ", options.open_files, " && exec \"$@\"");
    arguments.insert(arguments.begin(), {"/bin/sh", "-c", limit, "sh"});
  }
  absl::StatusOr<SpawnedProcess> process =
      SpawnedProcess::Start({.argv = arguments,
                             .environment = WithoutLgpu(options.environment),
                             .descriptors = {{in.read.get(), STDIN_FILENO},
                                             {out.write.get(), STDOUT_FILENO},
                                             {child->stderr_.get(), STDERR_FILENO}}});
  if (!process.ok()) {
    return absl::InternalError(absl::StrCat("cannot start ", arguments[0], ": ", process.status().message()));
  }
  child->process_ = *std::move(process);
  child->pid_ = child->process_.pid();
  child->pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child->pid_, 0u)));
  child->stdin_ = std::move(in.write);
  child->stdout_ = std::move(out.read);
  return child;
}

bool ChildProgram::running() { return !Wait(std::chrono::milliseconds(0)).has_value(); }

void ChildProgram::Signal(int number) const {
  if (result_) return;
  ::kill(pid_, number);
  if (number != SIGSTOP) return;
  // Each of its threads goes on until it notices.
  siginfo_t stopped;
  while (::waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED | WEXITED | WNOWAIT) != 0 &&
         errno == EINTR) {
  }
}

void ChildProgram::WriteLine(const std::string& line) {
  const std::string text = line + "\n";
  // A dead child shows in the missing answer; it must not kill the test by SIGPIPE.
  struct sigaction ignore {};
  struct sigaction before {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before);
  [[maybe_unused]] const ssize_t written = ::write(stdin_.get(), text.data(), text.size());
  ::sigaction(SIGPIPE, &before, nullptr);
}

bool ChildProgram::ReadSome(Clock::time_point deadline) {
  pollfd polled{stdout_.get(), POLLIN, 0};
  if (at_end_ || ::poll(&polled, 1, MillisecondsUntil(deadline)) <= 0) return false;
  char bytes[4096];
  const ssize_t count = ::read(stdout_.get(), bytes, sizeof(bytes));
  if (count <= 0) {
    at_end_ = true;
    return false;
  }
  buffer_.append(bytes, static_cast<std::size_t>(count));
  return true;
}

std::optional<std::string> ChildProgram::ReadLine(std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  while (true) {
    if (const std::size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    if (!ReadSome(deadline)) return std::nullopt;
  }
}

std::string ChildProgram::ReadAll(std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  while (ReadSome(deadline)) {
  }
  return std::exchange(buffer_, "");
}

std::optional<int> ChildProgram::Wait(std::chrono::milliseconds patience) {
  if (result_) return result_;
  pollfd polled{pidfd_.get(), POLLIN, 0};
  if (::poll(&polled, 1, static_cast<int>(patience.count())) <= 0) return std::nullopt;
  result_ = process_.TryWait();
  return result_;
}

std::string ChildProgram::Errors() const {
  std::string text;
  char bytes[4096];
  ssize_t count = 0;
  while ((count = ::pread(stderr_.get(), bytes, sizeof(bytes), static_cast<off_t>(text.size()))) > 0) {
    text.append(bytes, static_cast<std::size_t>(count));
  }
  return text;
}

absl::StatusOr<ProgramResult> RunProgram(const ChildProgram::Options& options) {
  absl::StatusOr<std::unique_ptr<ChildProgram>> child = ChildProgram::Start(options);
  if (!child.ok()) return child.status();
  (*child)->CloseStdin();
  ProgramResult result;
  result.out = (*child)->ReadAll();
  const std::optional<int> code = (*child)->Wait();
  result.err = (*child)->Errors();
  if (!code) {
    return absl::DeadlineExceededError(
        absl::StrCat(options.argv[0], " did not end in time; out: ", result.out, " err: ", result.err));
  }
  result.code = *code;
  return result;
}

}  // namespace lgpu::testing
