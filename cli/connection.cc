#include "cli/connection.h"

#include <grpcpp/create_channel_posix.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/thread_room.h"
#include "client/session/endpoint.h"
#include "lgpu/status.h"
#include "proto/refusal_codec.h"

namespace lgpu::cli {
namespace {

constexpr char kTokenKey[] = "lgpu-session-token-bin";
constexpr char kDetailsKey[] = "grpc-status-details-bin";

}  // namespace

absl::StatusOr<Connection> Connection::Open(const CommonOptions& options) {
  Connection connection;
  LGPU_ASSIGN_OR_RETURN(const Endpoint endpoint,
                        ResolveEndpoint(options.endpoint, EndpointEnvironment::OfThisProcess()));
  if (endpoint.local) {
    return absl::InvalidArgumentError(
        "a `local` endpoint is one process alone: there is no daemon to ask\n"
        "try: --endpoint DIR or LGPU_ENDPOINT=DIR with the runtime directory of a lgpud");
  }
  LGPU_ASSIGN_OR_RETURN(DaemonSocket daemon, FindDaemon(endpoint));
  connection.runtime_dir_ = daemon.directory;
  connection.timeout_ = options.timeout;
  if (options.verbose > 0) options.Note(absl::StrCat("lgpu: using the daemon at ", daemon.directory));
  LGPU_RETURN_IF_ERROR(CheckThreadRoom());
  connection.channel_ = grpc::CreateInsecureChannelFromFd("lgpud", daemon.control.Release());
  connection.stub_ = v1::Control::NewStub(connection.channel_);
  return connection;
}

void Connection::Prepare(grpc::ClientContext& context, std::chrono::milliseconds timeout) const {
  if (timeout.count() > 0) {
    // Of the clock that nobody sets.
    context.set_deadline(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(timeout.count(), GPR_TIMESPAN)));
  }
  if (!token_.empty()) context.AddMetadata(kTokenKey, token_);
}

absl::Status Connection::ToStatus(const grpc::ClientContext& context, const grpc::Status& status) const {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (code == absl::StatusCode::kDeadlineExceeded) {
    return absl::DeadlineExceededError(
        absl::StrFormat("the daemon at %s did not answer within %.1fs\ntry: --timeout with more time",
                        runtime_dir_, static_cast<double>(timeout_.count()) / 1e3));
  }
  if (code == absl::StatusCode::kUnavailable) {
    return absl::UnavailableError(absl::StrCat("the daemon at ", runtime_dir_, ": ", status.error_message()));
  }
  const absl::Status plain(code, status.error_message());
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto details = trailers.find(kDetailsKey);
  if (details == trailers.end()) return plain;
  return DecodeStatusDetails(plain, std::string_view(details->second.data(), details->second.size()));
}

absl::StatusOr<std::unique_ptr<DaemonConnection>> OpenSession(const std::string& runtime_dir,
                                                              const std::string& command,
                                                              std::chrono::milliseconds timeout,
                                                              std::function<void()> on_change) {
  const std::string path = SessionSocketPath(runtime_dir);
  LGPU_ASSIGN_OR_RETURN(SessionChannel channel, SessionChannel::Connect(path));
  return DaemonConnection::Open(std::move(channel), {.directory = runtime_dir,
                                                     .answer_timeout = timeout,
                                                     .greeting_timeout = timeout,
                                                     .reconnect_path = path,
                                                     .command = command,
                                                     .on_change = std::move(on_change)});
}

}  // namespace lgpu::cli
