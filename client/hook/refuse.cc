#include "client/hook/refuse.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "base/unique_fd.h"

namespace lgpu::hook {
namespace {

constexpr char kErrorOfDaemon[] = "<27>";  // syslog(3): LOG_DAEMON | LOG_ERR

/// syslog(3) may wait; the runtime's own time for the hook would be over then.
void Log(const std::string& line) {
  const UniqueFd log(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, "/dev/log");
  const std::string message = kErrorOfDaemon + line;
  (void)::sendto(log.get(), message.data(), message.size(), MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

}  // namespace

void Refuse(const std::string& sentence) {
  const std::string line = "lgpu-hook: " + sentence + "\n";
  (void)!::write(STDERR_FILENO, line.data(), line.size());
  Log(line);
  ::_exit(1);
}

std::string Reason(int cause) { return ::strerrordesc_np(cause); }

}  // namespace lgpu::hook
