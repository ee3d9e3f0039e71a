#ifndef LGPU_PROTO_REFUSAL_CODEC_H_
#define LGPU_PROTO_REFUSAL_CODEC_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "lgpu/refusal.h"
#include "lgpu/v1/refusal.pb.h"

namespace lgpu {

v1::Refusal RefusalToProto(const Refusal& refusal);
Refusal RefusalFromProto(const v1::Refusal& proto);

/// The status that a canonical code, a message and, for RESOURCE_EXHAUSTED, a refusal stand for.
absl::Status StatusFromWire(int code, std::string_view message, const v1::Refusal* refusal);

/// The bytes of `grpc-status-details-bin` (a google.rpc.Status with the refusal in its details) and
/// back. Empty for a status without a refusal; nothing changes for bytes that do not parse.
std::string EncodeStatusDetails(const absl::Status& status);
absl::Status DecodeStatusDetails(const absl::Status& status, std::string_view details);

}  // namespace lgpu

#endif  // LGPU_PROTO_REFUSAL_CODEC_H_
