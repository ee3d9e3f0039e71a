#include "cli/driver_namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "cli/driver_files.h"
#include "cli/shim_file.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

namespace fs = std::filesystem;

// The lease's variables that a program needs when its environment was cleared.
constexpr const char* kNoted[] = {"LGPU_LEASE", "LGPU_ENDPOINT", "LGPU_MEMORY_WAIT_MS",
                                  "CUDA_VISIBLE_DEVICES"};

absl::Status CannotMount(const std::string& what, int cause) {
  return absl::FailedPreconditionError(absl::StrCat(
      what, ": ", std::strerror(cause),
      "\ntry: `lgpu run` without --isolate, which limits programs that keep the variables that lgpu sets"));
}

absl::Status WriteFile(const fs::path& path, std::string_view bytes, mode_t mode = 0) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | (mode == 0 ? 0 : O_CREAT | O_EXCL), mode));
  if (!fd) return CannotMount(path.string(), errno);
  // Sets the mode despite the umask: a command that becomes another user reads the file too.
  if (mode != 0 && ::fchmod(fd.get(), mode) != 0) return CannotMount(path.string(), errno);
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd.get(), bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return CannotMount(path.string(), errno);
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return absl::OkStatus();
}

absl::Status Bind(const std::string& file, const std::string& over) {
  if (::mount(file.c_str(), over.c_str(), nullptr, MS_BIND, nullptr) == 0) return absl::OkStatus();
  return CannotMount(absl::StrCat("a mount over ", over), errno);
}

absl::Status EnterUserNamespace() {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "user ", uid,
        " may make no mount namespace, nor a user namespace that would allow it: ", std::strerror(errno),
        "\ntry: as root; or let users make namespaces (sysctl user.max_user_namespaces, "
        "kernel.unprivileged_userns_clone); a container needs CAP_SYS_ADMIN; or leave --isolate out"));
  }
  // The kernel asks for this before a user may map their group.
  if (const absl::Status denied = WriteFile("/proc/self/setgroups", "deny"); !denied.ok()) return denied;
  LGPU_RETURN_IF_ERROR(WriteFile("/proc/self/uid_map", absl::StrCat(uid, " ", uid, " 1")));
  return WriteFile("/proc/self/gid_map", absl::StrCat(gid, " ", gid, " 1"));
}

absl::Status EnterNamespace() {
  if (::unshare(CLONE_NEWNS) != 0) {
    if (errno != EPERM) return CannotMount("a mount namespace", errno);
    LGPU_RETURN_IF_ERROR(EnterUserNamespace());
  }
  // Later mounts of the machine appear here; mounts made here do not appear there.
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) {
    return CannotMount("mounts of its own (mount of / as a slave)", errno);
  }
  return absl::OkStatus();
}

/// A file of the folder that is made anew in the namespace.
struct Piece {
  std::string name;
  std::string real_name;  // "": a link to `target`
  std::string target;     // of the link: where it leads, or the real library's file
  std::string bytes;      // of lgpu's library
};

std::string NotedVariables() {
  std::string text;
  for (const char* const name : kNoted) {
    if (const char* const value = std::getenv(name); value != nullptr) {
      absl::StrAppend(&text, name, "=", value, "\n");
    }
  }
  return text;
}

/// The content of the folder before it is covered.
absl::StatusOr<std::vector<Piece>> ReadPieces(const fs::path& folder) {
  std::vector<Piece> pieces;
  std::error_code error;
  for (const ShimmedLibrary& library : {kCuda, kNvml}) {
    if (!fs::exists(folder / library.name, error)) continue;
    const std::string path = fs::canonical(folder / library.name, error).string();
    if (error) return CannotMount((folder / library.name).string(), error.value());
    const std::string real = fs::canonical(folder / library.real, error).string();
    if (error) return CannotMount((folder / library.real).string(), error.value());
    LGPU_ASSIGN_OR_RETURN(const std::optional<shim::ShimFile> file, ReadShimFile(path, library.real));
    if (!file) return absl::FailedPreconditionError(absl::StrCat(path, " is not one of lgpu's libraries"));
    LGPU_ASSIGN_OR_RETURN(std::string bytes, CopyOfShim(*file, folder.string(), NotedVariables()));
    pieces.push_back(
        {.name = library.name, .real_name = library.real, .target = real, .bytes = std::move(bytes)});
  }
  const std::string redirect = fs::canonical(folder / kRedirectName, error).string();
  if (error) return CannotMount((folder / kRedirectName).string(), error.value());
  pieces.push_back({.name = kRedirectName, .real_name = {}, .target = redirect, .bytes = {}});
  pieces.push_back({.name = "libcuda.so", .real_name = {}, .target = "libcuda.so.1", .bytes = {}});
  return pieces;
}

/// What a file system needs to hold the pieces: their bytes in whole pages, and room for the folder itself.
std::size_t BytesOf(const std::vector<Piece>& pieces) {
  constexpr std::size_t kMostPage = 64 * 1024;  // of the processors that Linux runs on
  std::size_t bytes = 16 * kMostPage;
  for (const Piece& piece : pieces) bytes += piece.bytes.size() + kMostPage;
  return bytes;
}

absl::Status MakePiece(const fs::path& folder, const Piece& piece) {
  if (piece.real_name.empty()) {
    if (::symlink(piece.target.c_str(), (folder / piece.name).c_str()) != 0) {
      return CannotMount((folder / piece.name).string(), errno);
    }
    return absl::OkStatus();
  }
  LGPU_RETURN_IF_ERROR(WriteFile(folder / piece.name, piece.bytes, 0755));
  LGPU_RETURN_IF_ERROR(WriteFile(folder / piece.real_name, "", 0755));
  return Bind(piece.target, folder / piece.real_name);
}

}  // namespace

absl::Status EnterDriverNamespace(const Isolation& isolation) {
  const fs::path folder = isolation.folder;
  LGPU_ASSIGN_OR_RETURN(const std::vector<Piece> pieces, ReadPieces(folder));
  LGPU_RETURN_IF_ERROR(EnterNamespace());
  // A file system in memory: the folder's own one may forbid programs (noexec), and each run has its own
  // lease.
  const std::string with = absl::StrCat("mode=0755,size=", BytesOf(pieces));
  if (::mount("lgpu", folder.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, with.c_str()) != 0) {
    return CannotMount(absl::StrCat("a file system at ", folder.string()), errno);
  }
  for (const Piece& piece : pieces) LGPU_RETURN_IF_ERROR(MakePiece(folder, piece));
  for (const Isolation::Covered& covered : isolation.covered) {
    LGPU_RETURN_IF_ERROR(Bind(folder / covered.soname, covered.file));
  }
  if (::mount(nullptr, folder.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV,
              nullptr) != 0)
    return CannotMount(absl::StrCat(folder.string(), " as read-only"), errno);
  return absl::OkStatus();
}

}  // namespace lgpu::cli
