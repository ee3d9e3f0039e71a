#include "client/control/lease_calls.h"

#include <optional>
#include <string>
#include <utility>

#include "lgpu/status.h"

namespace lgpu {
namespace {

template <typename Response, typename Request>
absl::StatusOr<Response> Call(ControlClient& control, const char* method, const Request& request) {
  LGPU_ASSIGN_OR_RETURN(const std::string answer, control.Call(method, wire::Encode(request)));
  std::optional<Response> response = wire::Decode<Response>(answer);
  if (!response) {
    return absl::InternalError(std::string("lgpud's answer to ") + method +
                               " cannot be read; are liblgpu and lgpud of one version?");
  }
  return *std::move(response);
}

}  // namespace

absl::StatusOr<wire::ListPhysicalDevicesResponse> ListPhysicalDevices(ControlClient& control) {
  return Call<wire::ListPhysicalDevicesResponse>(control, "ListPhysicalDevices",
                                                 wire::ListPhysicalDevicesRequest{});
}

absl::StatusOr<wire::Lease> CreateLease(ControlClient& control, const wire::CreateLeaseRequest& request) {
  return Call<wire::Lease>(control, "CreateLease", request);
}

absl::StatusOr<wire::Lease> AttachLease(ControlClient& control, const wire::AttachLeaseRequest& request) {
  return Call<wire::Lease>(control, "AttachLease", request);
}

absl::StatusOr<wire::Lease> GetLease(ControlClient& control, const wire::GetLeaseRequest& request) {
  return Call<wire::Lease>(control, "GetLease", request);
}

absl::StatusOr<wire::Lease> ResizeLease(ControlClient& control, const wire::ResizeLeaseRequest& request) {
  return Call<wire::Lease>(control, "ResizeLease", request);
}

absl::Status SuspendLease(ControlClient& control, const wire::SuspendLeaseRequest& request) {
  return control.Call("SuspendLease", wire::Encode(request)).status();
}

absl::Status ResumeLease(ControlClient& control, const wire::ResumeLeaseRequest& request,
                         std::chrono::milliseconds timeout) {
  return control.Call("ResumeLease", wire::Encode(request), timeout).status();
}

}  // namespace lgpu
