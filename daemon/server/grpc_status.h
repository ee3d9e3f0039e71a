#ifndef LGPU_DAEMON_SERVER_GRPC_STATUS_H_
#define LGPU_DAEMON_SERVER_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "proto/refusal_messages.h"

namespace lgpu::daemon {

/// The same code and text; a Refusal is in the details.
inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
          EncodeStatusDetails(status)};
}

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_GRPC_STATUS_H_
