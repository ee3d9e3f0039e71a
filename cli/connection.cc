#include "cli/connection.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/endpoint.h"
#include "lgpu/status.h"

namespace lgpu::cli {
absl::StatusOr<Connection> Connection::Open(const CommonOptions& options) {
  Connection connection;
  LGPU_ASSIGN_OR_RETURN(Endpoint endpoint,
                        ResolveEndpoint(options.endpoint, EndpointEnvironment::OfThisProcess()));
  if (endpoint.local) {
    return absl::InvalidArgumentError(
        "a `local` endpoint is one process alone: there is no daemon to ask\n"
        "try: --endpoint DIR or LGPU_ENDPOINT=DIR with the runtime directory of a lgpud");
  }
  endpoint.may_be_local = false;
  LGPU_ASSIGN_OR_RETURN(DaemonSocket daemon, FindDaemon(endpoint));
  connection.runtime_dir_ = daemon.directory;
  connection.timeout_ = options.timeout;
  if (options.verbose > 0) options.Note(absl::StrCat("lgpu: using the daemon at ", daemon.directory));
  LGPU_ASSIGN_OR_RETURN(connection.client_,
                        ControlClient::Create(std::move(daemon.control), daemon.directory));
  return connection;
}

absl::Status Connection::WithHint(const absl::Status& status) {
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(absl::StrCat(status.message(), "\ntry: --timeout with more time"));
}

absl::StatusOr<std::unique_ptr<DaemonConnection>> OpenSession(const std::string& runtime_dir,
                                                              const std::string& command,
                                                              std::chrono::milliseconds timeout,
                                                              std::function<void()> on_change,
                                                              SessionWork work) {
  return DaemonConnection::Connect({.directory = runtime_dir,
                                    .answer_timeout = timeout,
                                    .greeting_timeout = timeout,
                                    .reconnect_path = SessionSocketPath(runtime_dir),
                                    .command = command,
                                    .runs_release = work.runs_release,
                                    .suspends = work.suspends,
                                    .makes_no_use = true,
                                    .on_change = std::move(on_change)});
}

}  // namespace lgpu::cli
