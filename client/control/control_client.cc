#include "client/control/control_client.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "base/blocked_signals.h"
#include "base/thread_room.h"
#include "lgpu/status.h"
#include "lgpu/v1/control.grpc.pb.h"
#include "proto/refusal_codec.h"

namespace lgpu {
namespace {

// Long: preallocation makes every chunk before it answers.
constexpr std::chrono::seconds kCallTimeout{60};

}  // namespace

class ControlClient::Impl {
 public:
  Impl(UniqueFd socket, std::string directory)
      : directory_(std::move(directory)),
        stub_(v1::Control::NewStub(grpc::CreateInsecureChannelFromFd("lgpud", socket.Release()))) {}

  void UseToken(std::string token) { token_ = std::move(token); }

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*,
                                                                          const Request&, Response*),
                                const Request& request) {
    grpc::ClientContext context;
    if (!token_.empty()) context.AddMetadata("lgpu-session-token-bin", token_);
    // Of the clock that nobody sets.
    context.set_deadline(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                     gpr_time_from_millis(std::chrono::milliseconds(kCallTimeout).count(), GPR_TIMESPAN)));
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (status.ok()) return response;
    const auto code = static_cast<absl::StatusCode>(status.error_code());
    if (code == absl::StatusCode::kUnavailable) {
      return absl::UnavailableError("lgpud at " + directory_ + " is gone (" + status.error_message() +
                                    ")\n  try: is it still running? its log says why it stopped");
    }
    return DecodeStatusDetails(absl::Status(code, status.error_message()), status.error_details());
  }

 private:
  const std::string directory_;
  std::string token_;
  const std::unique_ptr<v1::Control::Stub> stub_;
};

ControlClient::ControlClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::shared_ptr<ControlClient>> ControlClient::Create(UniqueFd socket, std::string directory) {
  LGPU_RETURN_IF_ERROR(CheckThreadRoom());
  return std::shared_ptr<ControlClient>(
      new ControlClient(std::make_unique<Impl>(std::move(socket), std::move(directory))));
}

ControlClient::Starting ControlClient::Start(UniqueFd socket, std::string directory) {
  Starting starting;
  starting.client_ = std::make_shared<absl::StatusOr<std::shared_ptr<ControlClient>>>();
  // Shared, so that it is still there after a thread that could not be had.
  auto make = [connected = std::make_shared<UniqueFd>(std::move(socket)), directory = std::move(directory),
               client = starting.client_] { *client = Create(std::move(*connected), directory); };
  const BlockedSignals blocked;  // gRPC's threads inherit it
  try {
    starting.made_ = std::async(std::launch::async, make);
  } catch (const std::system_error&) {
    starting.made_ = std::async(std::launch::deferred, make);
  }
  return starting;
}

absl::StatusOr<std::shared_ptr<ControlClient>> ControlClient::Starting::Wait() {
  made_.get();
  return std::move(*client_);
}

void ControlClient::UseToken(std::string token) { impl_->UseToken(std::move(token)); }

ControlClient::~ControlClient() = default;

absl::StatusOr<v1::ListPhysicalDevicesResponse> ControlClient::ListPhysicalDevices() {
  return impl_->Call(&v1::Control::Stub::ListPhysicalDevices, v1::ListPhysicalDevicesRequest());
}

absl::StatusOr<v1::Lease> ControlClient::CreateLease(const v1::CreateLeaseRequest& request) {
  return impl_->Call(&v1::Control::Stub::CreateLease, request);
}

absl::StatusOr<v1::Lease> ControlClient::ResizeLease(const v1::ResizeLeaseRequest& request) {
  return impl_->Call(&v1::Control::Stub::ResizeLease, request);
}

absl::StatusOr<v1::StatsSnapshot> ControlClient::GetStats() {
  return impl_->Call(&v1::Control::Stub::GetStats, v1::GetStatsRequest());
}

absl::StatusOr<v1::Lease> ControlClient::AttachLease(const v1::AttachLeaseRequest& request) {
  return impl_->Call(&v1::Control::Stub::AttachLease, request);
}

}  // namespace lgpu
