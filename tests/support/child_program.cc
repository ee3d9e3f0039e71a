#include "tests/support/child_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
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

namespace lgpu::testing {
namespace {

using Clock = std::chrono::steady_clock;

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

std::vector<std::string> Merge(const ChildProgram::Environment& changes) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    merged[text.substr(0, text.find('='))] = text;
  }
  // A test says itself where its daemon is and what it may see.
  for (const char* name :
       {"LGPU_ENDPOINT", "LGPU_LEASE", "CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH"}) {
    merged.erase(name);
  }
  for (const auto& [name, value] : changes) {
    merged.erase(name);
    if (value) merged[name] = name + "=" + *value;
  }
  std::vector<std::string> entries;
  for (auto& [name, entry] : merged) entries.push_back(entry);
  return entries;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

struct Pipe {
  UniqueFd read, write;
};

Pipe MakePipe() {
  int fds[2];
  LGPU_CHECK(::pipe2(fds, O_CLOEXEC) == 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
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
  Pipe in = MakePipe();
  Pipe out = MakePipe();
  child->stderr_ = UniqueFd(::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  LGPU_CHECK(child->stderr_);

  std::vector<std::string> arguments = options.argv;
  if (options.open_files != 0) {
    const std::string limit = absl::StrCat("ulimit -n ", options.open_files, " && exec \"$@\"");
    arguments.insert(arguments.begin(), {"/bin/sh", "-c", limit, "sh"});
  }
  std::vector<std::string> environment = Merge(options.environment);
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(environment);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.read.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, child->stderr_.get(), STDERR_FILENO);
  const int error = posix_spawnp(&child->pid_, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return absl::InternalError(absl::StrCat("cannot start ", arguments[0], ": ", std::strerror(error)));
  }
  child->pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child->pid_, 0u)));
  child->stdin_ = std::move(in.write);
  child->stdout_ = std::move(out.read);
  return child;
}

ChildProgram::~ChildProgram() {
  if (pid_ < 0 || result_) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

bool ChildProgram::running() { return !Wait(std::chrono::milliseconds(0)).has_value(); }

void ChildProgram::Signal(int number) const {
  if (!result_) ::kill(pid_, number);
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
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  result_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
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
