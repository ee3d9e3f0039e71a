#include "daemon/server/lease_directories.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/server/hook_link.h"
#include "daemon/server/server_dir.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

// As of the sockets that serve all leases.
constexpr int kLeaseBacklog = 64;
constexpr int kAcceptPauseMs = 50;
constexpr char kSessionSocket[] = "session.sock";
constexpr char kControlSocket[] = "control.sock";
constexpr std::array kSockets = {kSessionSocket, kControlSocket};

// The folder with the sockets, in the lease's own. Only root and the lease's owner can enter that one, so a
// process that reaches the sockets was given them: any user may connect.
constexpr char kServedFolder[] = "/run";

absl::Status MakeFolder(const std::string& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make the directory ", path));
  }
  if (::chmod(path.c_str(), mode) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot set the mode of ", path));
  }
  return absl::OkStatus();
}

/// Lets the user pass through the root's folder, and nothing else: a container that they start without root
/// mounts what lies in it. A folder of their own would let them replace what lgpud makes there.
absl::Status LetPass(const std::string& path, std::uint32_t uid) {
  // The kernel's form of an access control list (linux/posix_acl_xattr.h): version, then tag, rights and id.
  constexpr std::uint32_t kNoId = 0xffffffff;
  struct Entry {
    std::uint16_t tag, rights;
    std::uint32_t id;
  };
  const struct {
    std::uint32_t version;
    Entry entries[5];
  } list = {2, {{0x01, 7, kNoId}, {0x02, 1, uid}, {0x04, 0, kNoId}, {0x10, 1, kNoId}, {0x20, 0, kNoId}}};
  const int failed = ::setxattr(path.c_str(), "system.posix_acl_access", &list, sizeof(list), 0);
  if (failed == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot let user ", uid, " into ", path));
}

/// Lets every user connect to the socket. Follows no link: a container may have put one in its place.
bool OpenToAll(const std::string& path) {
  const UniqueFd node(::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat info = {};
  return node && ::fstat(node.get(), &info) == 0 && S_ISSOCK(info.st_mode) &&
         ::chmod(absl::StrCat("/proc/self/fd/", node.get()).c_str(), 0666) == 0;
}

/// Removes a lease's folder with the sockets that lgpud made there. OK: it is gone. A container may have put
/// other files in it, however many and however deep: these stay, and the folder with them.
absl::Status RemoveFolder(const std::string& path) {
  const std::string served = path + kServedFolder;
  for (const char* const socket : kSockets) ::unlink(absl::StrCat(served, "/", socket).c_str());
  if (::rmdir(served.c_str()) != 0 && errno != ENOENT) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove ", served));
  }
  if (::rmdir(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove ", path));
}

absl::StatusOr<UniqueFd> Listen(const std::string& path, int type) {
  ::unlink(path.c_str());  // an earlier daemon's
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return absl::ErrnoToStatus(errno, absl::StrCat("cannot make the socket ", path));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      !OpenToAll(path) || ::listen(socket.get(), kLeaseBacklog) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot listen on ", path));
  }
  return socket;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LeaseDirectories>> LeaseDirectories::Start(
    const std::string& runtime_directory, Handlers handlers) {
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<PollWaker> waker, PollWaker::Create());
  LinkHook(runtime_directory);
  std::unique_ptr<LeaseDirectories> directories(new LeaseDirectories(
      absl::StrCat(runtime_directory, "/leases"), std::move(handlers), std::move(waker)));
  LGPU_ASSIGN_OR_RETURN(directories->thread_,
                        Thread::Start("lgpud-leases", [raw = directories.get()] { raw->Run(); }));
  return directories;
}

absl::StatusOr<std::string> LeaseDirectories::Open(const LeaseTable::WithDirectory& lease) {
  MutexLock lock(mutex_);
  if (stopping_) return absl::UnavailableError("the daemon is stopping");
  LinkHook(std::filesystem::path(parent_).parent_path());
  if (const auto found = served_.find(lease.id); found != served_.end()) return found->second->path;
  auto served = std::make_shared<Served>();
  served->key = lease.key;
  served->owner = lease.owner;
  const std::string own = absl::StrCat(parent_, "/", lease.id);
  served->path = own + kServedFolder;
  LGPU_RETURN_IF_ERROR(CheckSocketPath(served->path));
  LGPU_RETURN_IF_ERROR(MakeFolder(parent_, 0711));
  LGPU_RETURN_IF_ERROR(MakeFolder(own, 0700));
  if (lease.owner != ::geteuid()) {
    if (const absl::Status passes = LetPass(own, lease.owner); !passes.ok()) {
      spdlog::warn("{}: containers that they start without root cannot have lease {}",
                   std::string(passes.message()), lease.id);
    }
  }
  LGPU_RETURN_IF_ERROR(MakeFolder(served->path, 0755));
  LGPU_ASSIGN_OR_RETURN(served->session,
                        Listen(absl::StrCat(served->path, "/", kSessionSocket), SOCK_SEQPACKET));
  LGPU_ASSIGN_OR_RETURN(served->control,
                        Listen(absl::StrCat(served->path, "/", kControlSocket), SOCK_STREAM));
  const std::string path = served->path;
  served_.emplace(lease.id, std::move(served));
  waker_->Wake();
  return path;
}

std::vector<LeaseKey> LeaseDirectories::RemoveEnded(const LeaseTable& leases) {
  std::vector<LeaseKey> removed;
  // Under the lock, which Open holds: a folder that is being made is kept, since its lease is marked before.
  MutexLock lock(mutex_);
  const std::set<std::string> kept = leases.KeptDirectories();
  for (auto entry = served_.begin(); entry != served_.end();) {
    if (kept.contains(entry->first)) {
      ++entry;
      continue;
    }
    removed.push_back(entry->second->key);
    entry = served_.erase(entry);
  }
  if (!removed.empty()) waker_->Wake();
  std::error_code error;
  for (const auto& folder : std::filesystem::directory_iterator(parent_, error)) {
    const std::string id = folder.path().filename().string();
    if (kept.contains(id)) continue;
    const absl::Status gone = RemoveFolder(folder.path().string());
    if (gone.ok() || !left_.insert(id).second) continue;
    spdlog::warn("{}; lgpud leaves what is there: remove it by hand", std::string(gone.message()));
  }
  return removed;
}

void LeaseDirectories::Run() {
  while (true) {
    std::vector<std::shared_ptr<const Served>> all;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      for (const auto& [id, served] : served_) all.push_back(served);
    }
    std::vector<pollfd> polled = {{.fd = waker_->fd(), .events = POLLIN, .revents = 0}};
    for (const auto& served : all) {
      polled.push_back({.fd = served->control.get(), .events = POLLIN, .revents = 0});
      polled.push_back({.fd = served->session.get(), .events = POLLIN, .revents = 0});
    }
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;
    if (polled[0].revents != 0) waker_->Clear();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (polled[1 + 2 * i].revents != 0) Accept(*all[i], all[i]->control.get(), handlers_.control);
      if (polled[2 + 2 * i].revents != 0) Accept(*all[i], all[i]->session.get(), handlers_.session);
    }
  }
}

void LeaseDirectories::Accept(const Served& served, int listening, const Handler& handler) {
  UniqueFd socket(::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket) {
    // Out of descriptors the socket stays readable: going on at once would spin.
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) ::poll(nullptr, 0, kAcceptPauseMs);
    return;
  }
  absl::StatusOr<PeerCredentials> peer = GetPeerCredentials(socket.get());
  if (!peer.ok()) {
    spdlog::warn("a connection to {} has no credentials: {}", served.path,
                 std::string(peer.status().message()));
    return;
  }
  peer->uid = served.owner;
  handler(std::move(socket), *peer, served.key);
}

void LeaseDirectories::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  waker_->Wake();
  thread_.Join();
}

}  // namespace lgpu::daemon
