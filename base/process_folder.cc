#include "base/process_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

enum class Maps { kAny, kNone, kUnknown };  // unknown: the process is gone, or this one may not see it

absl::StatusOr<Maps> LookAt(const std::string& folder) {
  const std::string path = folder + "/maps";
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    LGPU_RETURN_IF_ERROR(CheckMeans(errno, path));
    return errno == ESRCH ? Maps::kNone
                          : Maps::kUnknown;  // some kernels say this of a process without memory
  }
  char first = 0;
  const ssize_t got = ::read(fd.get(), &first, 1);
  if (got < 0) return errno == ESRCH ? Maps::kNone : Maps::kUnknown;
  return got == 0 ? Maps::kNone : Maps::kAny;
}

// A look at the other threads of a process: `folder` belongs to one that has memory mapped.
struct Others {
  std::optional<std::string> folder;
  bool has_one_ended = false;  // while it was looked at
};
absl::StatusOr<Others> LookAtOthers(const std::string& own, std::int64_t pid) {
  Others others;
  const std::string tasks = own + "/task";
  std::error_code error;
  for (std::filesystem::directory_iterator it(tasks, error), end; !error && it != end; it.increment(error)) {
    const std::string thread = it->path().filename().string();
    if (thread == absl::StrCat(pid)) continue;
    std::string folder = absl::StrCat("/proc/", thread);  // below task there is no map_files
    LGPU_ASSIGN_OR_RETURN(const Maps maps, LookAt(folder));
    if (maps == Maps::kAny) {
      others.folder = std::move(folder);
      return others;
    }
    others.has_one_ended |= ::access(it->path().c_str(), F_OK) != 0;
  }
  LGPU_RETURN_IF_ERROR(CheckMeans(error.value(), tasks));
  return others;
}

}  // namespace

absl::Status CheckMeans(int error, const std::string& path) {
  if (error != EMFILE && error != ENFILE && error != ENOMEM) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(path, " cannot be looked at: ", std::strerror(error)));
}

absl::StatusOr<std::string> FolderOfProcess(std::int64_t pid) {
  std::string own = absl::StrCat("/proc/", pid);
  LGPU_ASSIGN_OR_RETURN(const Maps first, LookAt(own));
  if (first != Maps::kNone) return own;
  // Another look finds threads that came meanwhile.
  constexpr int kLooks = 20;
  for (int look = 0; look < kLooks; ++look) {
    LGPU_ASSIGN_OR_RETURN(Others others, LookAtOthers(own, pid));
    if (others.folder) return *std::move(others.folder);
    if (!others.has_one_ended) return own;  // no thread has memory mapped: the process is ending
  }
  return ThreadsEndTooFast(pid);
}

absl::Status ThreadsEndTooFast(std::int64_t pid) {
  return absl::UnavailableError(
      absl::StrCat("the threads of process ", pid, " end faster than they can be looked at"));
}

}  // namespace lgpu
