#include "daemon/server/service_manager.h"

#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "base/unique_fd.h"

namespace lgpu::daemon {

void NotifyServiceManager(std::string_view state) {
  const char* variable = std::getenv("NOTIFY_SOCKET");
  const std::string_view path(variable == nullptr ? "" : variable);
  sockaddr_un address = {};
  if (path.empty() || (path[0] != '/' && path[0] != '@') || path.size() >= sizeof address.sun_path) return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || ::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL,
                          reinterpret_cast<const sockaddr*>(&address), size) < 0) {
    spdlog::warn("cannot tell the service manager '{}': {}", state, std::strerror(errno));
  }
}

std::optional<std::chrono::milliseconds> WatchdogPeriod() {
  const auto number = [](const char* name) {
    const char* text = std::getenv(name);
    std::uint64_t value = 0;
    return text != nullptr && absl::SimpleAtoi(text, &value) ? value : 0;
  };
  const std::uint64_t microseconds = number("WATCHDOG_USEC");
  const std::uint64_t pid = number("WATCHDOG_PID");
  if (microseconds == 0 || (pid != 0 && pid != static_cast<std::uint64_t>(::getpid()))) return std::nullopt;
  return std::chrono::milliseconds(std::max<std::uint64_t>(microseconds / 2000, 1));
}

}  // namespace lgpu::daemon
