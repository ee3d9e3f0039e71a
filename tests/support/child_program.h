#ifndef LGPU_TESTS_SUPPORT_CHILD_PROGRAM_H_
#define LGPU_TESTS_SUPPORT_CHILD_PROGRAM_H_

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/spawn.h"
#include "base/unique_fd.h"

namespace lgpu::testing {

/// A TempDir is a new, empty directory that goes with everything in it.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  /// Lets other users look into it.
  void OpenToEverybody() const;

 private:
  std::string path_;
};

/// A ChildProgram is a process of a test's, started by SpawnedProcess. Its stdin and stdout are pipes that
/// the test writes and reads by lines, its stderr goes to a file. It is killed and waited for with its owner.
/// One thread.
class ChildProgram {
 public:
  using Environment = SpawnOptions::Environment;
  static constexpr std::chrono::seconds kPatience{60};  // for anything that must happen

  struct Options {
    std::vector<std::string> argv;
    Environment environment = {};  // changes to this process's
    std::uint64_t open_files = 0;  // not 0: RLIMIT_NOFILE, both of it
  };
  static absl::StatusOr<std::unique_ptr<ChildProgram>> Start(const Options& options);
  ChildProgram(const ChildProgram&) = delete;
  ChildProgram& operator=(const ChildProgram&) = delete;

  pid_t pid() const { return pid_; }
  bool running();
  /// SIGSTOP: returns when it has stopped.
  void Signal(int number) const;
  void WriteLine(const std::string& line);
  void CloseStdin() { stdin_.Reset(); }
  /// The next line without its end; nothing at the end of file or when none came in time.
  std::optional<std::string> ReadLine(std::chrono::milliseconds patience = kPatience);
  /// Everything up to the end of stdout.
  std::string ReadAll(std::chrono::milliseconds patience = kPatience);
  /// Exit code, or 128 + n of the signal that killed it; nothing if it does not end in time.
  std::optional<int> Wait(std::chrono::milliseconds patience = kPatience);
  /// Its output to stderr until now.
  std::string Errors() const;

 private:
  ChildProgram() = default;
  bool ReadSome(std::chrono::steady_clock::time_point deadline);

  SpawnedProcess process_;
  pid_t pid_ = -1;  // still known when it was reaped
  UniqueFd pidfd_, stdin_, stdout_, stderr_;
  std::string buffer_;
  bool at_end_ = false;
  std::optional<int> result_;
};

/// Runs a program to its end and gives all that came of it.
struct ProgramResult {
  int code = -1;
  std::string out, err;
};
absl::StatusOr<ProgramResult> RunProgram(const ChildProgram::Options& options);

namespace internal {
void PollPause();
}

/// Polls until `condition` holds; false when that does not come true in time.
template <typename Condition>
bool Eventually(Condition condition, std::chrono::milliseconds patience = ChildProgram::kPatience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    internal::PollPause();
  }
  return true;
}

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_SUPPORT_CHILD_PROGRAM_H_
