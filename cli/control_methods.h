#ifndef LGPU_CLI_CONTROL_METHODS_H_
#define LGPU_CLI_CONTROL_METHODS_H_

#include "lgpu/v1/control.pb.h"

/// The methods of lgpu.v1.Control as the command calls them; a test holds names and types against the
/// service.

namespace lgpu::cli {

/// A call of one request and one response.
template <typename Request, typename Response>
struct UnaryMethod {
  const char* name;
};
/// A call whose answer is a stream of messages.
template <typename Request, typename Message>
struct StreamMethod {
  const char* name;
};

inline constexpr UnaryMethod<v1::GetVersionRequest, v1::GetVersionResponse> kGetVersion{"GetVersion"};
inline constexpr UnaryMethod<v1::ListPhysicalDevicesRequest, v1::ListPhysicalDevicesResponse>
    kListPhysicalDevices{"ListPhysicalDevices"};
inline constexpr UnaryMethod<v1::CreateLeaseRequest, v1::Lease> kCreateLease{"CreateLease"};
inline constexpr StreamMethod<v1::WaitForLeaseRequest, v1::LeaseWait> kWaitForLease{"WaitForLease"};
inline constexpr UnaryMethod<v1::AttachLeaseRequest, v1::Lease> kAttachLease{"AttachLease"};
inline constexpr UnaryMethod<v1::GetLeaseRequest, v1::Lease> kGetLease{"GetLease"};
inline constexpr UnaryMethod<v1::ListLeasesRequest, v1::ListLeasesResponse> kListLeases{"ListLeases"};
inline constexpr UnaryMethod<v1::ResizeLeaseRequest, v1::Lease> kResizeLease{"ResizeLease"};
inline constexpr UnaryMethod<v1::RemoveLeaseRequest, v1::RemoveLeaseResponse> kRemoveLease{"RemoveLease"};
inline constexpr UnaryMethod<v1::SuspendLeaseRequest, v1::SuspendLeaseResponse> kSuspendLease{"SuspendLease"};
inline constexpr UnaryMethod<v1::ResumeLeaseRequest, v1::ResumeLeaseResponse> kResumeLease{"ResumeLease"};
inline constexpr StreamMethod<v1::TrimLeasesRequest, v1::LeaseTrim> kTrimLeases{"TrimLeases"};
inline constexpr UnaryMethod<v1::OpenLeaseDirectoryRequest, v1::OpenLeaseDirectoryResponse>
    kOpenLeaseDirectory{"OpenLeaseDirectory"};
inline constexpr UnaryMethod<v1::GetStatsRequest, v1::StatsSnapshot> kGetStats{"GetStats"};
inline constexpr StreamMethod<v1::GetMemorySnapshotRequest, v1::MemorySnapshotPart> kGetMemorySnapshot{
    "GetMemorySnapshot"};
inline constexpr UnaryMethod<v1::GetPlacementsRequest, v1::PlacementReport> kGetPlacements{"GetPlacements"};
inline constexpr StreamMethod<v1::GetPlacementsRequest, v1::PlacementRecord> kWatchPlacements{
    "WatchPlacements"};
inline constexpr StreamMethod<v1::WatchEventsRequest, v1::Event> kWatchEvents{"WatchEvents"};
inline constexpr UnaryMethod<v1::DiagnoseRequest, v1::Diagnosis> kDiagnose{"Diagnose"};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_CONTROL_METHODS_H_
