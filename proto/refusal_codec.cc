#include "proto/refusal_codec.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/cord.h"

namespace lgpu {
namespace {

// gRPC's default for all metadata of a call is 8 KiB, and the message is in it once more.
constexpr std::size_t kMaxDetailsBytes = 4096;

absl::StatusCode CodeFromWire(int code) {
  const bool known = code >= static_cast<int>(absl::StatusCode::kOk) &&
                     code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

}  // namespace

v1::Refusal RefusalToProto(const Refusal& refusal) {
  v1::Refusal proto;
  proto.set_reason(static_cast<v1::Refusal::Reason>(refusal.reason));
  proto.set_device(refusal.device);
  proto.set_lease(refusal.lease);
  proto.set_what(refusal.what);
  proto.set_asked_bytes(refusal.asked.count());
  if (refusal.limit) proto.set_limit_bytes(refusal.limit->count());
  if (refusal.used) proto.set_used_bytes(refusal.used->count());
  if (refusal.held) proto.set_held_bytes(refusal.held->count());
  if (refusal.peak_used) proto.set_peak_used_bytes(refusal.peak_used->count());
  if (refusal.live_blocks) proto.set_live_blocks(*refusal.live_blocks);
  if (refusal.largest_free_block) proto.set_largest_free_block_bytes(refusal.largest_free_block->count());
  proto.set_card(refusal.card);
  if (refusal.card_total) proto.set_card_total_bytes(refusal.card_total->count());
  if (refusal.card_free) proto.set_card_free_bytes(refusal.card_free->count());
  if (refusal.coming_back) proto.set_coming_back_bytes(refusal.coming_back->count());
  if (refusal.waited) proto.set_waited_ms(static_cast<std::uint64_t>(refusal.waited->count()));
  for (const Refusal::Holder& holder : refusal.holders) {
    v1::Refusal::Holder* out = proto.add_holders();
    out->set_lease(holder.lease);
    out->set_owner(holder.owner);
    out->set_pid(holder.pid);
    out->set_device(holder.device);
    out->set_held_bytes(holder.held.count());
    out->set_guarantee_bytes(holder.guarantee.count());
  }
  for (const std::string& advice : refusal.advice) {
    proto.add_advice(advice);
  }
  return proto;
}

Refusal RefusalFromProto(const v1::Refusal& proto) {
  Refusal refusal;
  // A number of a later version is not a reason that this one can name.
  refusal.reason = v1::Refusal::Reason_IsValid(proto.reason()) ? static_cast<RefusalReason>(proto.reason())
                                                               : RefusalReason::kUnspecified;
  refusal.device = proto.device();
  refusal.lease = proto.lease();
  refusal.what = proto.what();
  refusal.asked = Bytes(proto.asked_bytes());
  if (proto.has_limit_bytes()) refusal.limit = Bytes(proto.limit_bytes());
  if (proto.has_used_bytes()) refusal.used = Bytes(proto.used_bytes());
  if (proto.has_held_bytes()) refusal.held = Bytes(proto.held_bytes());
  if (proto.has_peak_used_bytes()) refusal.peak_used = Bytes(proto.peak_used_bytes());
  if (proto.has_live_blocks()) refusal.live_blocks = proto.live_blocks();
  if (proto.has_largest_free_block_bytes())
    refusal.largest_free_block = Bytes(proto.largest_free_block_bytes());
  refusal.card = proto.card();
  if (proto.has_card_total_bytes()) refusal.card_total = Bytes(proto.card_total_bytes());
  if (proto.has_card_free_bytes()) refusal.card_free = Bytes(proto.card_free_bytes());
  if (proto.has_coming_back_bytes()) refusal.coming_back = Bytes(proto.coming_back_bytes());
  if (proto.has_waited_ms()) refusal.waited = std::chrono::milliseconds(proto.waited_ms());
  for (const v1::Refusal::Holder& holder : proto.holders()) {
    refusal.holders.push_back({.lease = holder.lease(),
                               .owner = holder.owner(),
                               .pid = holder.pid(),
                               .device = holder.device(),
                               .held = Bytes(holder.held_bytes()),
                               .guarantee = Bytes(holder.guarantee_bytes())});
  }
  refusal.advice.assign(proto.advice().begin(), proto.advice().end());
  return refusal;
}

absl::Status StatusFromWire(int code, std::string_view message, const v1::Refusal* refusal) {
  absl::Status status(CodeFromWire(code), absl::string_view(message.data(), message.size()));
  if (refusal == nullptr || !absl::IsResourceExhausted(status)) {
    return status;
  }
  absl::Status refused = RefusalStatus(RefusalFromProto(*refusal));
  if (message.empty()) {
    return refused;
  }
  refused.ForEachPayload(
      [&status](absl::string_view url, const absl::Cord& payload) { status.SetPayload(url, payload); });
  return status;
}

std::string EncodeStatusDetails(const absl::Status& status) {
  const std::optional<Refusal> refusal = GetRefusal(status);
  if (!refusal) {
    return "";
  }
  v1::Refusal proto = RefusalToProto(*refusal);
  // The largest holders come first, so the least interesting ones go first where all do not fit.
  while (proto.ByteSizeLong() > kMaxDetailsBytes && proto.holders_size() > 0) {
    proto.mutable_holders()->RemoveLast();
  }
  v1::StatusDetails details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(std::string(status.message()));
  details.add_details()->PackFrom(proto);
  if (details.ByteSizeLong() > kMaxDetailsBytes) {
    details.clear_message();
  }
  return details.SerializeAsString();
}

absl::Status DecodeStatusDetails(const absl::Status& status, std::string_view details) {
  v1::StatusDetails decoded;
  if (status.ok() || details.empty() ||
      !decoded.ParseFromArray(details.data(), static_cast<int>(details.size())) ||
      decoded.code() != static_cast<int>(status.code())) {
    return status;
  }
  for (const google::protobuf::Any& detail : decoded.details()) {
    v1::Refusal refusal;
    if (detail.Is<v1::Refusal>() && detail.UnpackTo(&refusal)) {
      const absl::string_view message = status.message();
      return StatusFromWire(decoded.code(), std::string_view(message.data(), message.size()), &refusal);
    }
  }
  return status;
}

}  // namespace lgpu
