#include "daemon/server/server_dir.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "daemon/server/lock_file.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

// Connections that wait to be accepted. Programs beyond that wait in connect(), one connection for each
// thread, so a user that connects without an end is at most this many connections ahead of other users.
constexpr int kBacklog = 64;

constexpr std::size_t kLongestSocketPath = sizeof(sockaddr_un::sun_path) - 1;

std::optional<gid_t> FindGroup(const std::string& name) {
  if (name.empty()) return std::nullopt;
  std::vector<char> buffer(16 * 1024);
  group entry = {};
  group* found = nullptr;
  if (::getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) {
    return std::nullopt;
  }
  return found->gr_gid;
}

absl::Status MakeParents(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) {
    return absl::PermissionDeniedError(absl::StrCat("cannot make the directory above ", path, ": ",
                                                    error.message(), "; choose another one with --dir"));
  }
  return absl::OkStatus();
}

// The directory is made with the right mode if it is not there. One that is there must be this user's, and
// loses write permission for other users: a user that may write into it may replace the sockets.
absl::StatusOr<UniqueFd> OpenRuntimeDir(const std::string& path, std::optional<gid_t> group) {
  LGPU_RETURN_IF_ERROR(MakeParents(path));
  const bool made = ::mkdir(path.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make the runtime directory ", path));
  }
  UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open the runtime directory ", path));
  struct stat info = {};
  if (::fstat(directory.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot look at the runtime directory ", path));
  }
  if (info.st_uid != ::geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat("the runtime directory ", path, " belongs to user ",
                                                      info.st_uid, ", and lgpud runs as user ", ::geteuid(),
                                                      "; remove it or choose another one with --dir"));
  }
  mode_t mode = made ? 0700 : info.st_mode & 07755;
  // The system's daemon mends a directory that was made by other means, or before there was the group. An
  // ordinary user's own directory stays as closed as it is.
  const bool mend = group && (made || (::geteuid() == 0 && info.st_gid != *group));
  if (mend && ::fchown(directory.get(), static_cast<uid_t>(-1), *group) == 0) mode |= 0050;
  if ((info.st_mode & 07777) != mode && ::fchmod(directory.get(), mode) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot set the mode of ", path));
  }
  return directory;
}

absl::StatusOr<UniqueFd> LockDirectory(int directory, const std::string& path) {
  absl::StatusOr<UniqueFd> lock = LockFile(directory, "lock", 0600);
  if (absl::IsAlreadyExists(lock.status())) {
    const std::string pid(lock.status().message());
    return absl::FailedPreconditionError(
        absl::StrCat("another lgpud", pid.empty() ? "" : " (pid " + pid + ")", " serves from ", path,
                     "; stop it first, or choose another directory with --dir"));
  }
  if (!lock.ok()) {
    return absl::Status(lock.status().code(), absl::StrCat(path, ": ", std::string(lock.status().message())));
  }
  LGPU_RETURN_IF_ERROR(WriteLockFile(lock->get(), absl::StrCat(::getpid(), "\n")));
  return lock;
}

int SocketType(int fd) {
  int type = -1;
  int listening = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) return -1;
  size = sizeof listening;
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || listening == 0) return -1;
  sockaddr_storage address = {};
  size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
  return address.ss_family == AF_UNIX ? type : -1;
}

absl::Status SetUpInherited(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "cannot set up an inherited socket");
  }
  return absl::OkStatus();
}

long NumberFromEnvironment(const char* name) {
  const char* text = std::getenv(name);
  long value = 0;
  if (text == nullptr) return 0;
  const std::string_view digits(text);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return error == std::errc() && end == digits.data() + digits.size() ? value : 0;
}

}  // namespace

absl::Status CheckSocketPath(const std::string& directory) {
  const std::string path = directory + "/control.sock";  // which is as long as session.sock
  if (path.size() <= kLongestSocketPath) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the socket path ", path, " has ", path.size(),
                                                 " bytes; the system allows ", kLongestSocketPath,
                                                 "; choose a shorter directory with --dir"));
}

