#include "client/endpoint.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "allocator/device/simulated_spec.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

std::optional<std::string> Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

/// A connected SOCK_STREAM socket, or errno as a negative number.
int ConnectStream(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return -ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return -errno;
  int result;
  do {
    result = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  } while (result != 0 && errno == EINTR);
  // Blocking until here: a non-blocking connect fails with EAGAIN while the backlog is full, which is what
  // many programs that start at once bring about.
  if (result != 0 || ::fcntl(fd.get(), F_SETFL, O_NONBLOCK) != 0) return -errno;
  return fd.Release();
}

std::string_view CauseText(int error_number) {
  switch (error_number) {
    case ENOENT:
      return "no such file";
    case ECONNREFUSED:
      return "its socket is there, but no process listens on it";
    case ENOTDIR:
      return "not a directory";
    case ENAMETOOLONG:
      return "its path is too long for a socket (107 bytes)";
    case EPROTOTYPE:
      return "its socket is not of lgpud's kind";
    default:
      return {};
  }
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
                                                  : "/tmp/lgpu-" + std::to_string(environment.uid)}};
}

std::string SessionSocketPath(const std::string& directory) { return directory + "/session.sock"; }
std::string ControlSocketPath(const std::string& directory) { return directory + "/control.sock"; }

absl::Status NoDaemonError(const std::string& directory, int error_number) {
  if (error_number == EACCES || error_number == EPERM) {
    return absl::PermissionDeniedError(
        "no right to talk to the lgpud at " + directory + " (" + std::strerror(error_number) +
        "); uid " + std::to_string(::getuid()) +
        " is not in the group of its sockets\n"
        "  try: sudo usermod -aG lgpu $USER, then log in again    or    export LGPU_ENDPOINT=DIR of a lgpud of yours");
  }
  const std::string_view known = CauseText(error_number);
  return absl::UnavailableError(
      "no lgpud at " + directory + " (" + (known.empty() ? std::strerror(error_number) : std::string(known)) +
      ")\n  try: sudo systemctl start lgpud    or    lgpud --dir DIR and export LGPU_ENDPOINT=DIR    or    "
      "LGPU_ENDPOINT=local:2x1GiB (this process alone, simulated GPUs)");
}

absl::StatusOr<DaemonSocket> FindDaemon(const Endpoint& endpoint) {
  int first_error = ENOENT;
  std::string also;
  bool first = true;
  for (const std::string& directory : endpoint.directories) {
    const int fd = ConnectStream(ControlSocketPath(directory));
    if (fd >= 0) return DaemonSocket{directory, UniqueFd(fd)};
    if (first) {
      first_error = -fd;
    } else {
      also += (also.empty() ? " and " : ", ") + directory;
    }
    first = false;
  }
  const std::string named = endpoint.directories.empty() ? std::string("(nowhere)") : endpoint.directories.front();
  // The first one's cause is what helps: a right that is missing there matters more than an empty second.
  return NoDaemonError(first_error == ENOENT ? named + also : named, first_error);
}

}  // namespace lgpu
