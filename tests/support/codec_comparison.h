#ifndef LGPU_TESTS_SUPPORT_CODEC_COMPARISON_H_
#define LGPU_TESTS_SUPPORT_CODEC_COMPARISON_H_

#include <google/protobuf/any.pb.h>
#include <google/protobuf/timestamp.pb.h>

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "lgpu/v1/control.pb.h"
#include "lgpu/v1/refusal.pb.h"
#include "lgpu/v1/session.pb.h"
#include "lgpu/v1/snapshot.pb.h"
#include "lgpu/v1/stats.pb.h"
#include "proto/wire/control_messages.h"
#include "proto/wire/session_messages.h"

namespace lgpu::testing {

/// Reads the bytes by protobuf's generated code and by lgpu's own: both refuse them, or both read the same.
/// The difference; empty: none.
template <typename Wire, typename Generated>
std::string CompareCodecs(std::string_view bytes) {
  Generated generated;
  const bool generated_reads = generated.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  const std::optional<Wire> own = wire::Decode<Wire>(bytes);
  const std::string name = generated.GetTypeName();
  if (generated_reads != own.has_value()) {
    return name +
           (generated_reads ? ": protobuf reads it, lgpu does not" : ": lgpu reads it, protobuf does not");
  }
  if (!own) return "";
  generated.DiscardUnknownFields();
  const std::string written = wire::Encode(*own);
  Generated again;
  if (!again.ParseFromString(written)) return name + ": protobuf cannot read what lgpu wrote";
  if (again.SerializeAsString() != generated.SerializeAsString()) {
    return name + ": protobuf reads\n" + generated.DebugString() + "lgpu reads\n" + again.DebugString();
  }
  if (written != generated.SerializeAsString()) return name + ": both read the same and write other bytes";
  return "";
}

/// Calls `visit.template operator()<Wire, Generated>()` for every message that lgpu codes itself.
template <typename Visit>
void ForEachCodedMessage(Visit&& visit) {
  auto& one = visit;
  one.template operator()<wire::Frame, v1::Frame>();
  one.template operator()<wire::Hello, v1::Hello>();
  one.template operator()<wire::Resume, v1::Resume>();
  one.template operator()<wire::Welcome, v1::Welcome>();
  one.template operator()<wire::Chunk, v1::Chunk>();
  one.template operator()<wire::Attest, v1::Attest>();
  one.template operator()<wire::Attested, v1::Attested>();
  one.template operator()<wire::GrowRequest, v1::GrowRequest>();
  one.template operator()<wire::Grant, v1::Grant>();
  one.template operator()<wire::Ack, v1::Ack>();
  one.template operator()<wire::GrowRefused, v1::GrowRefused>();
  one.template operator()<wire::Withdraw, v1::Withdraw>();
  one.template operator()<wire::ReturnRequest, v1::ReturnRequest>();
  one.template operator()<wire::ReturnReply, v1::ReturnReply>();
  one.template operator()<wire::CloseRequest, v1::CloseRequest>();
  one.template operator()<wire::Closed, v1::Closed>();
  one.template operator()<wire::Trim, v1::Trim>();
  one.template operator()<wire::Trimmed, v1::Trimmed>();
  one.template operator()<wire::Attach, v1::Attach>();
  one.template operator()<wire::Attached, v1::Attached>();
  one.template operator()<wire::Goodbye, v1::Goodbye>();
  one.template operator()<wire::Refusal, v1::Refusal>();
  one.template operator()<wire::Refusal::Holder, v1::Refusal::Holder>();
  one.template operator()<wire::StatusDetails, v1::StatusDetails>();
  one.template operator()<wire::Any, google::protobuf::Any>();
  one.template operator()<wire::Timestamp, google::protobuf::Timestamp>();
  one.template operator()<wire::ForeignProcess, v1::ForeignProcess>();
  one.template operator()<wire::QueuedRequest, v1::QueuedRequest>();
  one.template operator()<wire::CardStats, v1::CardStats>();
  one.template operator()<wire::ListPhysicalDevicesRequest, v1::ListPhysicalDevicesRequest>();
  one.template operator()<wire::ListPhysicalDevicesResponse, v1::ListPhysicalDevicesResponse>();
  one.template operator()<wire::LogicalDeviceSpec, v1::LogicalDeviceSpec>();
  one.template operator()<wire::LogicalDevice, v1::LogicalDevice>();
  one.template operator()<wire::Label, v1::Label>();
  one.template operator()<wire::Management, v1::Management>();
  one.template operator()<wire::LeaseEnds, v1::LeaseEnds>();
  one.template operator()<wire::Lease, v1::Lease>();
  one.template operator()<wire::CreateLeaseRequest, v1::CreateLeaseRequest>();
  one.template operator()<wire::AttachLeaseRequest, v1::AttachLeaseRequest>();
  one.template operator()<wire::GetLeaseRequest, v1::GetLeaseRequest>();
  one.template operator()<wire::ResizeLeaseRequest, v1::ResizeLeaseRequest>();
  one.template operator()<wire::ResizeLeaseRequest::Device, v1::ResizeLeaseRequest::Device>();
  one.template operator()<wire::Charge, v1::Charge>();
  one.template operator()<wire::Charged, v1::Charged>();
  one.template operator()<wire::Uncharge, v1::Uncharge>();
  one.template operator()<wire::ChargeAttest, v1::ChargeAttest>();
  one.template operator()<wire::ChargeAttest::Total, v1::ChargeAttest::Total>();
  one.template operator()<wire::Snapshot, v1::Snapshot>();
  one.template operator()<wire::SnapshotPage, v1::SnapshotPage>();
  one.template operator()<wire::RegionStats, v1::RegionStats>();
  one.template operator()<wire::MappingList, v1::MappingList>();
  one.template operator()<wire::BlockList, v1::BlockList>();
  one.template operator()<wire::BlockMap, v1::BlockMap>();
}

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_SUPPORT_CODEC_COMPARISON_H_
