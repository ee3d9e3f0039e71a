#include "client/session/endpoint.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "allocator/device/simulated/simulated_spec.h"
#include "base/nvidia_driver.h"
#include "client/session/daemon_program.h"
#include "lgpu/status.h"
#include "proto/wire/channel.h"
#include "proto/wire/connect.h"

namespace lgpu {
namespace {

std::optional<std::string> Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

bool IsTrusted(std::uint32_t uid) { return uid == 0 || uid == ::geteuid(); }

absl::Status NotTrusted(const std::string& what, std::uint32_t uid) {
  return absl::PermissionDeniedError(what + " belongs to user " + std::to_string(uid) +
                                     "; every user can make a directory there, so lgpu does not use it\n  "
                                     "try: remove it, or name the directory "
                                     "in LGPU_ENDPOINT if you trust that user");
}

// Whether every user may make directories beside this one, as in /tmp.
bool LiesInOpenFolder(const std::string& directory) {
  struct stat above = {};
  return ::stat(directory.substr(0, directory.rfind('/') + 1).c_str(), &above) == 0 &&
         (above.st_mode & S_IWOTH) != 0;
}

absl::StatusOr<UniqueFd> ConnectToDefault(const std::string& directory) {
  if (!LiesInOpenFolder(directory)) return ConnectUnix(ControlSocketPath(directory), SOCK_STREAM);
  struct stat info = {};
  if (::lstat(directory.c_str(), &info) == 0 && !IsTrusted(info.st_uid)) {
    return NotTrusted(directory, info.st_uid);
  }
  LGPU_ASSIGN_OR_RETURN(UniqueFd socket, ConnectUnix(ControlSocketPath(directory), SOCK_STREAM));
  LGPU_ASSIGN_OR_RETURN(const PeerCredentials peer, GetPeerCredentials(socket.get()));
  if (!IsTrusted(peer.uid)) return NotTrusted("the lgpud at " + directory, peer.uid);
  return socket;
}

}  // namespace

EndpointEnvironment EndpointEnvironment::OfThisProcess() {
  EndpointEnvironment environment;
  environment.endpoint = Variable("LGPU_ENDPOINT");
  environment.runtime_dir = Variable("XDG_RUNTIME_DIR");
  environment.uid = ::getuid();
  return environment;
}

absl::StatusOr<Endpoint> ResolveEndpoint(const std::string& option, const EndpointEnvironment& environment) {
  const std::string named = !option.empty() ? option : environment.endpoint.value_or("");
  if (named == "local") return Endpoint{.local = true};
  constexpr std::string_view kLocal = "local:";
  if (named.starts_with(kLocal)) {
    LGPU_ASSIGN_OR_RETURN(std::vector<Bytes> simulated, ParseSimulatedSpec(named.substr(kLocal.size())));
    return Endpoint{.local = true, .simulated = std::move(simulated)};
  }
  if (!named.empty()) return Endpoint{.directories = {named}};
  const bool has_runtime_dir = environment.runtime_dir.has_value() && !environment.runtime_dir->empty();
  return Endpoint{.directories = {environment.system_dir,
                                  has_runtime_dir ? *environment.runtime_dir + "/lgpu"
                                                  : "/tmp/lgpu-" + std::to_string(environment.uid)},
                  .is_default = true};
}

std::string SessionSocketPath(const std::string& directory) { return directory + "/session.sock"; }
std::string ControlSocketPath(const std::string& directory) { return directory + "/control.sock"; }

namespace {

std::string FirstLine(const absl::Status& status) {
  const std::string text(status.message());
  return text.substr(0, text.find('\n'));
}

/// Whether systemd runs here and has lgpud's unit, which packages and `cmake --install` bring.
bool HasService() {
  if (::access("/run/systemd/system", F_OK) != 0) return false;
  for (const char* const folder : {"/etc", "/usr/local/lib", "/usr/lib", "/lib"}) {
    if (::access((std::string(folder) + "/systemd/system/lgpud.service").c_str(), F_OK) == 0) return true;
  }
  return false;
}

/// Advice: the commands that start a daemon in one of the directories, and the endpoint that needs none.
std::string HowToStart(const Endpoint& endpoint) {
  const bool named = endpoint.directories.size() == 1;
  const std::string dir = named ? " --dir " + endpoint.directories.front() : "";
  const std::string lgpud = DaemonProgramOfThisProcess();
  std::vector<std::string> lines;
  if (!named && HasService()) {
    lines.emplace_back("systemctl start lgpud    (as root: the daemon of this machine)");
  }
  if (HasNvidiaDriver()) lines.push_back(lgpud + dir + " &    (a daemon of your own)");
  lines.push_back(lgpud + " --simulate 2x1GiB" + dir + " &    (" +
                  (HasNvidiaDriver() ? "" : "there is no NVIDIA driver here: ") + "simulated GPUs)");
  if (named) lines.emplace_back("export LGPU_ENDPOINT=DIR of a running lgpud");
  if (endpoint.may_be_local) {
    lines.emplace_back("LGPU_ENDPOINT=local:2x1GiB simulates two GPUs in this program alone");
  }
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "\n  try: " : "\n       ") + line;
  return text;
}

}  // namespace

absl::StatusOr<DaemonSocket> FindDaemon(const Endpoint& endpoint) {
  absl::Status first;
  std::string others;
  bool nobody = true;
  for (const std::string& directory : endpoint.directories) {
    absl::StatusOr<UniqueFd> socket =
        endpoint.is_default
            ? ConnectToDefault(directory)
            : absl::StatusOr<UniqueFd>(ConnectUnix(ControlSocketPath(directory), SOCK_STREAM));
    // Not before: a non-blocking connect fails while the backlog is full, as when many programs start at
    // once.
    if (socket.ok() && ::fcntl(socket->get(), F_SETFL, O_NONBLOCK) == 0) {
      return DaemonSocket{directory, *std::move(socket)};
    }
    const absl::Status status =
        socket.ok() ? absl::InternalError("fcntl(O_NONBLOCK) failed on a socket") : socket.status();
    nobody = nobody && FirstLine(status).starts_with("no lgpud at ");
    if (first.ok() || (absl::IsUnavailable(first) && absl::IsPermissionDenied(status))) {
      first = status;
    } else {
      others += "\n       " + FirstLine(status);
    }
  }
  // An error of a running daemon has its own advice; only "no lgpud" gets the lines of HowToStart.
  const std::string what = nobody ? FirstLine(first) : std::string(first.message());
  return absl::Status(first.code(), what + others + (nobody ? HowToStart(endpoint) : ""));
}

}  // namespace lgpu
