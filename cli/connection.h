#ifndef LGPU_CLI_CONNECTION_H_
#define LGPU_CLI_CONNECTION_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/commands/command.h"
#include "client/session/daemon_connection.h"
#include "lgpu/v1/control.grpc.pb.h"

namespace lgpu::cli {

/// A Connection is a gRPC channel to the daemon's control socket. Not thread-safe.
class Connection {
 public:
  /// Finds the daemon as the library does and connects. UNAVAILABLE: nobody there, naming the path and what
  /// to try; PERMISSION_DENIED: no right to its socket; INVALID_ARGUMENT: the endpoint is none of a daemon.
  static absl::StatusOr<Connection> Open(const CommonOptions& options);

  /// One unary call: `connection.Call(&v1::Control::Stub::GetStats, request)`.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*,
                                                                          const Request&, Response*),
                                const Request& request) {
    grpc::ClientContext context;
    Prepare(context, timeout_);
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (!status.ok()) return ToStatus(context, status);
    return response;
  }

  /// One streaming call that ends by itself, within the time of a call; `each` gets every message and ends
  /// the call by returning an error, which comes back.
  template <typename Request, typename Message>
  absl::Status Watch(std::unique_ptr<grpc::ClientReader<Message>> (v1::Control::Stub::*method)(
                         grpc::ClientContext*, const Request&),
                     const Request& request, const std::function<absl::Status(const Message&)>& each) {
    return Stream(method, request, each, timeout_);
  }

  /// The same for a stream that has no end, and so no deadline: whether the daemon answers at all is asked
  /// before.
  template <typename Request, typename Message>
  absl::Status Follow(std::unique_ptr<grpc::ClientReader<Message>> (v1::Control::Stub::*method)(
                          grpc::ClientContext*, const Request&),
                      const Request& request, const std::function<absl::Status(const Message&)>& each) {
    const absl::Status there = Call(&v1::Control::Stub::GetVersion, v1::GetVersionRequest()).status();
    return there.ok() ? Stream(method, request, each, {}) : there;
  }

  /// Calls are made in the name of this session from here on (Welcome.session_token).
  void SetSessionToken(std::string token) { token_ = std::move(token); }

  const std::string& runtime_dir() const { return runtime_dir_; }

 private:
  Connection() = default;
  template <typename Request, typename Message>
  absl::Status Stream(std::unique_ptr<grpc::ClientReader<Message>> (v1::Control::Stub::*method)(
                          grpc::ClientContext*, const Request&),
                      const Request& request, const std::function<absl::Status(const Message&)>& each,
                      std::chrono::milliseconds timeout) {
    grpc::ClientContext context;
    Prepare(context, timeout);
    auto reader = (stub_.get()->*method)(&context, request);
    Message message;
    while (reader->Read(&message)) {
      if (absl::Status status = each(message); !status.ok()) {
        context.TryCancel();
        reader->Finish();
        return status;
      }
    }
    return ToStatus(context, reader->Finish());
  }
  void Prepare(grpc::ClientContext& context, std::chrono::milliseconds timeout) const;
  absl::Status ToStatus(const grpc::ClientContext& context, const grpc::Status& status) const;

  std::string runtime_dir_;
  std::chrono::milliseconds timeout_{};
  std::string token_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Control::Stub> stub_;
};

/// Opens a session of lgpu itself with the daemon in `runtime_dir`, which keeps a lease alive while a command
/// runs, also when the daemon is started again meanwhile. `command` is what others see of it; `timeout`: how
/// long one answer may take; `on_change`: see DaemonConnection::Options. Errors as Connection::Open, and
/// FAILED_PRECONDITION for a daemon of another protocol version.
absl::StatusOr<std::unique_ptr<DaemonConnection>> OpenSession(const std::string& runtime_dir,
                                                              const std::string& command,
                                                              std::chrono::milliseconds timeout,
                                                              std::function<void()> on_change = {});

}  // namespace lgpu::cli

#endif  // LGPU_CLI_CONNECTION_H_
