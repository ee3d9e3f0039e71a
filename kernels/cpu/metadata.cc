#include <cstdint>
#include <cstring>

#include "kernels/cpu/cpu_kernels.h"

namespace lgpu {

namespace {

void Write(std::int64_t value, std::byte* to) {
  const auto number = static_cast<std::int32_t>(value);  // Op::infer checked that it fits
  std::memcpy(to, &number, sizeof number);
}

}  // namespace

absl::Status RunShape(std::span<const TensorView> inputs, const TensorView& output, const OpAttributes&,
                      Launcher&) {
  std::byte* to = output.data;
  for (const std::int64_t dimension : inputs[0].spec.shape.dimensions()) {
    Write(dimension, to);
    to += sizeof(std::int32_t);
  }
  return absl::OkStatus();
}

absl::Status RunSize(std::span<const TensorView> inputs, const TensorView& output, const OpAttributes&,
                     Launcher&) {
  Write(inputs[0].spec.shape.elements(), output.data);
  return absl::OkStatus();
}

absl::Status RunRank(std::span<const TensorView> inputs, const TensorView& output, const OpAttributes&,
                     Launcher&) {
  Write(inputs[0].spec.shape.rank(), output.data);
  return absl::OkStatus();
}

}  // namespace lgpu
