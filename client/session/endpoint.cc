#include "client/session/endpoint.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "allocator/device/simulated/simulated_spec.h"
#include "lgpu/status.h"
#include "proto/wire/connect.h"

namespace lgpu {
namespace {

std::optional<std::string> Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
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

absl::StatusOr<DaemonSocket> FindDaemon(const Endpoint& endpoint) {
  absl::Status first;
  std::string others;
  for (const std::string& directory : endpoint.directories) {
    absl::StatusOr<UniqueFd> socket = ConnectUnix(ControlSocketPath(directory), SOCK_STREAM);
    // Not before: a non-blocking connect fails while the backlog is full, as when many programs start at
    // once.
    if (socket.ok() && ::fcntl(socket->get(), F_SETFL, O_NONBLOCK) == 0) {
      return DaemonSocket{directory, *std::move(socket)};
    }
    if (first.ok()) {
      first = socket.ok() ? absl::InternalError("fcntl(O_NONBLOCK) failed on a socket") : socket.status();
    } else {
      others += "\n       there is none at " + directory + " either";
    }
  }
  const char* local = "\n       LGPU_ENDPOINT=local:2x1GiB simulates two GPUs in this program alone";
  return absl::Status(first.code(), std::string(first.message()) + others + local);
}

}  // namespace lgpu
