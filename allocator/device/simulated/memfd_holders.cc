#include "allocator/device/simulated/memfd_holders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "allocator/device/simulated/memfd.h"
#include "base/process_folder.h"
#include "base/unique_fd.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

constexpr std::string_view kPrefix = "/memfd:";

/// The memfd's name in a link or line of /proc; empty if it does not begin with `name`.
std::string MemfdName(std::string_view target, std::string_view name) {
  constexpr std::string_view kDeleted = " (deleted)";
  if (target.substr(0, kPrefix.size()) != kPrefix) return "";
  target.remove_prefix(kPrefix.size());
  if (target.substr(0, name.size()) != name) return "";
  if (target.size() >= kDeleted.size() && target.substr(target.size() - kDeleted.size()) == kDeleted) {
    target.remove_suffix(kDeleted.size());
  }
  return std::string(target);
}

template <typename Visit>
absl::Status ForEachEntry(const std::string& directory, Visit visit) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    LGPU_RETURN_IF_ERROR(visit(*it));
  }
  return CheckMeans(error.value(), directory);
}

absl::Status AddOpen(std::int64_t pid, const std::string& folder, std::string_view name,
                     std::vector<MemfdHolder>& holders) {
  const auto add = [&](const std::filesystem::directory_entry& entry) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    std::string found = MemfdName(target, name);
    struct stat info = {};
    if (found.empty() || ::stat(entry.path().c_str(), &info) != 0) return absl::OkStatus();
    holders.push_back({.inode = info.st_ino,
                       .pid = pid,
                       .name = std::move(found),
                       .path = entry.path().string(),
                       .bytes = Bytes(static_cast<std::uint64_t>(info.st_blocks) * 512)});
    return absl::OkStatus();
  };
  return ForEachEntry(folder + "/fd", add);
}

absl::Status AddMapped(std::int64_t pid, const std::string& folder, std::string_view name,
                       std::vector<MemfdHolder>& holders) {
  const std::string path = folder + "/maps";
  std::ifstream maps(path);
  if (!maps) return CheckMeans(errno, path);
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find(kPrefix);
    if (at == std::string::npos) continue;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t inode = 0;
    std::string found = MemfdName(std::string_view(line).substr(at), name);
    if (found.empty() || std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %*s %*x %*x:%*x %" SCNu64, &begin,
                                     &end, &inode) != 3) {
      continue;
    }
    char range[64];
    std::snprintf(range, sizeof(range), "%" PRIx64 "-%" PRIx64, begin, end);
    holders.push_back({.inode = inode,
                       .pid = pid,
                       .name = std::move(found),
                       .path = absl::StrCat(folder, "/map_files/", range),
                       .bytes = {}});
  }
  return absl::OkStatus();
}

// The thread behind `folder` may end during a look: then looks again through another thread.
absl::Status AddHolders(std::int64_t pid, std::string_view name, std::vector<MemfdHolder>& holders) {
  const auto others = static_cast<std::ptrdiff_t>(holders.size());
  LGPU_ASSIGN_OR_RETURN(std::string folder, FolderOfProcess(pid));
  constexpr int kLooks = 20;
  for (int look = 0; look < kLooks; ++look) {
    LGPU_RETURN_IF_ERROR(AddOpen(pid, folder, name, holders));
    LGPU_RETURN_IF_ERROR(AddMapped(pid, folder, name, holders));
    LGPU_ASSIGN_OR_RETURN(std::string after, FolderOfProcess(pid));
    if (after == folder) return absl::OkStatus();
    folder = std::move(after);
    holders.erase(holders.begin() + others, holders.end());
  }
  return ThreadsEndTooFast(pid);
}

}  // namespace

absl::StatusOr<std::vector<MemfdHolder>> FindMemfdHolders(std::string_view name) {
  std::vector<MemfdHolder> holders;
  const auto look = [&](const std::filesystem::directory_entry& entry) -> absl::Status {
    std::int64_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid) || pid == ::getpid()) {
      return absl::OkStatus();
    }
    return AddHolders(pid, name, holders);
  };
  LGPU_RETURN_IF_ERROR(ForEachEntry("/proc", look));
  return holders;
}

// The path leads into another process, which may put any file there at any moment. So the file is checked
// through O_PATH, which opens nothing, and only a file with the seals of a chunk is emptied.
absl::Status EmptyHeldMemfd(const MemfdHolder& holder) {
  const auto changed = [&] {
    return absl::UnavailableError(absl::StrCat("process ", holder.pid, " had the chunk at ", holder.path,
                                               ", and now has no file or another file there"));
  };
  const UniqueFd seen(::open(holder.path.c_str(), O_PATH | O_CLOEXEC));
  if (!seen) {
    if (errno == ENOENT) return changed();  // the process let go of the memfd, or has it elsewhere by now
    return absl::UnavailableError(
        absl::StrCat("process ", holder.pid,
                     " still has the chunk, which this process cannot open: ", std::strerror(errno)));
  }
  struct stat info = {};
  if (::fstat(seen.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_ino != holder.inode) {
    return changed();
  }
  const std::string same = absl::StrCat("/proc/self/fd/", seen.get());
  const UniqueFd fd(::open(same.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) {
    return absl::UnavailableError(
        absl::StrCat("process ", holder.pid,
                     " still has the chunk, which this process cannot open: ", std::strerror(errno)));
  }
  return HasChunkSeals(fd.get()) ? EmptyChunkMemfd(fd.get()) : changed();
}

}  // namespace lgpu
