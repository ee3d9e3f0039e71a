#ifndef LGPU_PROTO_REFUSAL_MESSAGES_H_
#define LGPU_PROTO_REFUSAL_MESSAGES_H_

#include "lgpu/refusal.h"
#include "lgpu/v1/refusal.pb.h"
#include "proto/refusal_codec.h"

namespace lgpu {

/// A refusal as a generated message, for daemon and command.
inline v1::Refusal RefusalToProto(const Refusal& refusal) {
  v1::Refusal message;
  message.ParseFromString(wire::Encode(RefusalToWire(refusal)));
  return message;
}
inline Refusal RefusalFromProto(const v1::Refusal& message) {
  return RefusalFromWire(wire::Decode<wire::Refusal>(message.SerializeAsString()).value_or(wire::Refusal{}));
}

}  // namespace lgpu

#endif  // LGPU_PROTO_REFUSAL_MESSAGES_H_
