#ifndef LGPU_PROTO_REFUSAL_CODEC_H_
#define LGPU_PROTO_REFUSAL_CODEC_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "lgpu/refusal.h"
#include "proto/wire/session_messages.h"

namespace lgpu {

wire::Refusal RefusalToWire(const Refusal& refusal);
Refusal RefusalFromWire(const wire::Refusal& message);

/// The status with this canonical code and message and, for RESOURCE_EXHAUSTED, this refusal.
absl::Status StatusFromWire(int code, std::string_view message,
                            const std::optional<wire::Refusal>& refusal = std::nullopt);

/// The bytes of `grpc-status-details-bin` (a google.rpc.Status with the refusal in its details) and
/// back. Empty for a status without a refusal; nothing changes for bytes that do not parse.
std::string EncodeStatusDetails(const absl::Status& status);
absl::Status DecodeStatusDetails(const absl::Status& status, std::string_view details);

}  // namespace lgpu

#endif  // LGPU_PROTO_REFUSAL_CODEC_H_
