#ifndef LGPU_CLI_CONNECTION_H_
#define LGPU_CLI_CONNECTION_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/commands/command.h"
#include "cli/control_methods.h"
#include "client/control/control_client.h"
#include "client/session/daemon_connection.h"

namespace lgpu::cli {

/// A Connection makes the command's calls of the daemon's control service. Not thread-safe.
class Connection {
 public:
  /// Finds the daemon as the library does and connects. UNAVAILABLE: no daemon, with the path and the next
  /// step; PERMISSION_DENIED: no right to its socket; INVALID_ARGUMENT: the endpoint is none of a daemon.
  static absl::StatusOr<Connection> Open(const CommonOptions& options);

  /// One unary call: `connection.Call(kGetStats, request)`.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(const UnaryMethod<Request, Response>& method, const Request& request) {
    return CallFor(std::chrono::milliseconds(0), method, request);
  }
  /// As above, for a call that takes `time` beyond that of other calls.
  template <typename Request, typename Response>
  absl::StatusOr<Response> CallFor(std::chrono::milliseconds time,
                                   const UnaryMethod<Request, Response>& method, const Request& request) {
    absl::StatusOr<std::string> answer =
        client_->Call(method.name, request.SerializeAsString(), time + timeout_);
    if (!answer.ok()) return WithHint(answer.status());
    return Parse<Response>(*answer);
  }

  /// One streaming call that ends by itself, within the time of a call; `each` gets every message and ends
  /// the call by returning an error, which comes back.
  template <typename Request, typename Message, typename Each>
  absl::Status Watch(const StreamMethod<Request, Message>& method, const Request& request, const Each& each) {
    return Stream(method, request, timeout_, each);
  }

  /// As Watch, for a stream that has no end, and so no deadline: first asks whether the daemon answers at
  /// all.
  template <typename Request, typename Message, typename Each>
  absl::Status Follow(const StreamMethod<Request, Message>& method, const Request& request,
                      const Each& each) {
    const absl::Status there = Call(kGetVersion, v1::GetVersionRequest()).status();
    return there.ok() ? Stream(method, request, ControlClient::kNoTimeout, each) : there;
  }

  /// As Watch, for a stream that takes `time` beyond that of a call, or has no end. `between` is called every
  /// 50 ms, and may end the call as `each` does.
  template <typename Request, typename Message, typename Each>
  absl::Status Await(const StreamMethod<Request, Message>& method, const Request& request,
                     std::optional<std::chrono::milliseconds> time, const Each& each,
                     const std::function<absl::Status()>& between) {
    return Stream(method, request, time ? *time + timeout_ : ControlClient::kNoTimeout, each, between);
  }

  /// Later calls are made in the name of this session (Welcome.session_token).
  void SetSessionToken(std::string token) { client_->UseToken(std::move(token)); }

  const std::string& runtime_dir() const { return runtime_dir_; }

 private:
  Connection() = default;
  template <typename Message>
  static absl::StatusOr<Message> Parse(const std::string& bytes) {
    Message message;
    if (message.ParseFromString(bytes)) return message;
    return absl::InternalError("the daemon's answer cannot be read; are lgpu and lgpud of one version?");
  }
  template <typename Request, typename Message, typename Each>
  absl::Status Stream(const StreamMethod<Request, Message>& method, const Request& request,
                      std::chrono::milliseconds timeout, const Each& each,
                      const std::function<absl::Status()>& between = {}) {
    return WithHint(client_->Stream(
        method.name, request.SerializeAsString(), timeout,
        [&each](const std::string& bytes) -> absl::Status {
          const absl::StatusOr<Message> message = Parse<Message>(bytes);
          return message.ok() ? each(*message) : message.status();
        },
        between));
  }
  /// Adds advice where the daemon took too long.
  static absl::Status WithHint(const absl::Status& status);

  std::string runtime_dir_;
  std::chrono::milliseconds timeout_{};
  std::shared_ptr<ControlClient> client_;
};

/// What a session of lgpu itself does for its lease.
struct SessionWork {
  bool runs_release = false;  // the release hook
  bool suspends = false;      // programs that it has started
};

/// Opens a session of lgpu itself with the daemon in `runtime_dir`, which keeps a lease alive while a command
/// runs, also when the daemon is started again meanwhile. `command` is its name in lists and events;
/// `timeout`: how long one answer may take; `on_change`: see DaemonConnection::Options. Errors as
/// Connection::Open, and FAILED_PRECONDITION for a daemon of another protocol version.
absl::StatusOr<std::unique_ptr<DaemonConnection>> OpenSession(const std::string& runtime_dir,
                                                              const std::string& command,
                                                              std::chrono::milliseconds timeout,
                                                              std::function<void()> on_change = {},
                                                              SessionWork work = {});

}  // namespace lgpu::cli

#endif  // LGPU_CLI_CONNECTION_H_
