#ifndef LGPU_PROTO_REFUSAL_MESSAGES_H_
#define LGPU_PROTO_REFUSAL_MESSAGES_H_

#include "lgpu/refusal.h"
#include "lgpu/v1/refusal.pb.h"
#include "proto/generated_messages.h"
#include "proto/refusal_codec.h"

namespace lgpu {

/// A refusal as a generated message, for daemon and command.
inline v1::Refusal RefusalToProto(const Refusal& refusal) {
  return ToGenerated<v1::Refusal>(RefusalToWire(refusal));
}
inline Refusal RefusalFromProto(const v1::Refusal& message) {
  return RefusalFromWire(ToStruct<wire::Refusal>(message));
}

}  // namespace lgpu

#endif  // LGPU_PROTO_REFUSAL_MESSAGES_H_
