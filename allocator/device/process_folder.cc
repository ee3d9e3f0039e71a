#include "allocator/device/process_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "allocator/unique_fd.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

enum class Maps { kAny, kNone, kUnknown };  // unknown: it is gone, or not for this one to see

absl::StatusOr<Maps> LookAt(const std::string& folder) {
  const std::string path = folder + "/maps";
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    LGPU_RETURN_IF_ERROR(CheckMeans(errno, path));
    return Maps::kUnknown;
  }
  char first = 0;
  const ssize_t got = ::read(fd.get(), &first, 1);
  return got < 0 ? Maps::kUnknown : got == 0 ? Maps::kNone : Maps::kAny;
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
  const std::string tasks = own + "/task";
  std::error_code error;
  for (std::filesystem::directory_iterator it(tasks, error), end; !error && it != end; it.increment(error)) {
    // Not below task: only there is no map_files.
    std::string other = absl::StrCat("/proc/", it->path().filename().string());
    LGPU_ASSIGN_OR_RETURN(const Maps maps, LookAt(other));
    if (maps == Maps::kAny) return other;
  }
  LGPU_RETURN_IF_ERROR(CheckMeans(error.value(), tasks));
  return own;
}

}  // namespace lgpu
