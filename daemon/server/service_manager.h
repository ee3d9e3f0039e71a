#ifndef LGPU_DAEMON_SERVER_SERVICE_MANAGER_H_
#define LGPU_DAEMON_SERVER_SERVICE_MANAGER_H_

#include <chrono>
#include <optional>
#include <string_view>

namespace lgpu::daemon {

/// Sends `state` ("READY=1") to the service manager that NOTIFY_SOCKET names, as sd_notify does; does
/// nothing where there is none.
void NotifyServiceManager(std::string_view state);

/// Half of the time in which the service manager wants WATCHDOG=1 of this process, so that one late message
/// does no harm; nothing where it does not watch.
std::optional<std::chrono::milliseconds> WatchdogPeriod();

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_SERVICE_MANAGER_H_
