#include "proto/refusal_codec.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "base/refusal_fields.h"

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

/// Copies a field from a Refusal to its message, or back.
struct Copier {
  template <typename T>
  static void Copy(const T& from, T& to) {
    to = from;
  }
  static void Copy(Bytes from, std::uint64_t& to) { to = from.count(); }
  static void Copy(std::uint64_t from, Bytes& to) { to = Bytes(from); }
  static void Copy(std::chrono::milliseconds from, std::uint64_t& to) {
    to = static_cast<std::uint64_t>(from.count());
  }
  static void Copy(std::uint64_t from, std::chrono::milliseconds& to) {
    to = std::chrono::milliseconds(from);
  }
  static void Copy(RefusalReason from, wire::Refusal::Reason& to) {
    to = static_cast<wire::Refusal::Reason>(from);
  }
  static void Copy(wire::Refusal::Reason from, RefusalReason& to) {
    // This version cannot name a reason that a later version added.
    const bool known =
        from >= wire::Refusal::Reason::kUnspecified && from <= wire::Refusal::Reason::kDescriptors;
    to = known ? static_cast<RefusalReason>(from) : RefusalReason::kUnspecified;
  }
  static void Copy(const Refusal::Holder& from, wire::Refusal::Holder& to) {
#define LGPU_COPY(member, name) Copy(from.member, to.name);
    LGPU_REFUSAL_HOLDER_FIELDS(LGPU_COPY)
#undef LGPU_COPY
  }
  static void Copy(const wire::Refusal::Holder& from, Refusal::Holder& to) {
#define LGPU_COPY(member, name) Copy(from.name, to.member);
    LGPU_REFUSAL_HOLDER_FIELDS(LGPU_COPY)
#undef LGPU_COPY
  }
  template <typename From, typename To>
  requires(!std::is_same_v<From, To>) static void Copy(const std::optional<From>& from,
                                                       std::optional<To>& to) {
    if (from) Copy(*from, to.emplace());
  }
  template <typename From, typename To>
  requires(!std::is_same_v<From, To>) static void Copy(const std::vector<From>& from, std::vector<To>& to) {
    for (const From& item : from) Copy(item, to.emplace_back());
  }
};

}  // namespace

wire::Refusal RefusalToWire(const Refusal& refusal) {
  wire::Refusal message;
#define LGPU_COPY(member, name) Copier::Copy(refusal.member, message.name);
  LGPU_REFUSAL_WIRE_FIELDS(LGPU_COPY)
#undef LGPU_COPY
  return message;
}

Refusal RefusalFromWire(const wire::Refusal& message) {
  Refusal refusal;
#define LGPU_COPY(member, name) Copier::Copy(message.name, refusal.member);
  LGPU_REFUSAL_WIRE_FIELDS(LGPU_COPY)
#undef LGPU_COPY
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
