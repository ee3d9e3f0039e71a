#include "client/hook/root.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>

#include "client/hook/refuse.h"

namespace lgpu::hook {
namespace {

// Of a file with folders' names.
constexpr std::size_t kMostText = std::size_t{64} << 10;

/// Whether the error says that nothing can be opened there by any program of the container.
bool IsAbsent(int error) {
  return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG || error == EACCES;
}

}  // namespace

UniqueFd Root::Open(const std::string& path, int flags) const {
  open_how how = {};
  how.flags = static_cast<__u64>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  // EAGAIN: something was renamed on the way, so that the kernel cannot say whether the path left the root.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    UniqueFd fd(static_cast<int>(::syscall(SYS_openat2, directory_.get(), path.c_str(), &how, sizeof(how))));
    if (fd || errno != EAGAIN) return fd;
  }
  return UniqueFd();
}

UniqueFd Root::OpenFile(const std::string& path) const {
  // Looks before it opens: opening a device or a FIFO may do something, or wait.
  const UniqueFd seen = Open(path, O_PATH);
  struct stat before = {};
  if (!seen || ::fstat(seen.get(), &before) != 0) {
    if (!IsAbsent(errno)) Refuse("cannot look at " + path + " in the container: " + Reason(errno));
    return UniqueFd();
  }
  if (!S_ISREG(before.st_mode)) return UniqueFd();
  UniqueFd file = Open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  struct stat after = {};
  if (!file && IsAbsent(errno)) return file;
  if (!file || ::fstat(file.get(), &after) != 0) {
    Refuse("cannot open " + path + " in the container: " + Reason(errno));
  }
  if (before.st_dev != after.st_dev || before.st_ino != after.st_ino) {
    Refuse(path + " in the container was replaced while lgpu-hook looked at it");
  }
  return file;
}

bool Root::Look(const std::string& path, struct stat* found) const {
  const UniqueFd seen = Open(path, O_PATH);
  return seen && ::fstat(seen.get(), found) == 0;
}

UniqueFd Root::OpenFolder(const std::string& path) const { return Open(path, O_PATH | O_DIRECTORY); }

UniqueFd Root::MakeFolder(const std::string& path) const {
  UniqueFd above = Open("/", O_PATH | O_DIRECTORY);
  for (std::size_t begin = 1; begin < path.size();) {
    const std::size_t end = path.find('/', begin) == std::string::npos ? path.size() : path.find('/', begin);
    const std::string so_far = path.substr(0, end);
    UniqueFd folder = OpenFolder(so_far);
    if (!folder && errno == ENOENT &&
        (::mkdirat(above.get(), path.substr(begin, end - begin).c_str(), 0755) == 0 || errno == EEXIST)) {
      folder = OpenFolder(so_far);
    }
    if (!folder) Refuse("cannot make the folder " + so_far + " in the container: " + Reason(errno));
    above = std::move(folder);
    begin = end + 1;
  }
  return above;
}

std::vector<std::string> Root::List(const std::string& path) const {
  std::vector<std::string> names;
  UniqueFd folder = Open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK);
  DIR* const entries = folder ? ::fdopendir(folder.get()) : nullptr;
  if (entries == nullptr) return names;
  (void)folder.Release();
  while (const dirent* const entry = ::readdir(entries)) names.emplace_back(entry->d_name);
  ::closedir(entries);
  return names;
}

std::string Root::ReadText(const std::string& path) const {
  const UniqueFd file = OpenFile(path);
  return file ? ReadSome(file.get(), kMostText) : "";
}

std::string ReadSome(int fd, std::size_t most) {
  std::string text;
  char piece[4096];
  while (text.size() < most) {
    const ssize_t got = ::read(fd, piece, sizeof(piece));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(piece, static_cast<std::size_t>(got));
  }
  return text;
}

}  // namespace lgpu::hook
