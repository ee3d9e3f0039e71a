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

absl::Status RunShape(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                      const OpAttributes&, Launcher&) {
  std::byte* to = outputs[0].data;
  for (const std::int64_t dimension : inputs[0].spec.shape.dimensions()) {
    Write(dimension, to);
    to += sizeof(std::int32_t);
  }
  return absl::OkStatus();
}

absl::Status RunSize(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                     const OpAttributes&, Launcher&) {
  Write(inputs[0].spec.shape.elements(), outputs[0].data);
  return absl::OkStatus();
}

absl::Status RunRank(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                     const OpAttributes&, Launcher&) {
  Write(inputs[0].spec.shape.rank(), outputs[0].data);
  return absl::OkStatus();
}

}  // namespace lgpu
