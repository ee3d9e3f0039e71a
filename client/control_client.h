#ifndef LGPU_CLIENT_CONTROL_CLIENT_H_
#define LGPU_CLIENT_CONTROL_CLIENT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "allocator/unique_fd.h"
#include "lgpu/v1/control.pb.h"

namespace lgpu {

/// A ControlClient makes a session's calls of the control service. It has a gRPC channel of its own
/// over a connected socket: channels made by address share connections within a process, and one call in a
/// forked child would break those of its parent. It is slow to destroy (milliseconds the first time).
///
/// Thread-safe. Errors are the daemon's, with the Refusal where there is one; UNAVAILABLE when it is gone.
class ControlClient {
 public:
  /// `socket`: connected to control.sock, non-blocking; `directory` is said in errors; `token`: Welcome's, or
  /// empty to be known by user id alone.
  ControlClient(UniqueFd socket, std::string directory, std::string token);
  ~ControlClient();
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  absl::StatusOr<v1::ListPhysicalDevicesResponse> ListPhysicalDevices();
  absl::StatusOr<v1::Lease> CreateLease(const v1::CreateLeaseRequest& request);
  absl::StatusOr<v1::Lease> AttachLease(const v1::AttachLeaseRequest& request);
  absl::StatusOr<v1::StatsSnapshot> GetStats();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_CONTROL_CLIENT_H_