absl::StatusOr<ServerDir::Inherited> ServerDir::TakeInherited() {
  constexpr int kFirst = 3;  // SD_LISTEN_FDS_START
  Inherited inherited;
  const long count = NumberFromEnvironment("LISTEN_FDS");
  const bool ours = NumberFromEnvironment("LISTEN_PID") == ::getpid();
  for (const char* name : {"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"}) ::unsetenv(name);
  if (!ours || count <= 0) return inherited;
  for (int fd = kFirst; fd < kFirst + count; ++fd) {
    const int type = SocketType(fd);
    UniqueFd* slot = type == SOCK_STREAM      ? &inherited.control
                     : type == SOCK_SEQPACKET ? &inherited.session
                                              : nullptr;
    if (slot == nullptr || *slot) {
      return absl::InvalidArgumentError(absl::StrCat(
          "descriptor ", fd,
          " from the service manager is not one listening Unix socket of type stream (control) or ",
          "seqpacket (session); check ListenStream= and ListenSequentialPacket= of lgpud.socket"));
    }
    LGPU_RETURN_IF_ERROR(SetUpInherited(fd));
    slot->Reset(fd);
  }
  return inherited;
}

absl::StatusOr<ServerDir> ServerDir::Open(const Config& config, Inherited inherited) {
  LGPU_RETURN_IF_ERROR(CheckSocketPath(config.runtime_dir));
  ServerDir dir;
  dir.path_ = config.runtime_dir;
  LGPU_ASSIGN_OR_RETURN(dir.directory_, OpenRuntimeDir(config.runtime_dir, FindGroup(config.socket_group)));
  LGPU_ASSIGN_OR_RETURN(dir.lock_, LockDirectory(dir.directory_.get(), config.runtime_dir));
  dir.control_ = std::move(inherited.control);
  dir.session_ = std::move(inherited.session);
  if (!dir.session_) {
    LGPU_ASSIGN_OR_RETURN(dir.session_, dir.Bind("session.sock", SOCK_SEQPACKET, config));
  }
  if (!dir.control_) {
    LGPU_ASSIGN_OR_RETURN(dir.control_, dir.Bind("control.sock", SOCK_STREAM, config));
  }
  return dir;
}

// The lock is held, so a socket that is there belongs to no living daemon.
absl::StatusOr<UniqueFd> ServerDir::Bind(const char* name, int type, const Config& config) {
  const std::string path = absl::StrCat(path_, "/", name);
  struct stat info = {};
  if (::fstatat(directory_.get(), name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return absl::FailedPreconditionError(absl::StrCat(path, " is there and is not a socket; move it away"));
    }
    if (::unlinkat(directory_.get(), name, 0) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove the old socket ", path));
    }
  }
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return absl::ErrnoToStatus(errno, absl::StrCat("cannot make the socket ", path));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot bind the socket ", path));
  }
  if (::fstatat(directory_.get(), name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot look at the socket ", path));
  }
  own_sockets_.push_back({.name = name, .device = info.st_dev, .inode = info.st_ino});
  // No process can connect before listen, so the mode is set before a user without the right can. Clients
  // that look for their daemon meanwhile are turned away and try again. Without the right to give the socket
  // to the group it stays this user's.
  if (const std::optional<gid_t> group = FindGroup(config.socket_group)) {
    if (::fchownat(directory_.get(), name, static_cast<uid_t>(-1), *group, AT_SYMLINK_NOFOLLOW) != 0 &&
        errno != EPERM) {
      return absl::ErrnoToStatus(errno,
                                 absl::StrCat("cannot give ", path, " to group ", config.socket_group));
    }
  }
  if (::fchmodat(directory_.get(), name, config.socket_mode, 0) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot listen on ", path));
  }
  return socket;
}

ServerDir::~ServerDir() {
  for (const OwnSocket& own : own_sockets_) {
    struct stat info = {};
    if (::fstatat(directory_.get(), own.name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        info.st_dev == own.device && info.st_ino == own.inode) {
      ::unlinkat(directory_.get(), own.name.c_str(), 0);
    }
  }
}

}  // namespace lgpu::daemon
