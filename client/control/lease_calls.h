#ifndef LGPU_CLIENT_CONTROL_LEASE_CALLS_H_
#define LGPU_CLIENT_CONTROL_LEASE_CALLS_H_

#include <chrono>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/control/control_client.h"
#include "proto/wire/control_messages.h"

namespace lgpu {

/// The calls of the control service that programs make. Errors as ControlClient's; INTERNAL for an answer
/// that is no such message.
absl::StatusOr<wire::ListPhysicalDevicesResponse> ListPhysicalDevices(ControlClient& control);
absl::StatusOr<wire::Lease> CreateLease(ControlClient& control, const wire::CreateLeaseRequest& request);
absl::StatusOr<wire::Lease> AttachLease(ControlClient& control, const wire::AttachLeaseRequest& request);
absl::StatusOr<wire::Lease> GetLease(ControlClient& control, const wire::GetLeaseRequest& request);
absl::StatusOr<wire::Lease> ResizeLease(ControlClient& control, const wire::ResizeLeaseRequest& request);
/// Without their answers; `timeout` is that of the call.
absl::Status SuspendLease(ControlClient& control, const wire::SuspendLeaseRequest& request);
absl::Status ResumeLease(ControlClient& control, const wire::ResumeLeaseRequest& request,
                         std::chrono::milliseconds timeout);

}  // namespace lgpu

#endif  // LGPU_CLIENT_CONTROL_LEASE_CALLS_H_
