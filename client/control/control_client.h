#ifndef LGPU_CLIENT_CONTROL_CONTROL_CLIENT_H_
#define LGPU_CLIENT_CONTROL_CONTROL_CLIENT_H_

#include <future>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "lgpu/v1/control.pb.h"

namespace lgpu {

/// A ControlClient makes a session's calls of the control service. It has a gRPC channel of its own
/// over a connected socket: channels made by address share connections within a process, and one call in a
/// forked child would break those of its parent. It is slow to destroy (milliseconds the first time).
///
/// Thread-safe, once UseToken was called. Errors are the daemon's, with the Refusal where there is one;
/// UNAVAILABLE when it is gone.
class ControlClient {
 public:
  /// `socket`: connected to control.sock, non-blocking; `directory` is said in errors. RESOURCE_EXHAUSTED: no
  /// threads can be had.
  static absl::StatusOr<std::shared_ptr<ControlClient>> Create(UniqueFd socket, std::string directory);
  /// As Create, on a thread of its own: gRPC's first channel of a process takes a millisecond.
  class Starting {
   public:
    absl::StatusOr<std::shared_ptr<ControlClient>> Wait();

   private:
    friend class ControlClient;
    std::shared_ptr<absl::StatusOr<std::shared_ptr<ControlClient>>> client_;
    std::future<void> made_;  // of nothing: a future of a class would be exported from the library
  };
  static Starting Start(UniqueFd socket, std::string directory);
  ~ControlClient();
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  /// Makes the following calls in the name of a session; `token`: Welcome's. Without it the caller is known
  /// by user id alone.
  void UseToken(std::string token);

  absl::StatusOr<v1::ListPhysicalDevicesResponse> ListPhysicalDevices();
  absl::StatusOr<v1::Lease> CreateLease(const v1::CreateLeaseRequest& request);
  absl::StatusOr<v1::Lease> AttachLease(const v1::AttachLeaseRequest& request);
  absl::StatusOr<v1::Lease> ResizeLease(const v1::ResizeLeaseRequest& request);
  absl::StatusOr<v1::StatsSnapshot> GetStats();

 private:
  class Impl;
  explicit ControlClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_CONTROL_CONTROL_CLIENT_H_
