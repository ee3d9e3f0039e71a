#ifndef LGPU_TESTS_SUPPORT_CODEC_COMPARISON_H_
#define LGPU_TESTS_SUPPORT_CODEC_COMPARISON_H_

#include <optional>
#include <string>
#include <string_view>

#include "proto/every_message.h"

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

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_SUPPORT_CODEC_COMPARISON_H_
