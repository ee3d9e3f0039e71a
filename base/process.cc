#include "base/process.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/process_folder.h"
#include "base/read_file.h"
#include "base/utf8.h"
#include "lgpu/status.h"

namespace lgpu {

bool Process::IsGone() const {
  if (!pidfd) return false;
  pollfd poll_fd{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  return ::poll(&poll_fd, 1, 0) == 1;
}

absl::StatusOr<std::uint64_t> ProcessStartTime(std::int64_t pid) {
  // A stream would throw where the process ends between open and read.
  const absl::StatusOr<std::string> stat = ReadWholeFile(absl::StrCat("/proc/", pid, "/stat"));
  if (absl::IsResourceExhausted(stat.status())) {
    return stat.status();  // not "gone": a daemon takes the memory of a process that is gone
  }
  const std::string text = stat.value_or("");
  // The second field is the command in parentheses and may hold anything, parentheses and blanks included.
  const std::size_t end = text.rfind(')');
  if (end == std::string::npos) return absl::NotFoundError(absl::StrCat("process ", pid, " is gone"));
  const std::vector<std::string> fields = absl::StrSplit(text.substr(end + 1), ' ', absl::SkipEmpty());
  constexpr std::size_t kStartTime = 22 - 3;  // the first field after the command is number 3
  std::uint64_t ticks = 0;
  if (fields.size() <= kStartTime || !absl::SimpleAtoi(fields[kStartTime], &ticks)) {
    return absl::NotFoundError(absl::StrCat("/proc/", pid, "/stat has no start time"));
  }
  return ticks;
}

absl::StatusOr<Process> HoldProcess(std::int64_t pid) {
  Process process;
  process.pid = pid;
  if (pid <= 0) return process;
  LGPU_ASSIGN_OR_RETURN(const std::uint64_t before, ProcessStartTime(pid));
  process.pidfd.Reset(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0u)));
  if (!process.pidfd) {
    const int error = errno;
    const std::string text = absl::StrCat("pidfd_open(", pid, "): ", std::strerror(error));
    if (error == EMFILE || error == ENFILE || error == ENOMEM) return absl::ResourceExhaustedError(text);
    // The pid may be a thread's of another process by now.
    const bool is_no_process = error == ESRCH || error == EINVAL || error == ENOENT;
    return is_no_process ? absl::NotFoundError(absl::StrCat("process ", pid, " is gone"))
                         : absl::UnavailableError(text);
  }
  LGPU_ASSIGN_OR_RETURN(process.start_time, ProcessStartTime(pid));
  if (process.start_time != before || process.IsGone()) {
    return absl::NotFoundError(absl::StrCat("process ", pid, " is gone; its pid was given to another one"));
  }
  return process;
}

std::optional<std::set<std::uint64_t>> MappedFiles(std::int64_t pid, std::string_view name) {
  const absl::StatusOr<std::string> folder = FolderOfProcess(pid);
  if (!folder.ok()) return std::nullopt;
  std::ifstream maps(*folder + "/maps");
  bool has_lines = false;
  std::set<std::uint64_t> inodes;
  for (std::string line; std::getline(maps, line);) {
    has_lines = true;
    unsigned long long inode = 0;
    if (line.find(name) != std::string::npos &&
        std::sscanf(line.c_str(), "%*x-%*x %*s %*x %*x:%*x %llu", &inode) == 1) {
      inodes.insert(inode);
    }
  }
  return has_lines && !maps.bad() ? std::optional(std::move(inodes)) : std::nullopt;
}

std::optional<std::uint32_t> ProcessOwner(std::int64_t pid) {
  struct stat info = {};
  if (::stat(absl::StrCat("/proc/", pid).c_str(), &info) != 0) return std::nullopt;
  return info.st_uid;
}

std::int64_t ParentProcess(std::int64_t pid) {
  const std::string text = ReadWholeFile(absl::StrCat("/proc/", pid, "/stat")).value_or("");
  // "PID (name) S PPID ...": the name may have anything in it.
  const std::size_t end = text.rfind(')');
  return end == std::string::npos || end + 4 > text.size()
             ? 0
             : std::strtoll(text.c_str() + end + 4, nullptr, 10);
}

std::string ProcessCommand(std::int64_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  return AsUtf8(name);  // the kernel cuts it after 15 bytes
}

}  // namespace lgpu
