#ifndef LGPU_DAEMON_HTTP_HTTP_ADDRESS_H_
#define LGPU_DAEMON_HTTP_HTTP_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/server/config.h"

namespace lgpu::daemon {

/// Where to listen for HTTP.
struct HttpAddress {
  std::string host;  // without brackets
  int port = 0;
  bool loopback = false;
};

/// Whether a host (a name or an address) is this machine only.
bool IsLoopback(const std::string& host);

/// Whether a header Host names this machine only: a loopback host, in brackets where it is an IPv6 address,
/// and nothing behind it but a port.
bool NamesLoopback(const std::string& host_header);

/// Reads "127.0.0.1:9400", "[::1]:9400", "localhost:9400", or a port alone: "9400" is 127.0.0.1:9400.
/// INVALID_ARGUMENT for anything else.
absl::StatusOr<HttpAddress> ParseHttpAddress(const std::string& text);

/// OK for no address at all; INVALID_ARGUMENT if it cannot be, or is no loopback and there is no token.
absl::Status CheckHttpListen(const HttpConfig& config);

/// The token in a file, its first line; empty for no file. INVALID_ARGUMENT: it cannot be read, or is short.
absl::StatusOr<std::string> ReadHttpToken(const std::string& path);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_HTTP_HTTP_ADDRESS_H_
