#include "proto/wire/connect.h"

#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "proto/wire/text.h"

namespace lgpu {
namespace {

using wire::Text;

using Clock = std::chrono::steady_clock;

std::string DirectoryOf(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

std::string GroupName(gid_t gid) {
  std::array<char, 4096> buffer;
  group entry;
  group* found = nullptr;
  const bool known = ::getgrgid_r(gid, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr;
  return known ? found->gr_name : Text(gid);
}

/// Whether the system's list of the group has the user.
bool IsMember(gid_t gid, const std::string& user) {
  std::array<char, 4096> buffer;
  group entry;
  group* found = nullptr;
  if (::getgrgid_r(gid, &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return false;
  for (char** member = found->gr_mem; *member != nullptr; ++member) {
    if (user == *member) return true;
  }
  return false;
}

std::string UserName(uid_t uid) {
  std::array<char, 4096> buffer;
  passwd entry;
  passwd* found = nullptr;
  const bool known = ::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr;
  return known ? found->pw_name : Text(uid);
}

std::string OwnGroups() {
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(::getgroups(0, nullptr), 0)));
  const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<std::size_t>(std::max(count, 0)));
  if (groups.empty()) groups.push_back(::getegid());
  std::string names;
  for (const gid_t gid : groups) names += (names.empty() ? "" : " ") + GroupName(gid);
  return names;
}

PlainStatus NotListening(const std::string& path, std::string_view cause) {
  const std::string directory = DirectoryOf(path);
  return PlainError(PlainCode::kUnavailable,
                    Text("no lgpud at ", directory, " (", std::string(cause), ")\n  try: lgpud --dir ",
                         directory, "    or    export LGPU_ENDPOINT=DIR of a running lgpud"));
}

PlainStatus NoRight(const std::string& path) {
  const std::string directory = DirectoryOf(path);
  const std::string user = UserName(::geteuid());
  struct stat info = {};
  if (::stat(directory.c_str(), &info) != 0) {
    return PlainError(PlainCode::kPermissionDenied,
                      Text("a folder above ", directory, " is closed to ", user,
                           "\n  try: another runtime directory in LGPU_ENDPOINT"));
  }
  if ((info.st_mode & S_IXGRP) == 0) {
    return PlainError(PlainCode::kPermissionDenied,
                      Text(directory, " is open to its owner ", UserName(info.st_uid), " only; you are ",
                           user, "\n  try: a daemon of your own: lgpud --dir DIR"));
  }
  const std::string group = GroupName(info.st_gid);
  const std::string what =
      Text(directory, " belongs to group ", group, "; you are ", user, ", groups: ", OwnGroups());
  if (info.st_gid == 0) {
    return PlainError(PlainCode::kPermissionDenied,
                      Text(what,
                           "\n  try: as root: groupadd --system lgpu, then start lgpud again: it gives the "
                           "directory to that group"));
  }
  if (IsMember(info.st_gid, user)) {
    return PlainError(PlainCode::kPermissionDenied,
                      Text(what, "\n  try: log in again: you were put into group ", group, " since"));
  }
  return PlainError(PlainCode::kPermissionDenied,
                    Text(what, "\n  try: as root: usermod -aG ", group, " ", user, "    then log in again"));
}

PlainStatus ConnectError(const std::string& path, int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return NotListening(path, "no such file");
    case ECONNREFUSED:
      return NotListening(path, "no process listens at its socket");
    case EPROTOTYPE:
      return NotListening(path, "its socket is of another kind");
    case EAGAIN:
      return PlainError(PlainCode::kUnavailable,
                        Text("lgpud at ", DirectoryOf(path),
                             " takes no connections (its queue is full)\n"
                             "  try: again later, or see whether that daemon is stopped or hangs"));
    case EACCES:
    case EPERM:
      return NoRight(path);
    default:
      return PlainError(PlainCode::kUnavailable,
                        Text("cannot connect to lgpud at ", DirectoryOf(path), ": ", std::strerror(error)));
  }
}

// The time that a blocking connect may wait for a place in the daemon's queue.
void SetSendTimeout(int socket, std::chrono::microseconds timeout) {
  timeval value = {.tv_sec = static_cast<time_t>(timeout.count() / 1000000),
                   .tv_usec = static_cast<suseconds_t>(timeout.count() % 1000000)};
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &value, sizeof(value));
}

}  // namespace

PlainResult<UniqueFd> ConnectUnix(const std::string& path, int type, std::chrono::milliseconds patience) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return PlainError(
        PlainCode::kInvalidArgument,
        Text("the socket path ", path, " has ", path.size(), " bytes; from 1 to ",
             sizeof(address.sun_path) - 1, " are possible\n  try: a runtime directory with a shorter path"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!socket) {
    return PlainError(PlainCode::kResourceExhausted,
                      Text("no socket to talk to lgpud: ", std::strerror(errno),
                           "; raise the limit of open files: ulimit -n 16384"));
  }
  const Clock::time_point deadline = Clock::now() + patience;
  int error = EAGAIN;
  // A signal ends the wait early: waits for the rest of the time.
  for (auto left = Clock::duration(patience); left > Clock::duration::zero();
       left = deadline - Clock::now()) {
    // Zero microseconds would mean "for ever".
    SetSendTimeout(socket.get(), std::chrono::duration_cast<std::chrono::microseconds>(left) +
                                     std::chrono::microseconds(1));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      SetSendTimeout(socket.get(), std::chrono::microseconds(0));
      return socket;
    }
    error = errno;
    if (error != EINTR && error != EAGAIN) break;
    error = EAGAIN;
  }
  return ConnectError(path, error);
}

}  // namespace lgpu
