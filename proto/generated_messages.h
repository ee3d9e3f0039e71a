#ifndef LGPU_PROTO_GENERATED_MESSAGES_H_
#define LGPU_PROTO_GENERATED_MESSAGES_H_

#include "proto/wire/encoding.h"

namespace lgpu {

/// A message of protobuf's as the struct of proto/wire, and back, for the parts of lgpud that have both
/// planes.
template <typename Struct, typename Generated>
Struct ToStruct(const Generated& message) {
  return wire::Decode<Struct>(message.SerializeAsString()).value_or(Struct{});
}
template <typename Generated, typename Struct>
Generated ToGenerated(const Struct& message) {
  Generated generated;
  generated.ParseFromString(wire::Encode(message));
  return generated;
}

}  // namespace lgpu

#endif  // LGPU_PROTO_GENERATED_MESSAGES_H_
