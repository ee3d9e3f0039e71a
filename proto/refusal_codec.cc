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
// The name of a refusal in google.protobuf.Any; any text before the slash is accepted.
constexpr std::string_view kRefusalType = "type.googleapis.com/lgpu.v1.Refusal";
constexpr std::string_view kRefusalName = "/lgpu.v1.Refusal";

absl::StatusCode CodeFromWire(int code) {
  const bool known = code >= static_cast<int>(absl::StatusCode::kOk) &&
                     code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

}  // namespace

wire::Refusal RefusalToWire(const Refusal& refusal) {
  const auto count = [](const std::optional<Bytes>& bytes) {
    return bytes ? std::optional<std::uint64_t>(bytes->count()) : std::nullopt;
  };
  wire::Refusal message;
  message.reason = static_cast<wire::Refusal::Reason>(refusal.reason);
  message.device = refusal.device;
  message.lease = refusal.lease;
  message.what = refusal.what;
  message.asked_bytes = refusal.asked.count();
  message.limit_bytes = count(refusal.limit);
  message.used_bytes = count(refusal.used);
  message.held_bytes = count(refusal.held);
  message.peak_used_bytes = count(refusal.peak_used);
  message.live_blocks = refusal.live_blocks;
  message.largest_free_block_bytes = count(refusal.largest_free_block);
  message.card = refusal.card;
  message.card_total_bytes = count(refusal.card_total);
  message.card_free_bytes = count(refusal.card_free);
  message.coming_back_bytes = count(refusal.coming_back);
  if (refusal.waited) message.waited_ms = static_cast<std::uint64_t>(refusal.waited->count());
  for (const Refusal::Holder& holder : refusal.holders) {
    message.holders.push_back({.lease = holder.lease,
                               .owner = holder.owner,
                               .pid = holder.pid,
                               .device = holder.device,
                               .held_bytes = holder.held.count(),
                               .guarantee_bytes = holder.guarantee.count()});
  }
  message.advice = refusal.advice;
  return message;
}

Refusal RefusalFromWire(const wire::Refusal& message) {
  const auto bytes = [](std::optional<std::uint64_t> count) {
    return count ? std::optional<Bytes>(Bytes(*count)) : std::nullopt;
  };
  Refusal refusal;
  // This version cannot name a reason that a later version added.
  const auto reason = static_cast<std::int32_t>(message.reason);
  const bool known = reason >= 0 && reason <= static_cast<std::int32_t>(RefusalReason::kDescriptors);
  refusal.reason = known ? static_cast<RefusalReason>(reason) : RefusalReason::kUnspecified;
  refusal.device = message.device;
  refusal.lease = message.lease;
  refusal.what = message.what;
  refusal.asked = Bytes(message.asked_bytes);
  refusal.limit = bytes(message.limit_bytes);
  refusal.used = bytes(message.used_bytes);
  refusal.held = bytes(message.held_bytes);
  refusal.peak_used = bytes(message.peak_used_bytes);
  refusal.live_blocks = message.live_blocks;
  refusal.largest_free_block = bytes(message.largest_free_block_bytes);
  refusal.card = message.card;
  refusal.card_total = bytes(message.card_total_bytes);
  refusal.card_free = bytes(message.card_free_bytes);
  refusal.coming_back = bytes(message.coming_back_bytes);
  if (message.waited_ms) refusal.waited = std::chrono::milliseconds(*message.waited_ms);
  for (const wire::Refusal::Holder& holder : message.holders) {
    refusal.holders.push_back({.lease = holder.lease,
                               .owner = holder.owner,
                               .pid = holder.pid,
                               .device = holder.device,
                               .held = Bytes(holder.held_bytes),
                               .guarantee = Bytes(holder.guarantee_bytes)});
  }
  refusal.advice = message.advice;
  return refusal;
}

absl::Status StatusFromWire(int code, std::string_view message, const std::optional<wire::Refusal>& refusal) {
  absl::Status status(CodeFromWire(code), absl::string_view(message.data(), message.size()));
  if (!refusal || !absl::IsResourceExhausted(status)) return status;
  absl::Status refused = RefusalStatus(RefusalFromWire(*refusal));
  if (message.empty()) return refused;
  refused.ForEachPayload(
      [&status](absl::string_view url, const absl::Cord& payload) { status.SetPayload(url, payload); });
  return status;
}

std::string EncodeStatusDetails(const absl::Status& status) {
  const std::optional<Refusal> refusal = GetRefusal(status);
  if (!refusal) return "";
  wire::Refusal message = RefusalToWire(*refusal);
  // Drops the smallest holders, which come last, until the rest fits.
  std::string encoded = wire::Encode(message);
  while (encoded.size() > kMaxDetailsBytes && !message.holders.empty()) {
    message.holders.pop_back();
    encoded = wire::Encode(message);
  }
  wire::StatusDetails details;
  details.code = static_cast<int>(status.code());
  details.message = std::string(status.message());
  details.details.push_back({.type_url = std::string(kRefusalType), .value = {std::move(encoded)}});
  std::string bytes = wire::Encode(details);
  if (bytes.size() > kMaxDetailsBytes) {
    details.message.clear();
    bytes = wire::Encode(details);
  }
  return bytes;
}

absl::Status DecodeStatusDetails(const absl::Status& status, std::string_view details) {
  if (status.ok() || details.empty()) return status;
  const std::optional<wire::StatusDetails> decoded = wire::Decode<wire::StatusDetails>(details);
  if (!decoded || decoded->code != static_cast<int>(status.code())) return status;
  for (const wire::Any& detail : decoded->details) {
    if (!detail.type_url.ends_with(kRefusalName)) continue;
    if (const std::optional<wire::Refusal> refusal = wire::Decode<wire::Refusal>(detail.value.bytes)) {
      const absl::string_view message = status.message();
      return StatusFromWire(decoded->code, std::string_view(message.data(), message.size()), refusal);
    }
  }
  return status;
}

}  // namespace lgpu
