#ifndef LGPU_CLIENT_CONTROL_LEASE_CALLS_H_
#define LGPU_CLIENT_CONTROL_LEASE_CALLS_H_

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

}  // namespace lgpu

#endif  // LGPU_CLIENT_CONTROL_LEASE_CALLS_H_
