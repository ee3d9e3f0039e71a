#include "daemon/server/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "daemon/leases/users.h"

namespace lgpu::daemon {
namespace {

// Opens before it creates: with fs.protected_regular, O_CREAT on another user's file in a sticky directory
// fails even for root.
UniqueFd OpenOrCreate(int directory, const std::string& name, mode_t mode) {
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  for (;;) {
    UniqueFd file(::openat(directory, name.c_str(), kFlags));
    if (file || errno != ENOENT) return file;
    file.Reset(::openat(directory, name.c_str(), kFlags | O_CREAT | O_EXCL, mode));
    if (file) {
      ::fchmod(file.get(), mode);  // overrides the umask; its failure leaves a stricter file
      return file;
    }
    if (errno != EEXIST) return file;
  }
}

// Another user may have made the file.
absl::Status Unusable(int directory, const std::string& name, absl::StatusCode code, const std::string& why) {
  struct stat info = {};
  const bool is_there = ::fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
  return absl::Status(
      code, absl::StrCat("the lock file ", name, is_there ? " of user " + UserName(info.st_uid) : "",
                         " cannot be used: ", why, is_there ? "; remove it" : ""));
}

std::string ReadText(int file) {
  char text[512];
  const ssize_t size = ::pread(file, text, sizeof text, 0);
  std::string_view content(text, size > 0 ? static_cast<std::size_t>(size) : 0);
  // Any user may have written the file: take one line of printable characters.
  content = content.substr(0, content.find('\n'));
  std::string clean;
  for (const char c : content) clean += c >= ' ' && c <= '~' ? c : '?';
  return clean;
}

}  // namespace

absl::StatusOr<UniqueFd> LockFile(int directory, const std::string& name, mode_t mode) {
  for (;;) {
    UniqueFd file = OpenOrCreate(directory, name, mode);
    if (!file) {
      const int error = errno;
      return Unusable(directory, name, absl::ErrnoToStatusCode(error), std::strerror(error));
    }
    struct stat opened = {};
    struct stat present = {};
    if (::fstat(file.get(), &opened) != 0 || !S_ISREG(opened.st_mode)) {
      return Unusable(directory, name, absl::StatusCode::kFailedPrecondition, "it is no ordinary file");
    }
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK) return absl::AlreadyExistsError(ReadText(file.get()));
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot lock ", name));
    }
    // The file may have been unlinked or replaced between open and flock: then this lock protects nothing.
    if (::fstatat(directory, name.c_str(), &present, AT_SYMLINK_NOFOLLOW) == 0 &&
        present.st_dev == opened.st_dev && present.st_ino == opened.st_ino) {
      return file;
    }
  }
}

absl::Status WriteLockFile(int lock, const std::string& text) {
  if (::ftruncate(lock, 0) != 0 ||
      ::pwrite(lock, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return absl::ErrnoToStatus(errno, "cannot write into a lock file");
  }
  return absl::OkStatus();
}

}  // namespace lgpu::daemon
