#include "cli/suspendable.h"

#include <unistd.h>

#include <filesystem>
#include <set>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/process.h"
#include "base/read_file.h"
#include "cli/output.h"

namespace lgpu::cli {
namespace {

/// The value of a line "NAME:<TAB>VALUE" of /proc/PID/status; empty: there is no such line.
std::string FieldOf(const std::string& status, const std::string& name) {
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(status, '\n'))) {
    if (line.starts_with(name + ":")) {
      return std::string(absl::StripAsciiWhitespace(line.substr(name.size() + 1)));
    }
  }
  return "";
}

std::string NameSpaceOf(const std::string& process) {
  std::error_code error;
  const std::string name = std::filesystem::read_symlink("/proc/" + process + "/ns/pid", error).string();
  return error ? "" : name;
}

bool IsDescendant(pid_t pid) {
  std::set<std::int64_t> seen;  // pids of processes that end now may go round in a circle
  for (std::int64_t at = ParentProcess(pid); at > 0 && seen.insert(at).second; at = ParentProcess(at)) {
    if (at == ::getpid()) return true;
  }
  return false;
}

/// Why the process cannot be suspended, by its status; null: nothing there speaks against it.
const char* FindObstacle(const std::string& status, pid_t pid) {
  const std::string state = FieldOf(status, "State");
  if (FieldOf(status, "Tgid") != absl::StrCat(pid)) return "is a thread and no process";
  if (state.starts_with("T")) return "is stopped";
  if (state.starts_with("t") || FieldOf(status, "TracerPid") != "0") return "is traced, as by a debugger";
  const std::vector<std::string> users = absl::StrSplit(FieldOf(status, "Uid"), '\t');
  for (const std::string& user : users) {
    if (user != absl::StrCat(::geteuid())) return "is of another user";
  }
  return nullptr;
}

}  // namespace

absl::Status CheckSuspendable(pid_t pid) {
  const absl::StatusOr<std::string> status = ReadWholeFile(absl::StrCat("/proc/", pid, "/status"));
  const std::string command = ProcessCommand(pid);
  const std::string name =
      absl::StrCat("process ", pid, command.empty() ? "" : absl::StrCat(" (", Printable(command), ")"));
  const std::string state = status.ok() ? FieldOf(*status, "State") : "";
  if (pid <= 0 || state.empty() || state.starts_with("Z") || state.starts_with("X")) {
    return absl::NotFoundError(absl::StrCat("process ", pid, " has ended"));
  }
  const auto refuse = [&](const std::string& why) {
    return absl::FailedPreconditionError(absl::StrCat(name, " ", why));
  };
  if (const char* const obstacle = FindObstacle(*status, pid); obstacle != nullptr) return refuse(obstacle);
  if (!IsDescendant(pid)) return refuse("was not started by this lgpu");
  const std::string name_space = NameSpaceOf(absl::StrCat(pid));
  if (name_space.empty()) return refuse("may not be looked at by this user");
  if (name_space != NameSpaceOf("self")) return refuse("is in another pid namespace, as in a container");
  const std::string cgroups = ReadWholeFile(absl::StrCat("/proc/", pid, "/cgroup")).value_or("");
  if (const std::optional<std::string> frozen = FrozenCgroup(cgroups)) {
    return refuse(absl::StrCat("is frozen, by the cgroup ", Printable(*frozen)));
  }
  // Processes that work together by NCCL share such files of /dev/shm. The library alone says nothing:
  // PyTorch always loads it.
  const std::optional<std::set<std::uint64_t>> nccl = MappedFiles(pid, "/nccl-");
  if (!nccl) return refuse("may not be looked at by this user");
  if (!nccl->empty()) {
    return refuse("works with other processes by NCCL, which NVIDIA's checkpoint calls do not support");
  }
  return absl::OkStatus();
}

std::optional<std::string> FrozenCgroup(const std::string& cgroups, const std::string& mounts) {
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(cgroups, '\n'))) {
    // "0::/PATH" of version 2, "6:freezer:/PATH" of version 1.
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[1].empty()) {
      for (const char* const mount : {"", "/unified"}) {
        const std::string events =
            ReadWholeFile(absl::StrCat(mounts, mount, fields[2], "/cgroup.events")).value_or("");
        if (("\n" + events).find("\nfrozen 1\n") != std::string::npos) return fields[2];
      }
    } else if (fields[1] == "freezer") {
      const std::string state =
          ReadWholeFile(absl::StrCat(mounts, "/freezer", fields[2], "/freezer.state")).value_or("");
      if (state.starts_with("FROZEN") || state.starts_with("FREEZING")) return fields[2];
    }
  }
  return std::nullopt;
}

}  // namespace lgpu::cli
