// The only file of these tests that knows gRPC.

#include "cli/connection.h"
#include "lgpu/status.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {

class Control::Impl {
 public:
  explicit Impl(cli::Connection opened) : connection(std::move(opened)) {}
  cli::Connection connection;
};

Control::Control(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Control::~Control() = default;

absl::StatusOr<std::unique_ptr<Control>> Control::Open(const std::string& dir) {
  cli::CommonOptions options;
  options.endpoint = dir;
  options.timeout = ChildProgram::kPatience;
  LGPU_ASSIGN_OR_RETURN(cli::Connection connection, cli::Connection::Open(options));
  return std::unique_ptr<Control>(new Control(std::make_unique<Impl>(std::move(connection))));
}

void Control::SetSessionToken(const std::string& token) { impl_->connection.SetSessionToken(token); }

absl::StatusOr<v1::StatsSnapshot> Control::GetStats() {
  return impl_->connection.Call(cli::kGetStats, v1::GetStatsRequest());
}

absl::StatusOr<v1::Lease> Control::CreateLease(const v1::CreateLeaseRequest& request) {
  return impl_->connection.Call(cli::kCreateLease, request);
}

absl::StatusOr<v1::Lease> Control::ResizeLease(const v1::ResizeLeaseRequest& request) {
  return impl_->connection.Call(cli::kResizeLease, request);
}

absl::StatusOr<v1::SuspendLeaseResponse> Control::SuspendLease(const std::string& lease) {
  v1::SuspendLeaseRequest request;
  request.set_lease(lease);
  return impl_->connection.Call(cli::kSuspendLease, request);
}

absl::StatusOr<v1::ResumeLeaseResponse> Control::ResumeLease(const std::string& lease) {
  v1::ResumeLeaseRequest request;
  request.set_lease(lease);
  return impl_->connection.Call(cli::kResumeLease, request);
}

absl::StatusOr<v1::Lease> Control::GetLease(const std::string& lease) {
  v1::GetLeaseRequest request;
  request.set_lease(lease);
  return impl_->connection.Call(cli::kGetLease, request);
}

absl::StatusOr<v1::Lease> Control::AttachLease(const std::string& lease) {
  v1::AttachLeaseRequest request;
  request.set_lease(lease);
  return impl_->connection.Call(cli::kAttachLease, request);
}

absl::Status Control::RemoveLease(const std::string& lease) {
  v1::RemoveLeaseRequest request;
  request.set_lease(lease);
  return impl_->connection.Call(cli::kRemoveLease, request).status();
}

absl::StatusOr<v1::PlacementReport> Control::GetPlacements(const std::string& lease) {
  v1::GetPlacementsRequest request;
  request.set_lease(lease);
  return impl_->connection.Call(cli::kGetPlacements, request);
}

absl::Status Control::GetMemorySnapshot(const v1::GetMemorySnapshotRequest& request,
                                        const std::function<void(const v1::MemorySnapshotPart&)>& each) {
  return impl_->connection.Watch(cli::kGetMemorySnapshot, request, [&](const v1::MemorySnapshotPart& part) {
    each(part);
    return absl::OkStatus();
  });
}

}  // namespace lgpu::testing
