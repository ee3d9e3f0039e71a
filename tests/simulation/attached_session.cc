#include "tests/simulation/attached_session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/endpoint.h"
#include "lgpu/status.h"

namespace lgpu::simulation {
namespace {

absl::StatusOr<std::unique_ptr<DaemonConnection>> Open(const std::string& lease,
                                                       DaemonConnection::Options options) {
  options.reconnect_path = SessionSocketPath(options.directory);
  LGPU_ASSIGN_OR_RETURN(std::unique_ptr<DaemonConnection> session,
                        DaemonConnection::Connect(std::move(options)));
  LGPU_RETURN_IF_ERROR(session->Attach(lease).status());
  return session;
}

}  // namespace

std::unique_ptr<DaemonConnection> OpenAttached(const std::string& lease, DaemonConnection::Options options,
                                               const std::function<void(const std::string& what)>& fail) {
  absl::StatusOr<std::unique_ptr<DaemonConnection>> session = Open(lease, std::move(options));
  if (session.ok()) return *std::move(session);
  if (!absl::IsUnavailable(session.status())) {
    fail(absl::StrCat("no session with lease ", lease, ": ", session.status().ToString()));
  }
  return nullptr;
}

}  // namespace lgpu::simulation
