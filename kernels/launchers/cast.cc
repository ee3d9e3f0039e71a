#include "kernels/bodies/cast.h"

#include <algorithm>

#include "kernels/cpu/cast.h"
#include "kernels/cuda/device_kernels.h"
#include "kernels/launchers/common_kernels.h"
#include "kernels/launchers/common_launch.h"

namespace lgpu {

namespace {

code::CastType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return code::CastType::kHalf;
    case DType::kBFloat16:
      return code::CastType::kBFloat16;
    case DType::kFloat64:
      return code::CastType::kDouble;
    case DType::kInt32:
      return code::CastType::kInt32;
    case DType::kInt64:
      return code::CastType::kInt64;
    default:
      return code::CastType::kFloat;
  }
}

/// Elements before the first address that is aligned to `count` of them; `count` if there is none.
std::uint64_t HeadOf(const void* pointer, std::size_t element, std::uint64_t count) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return address % element == 0 ? (count - address / element % count) % count : count;
}

}  // namespace

// The CPU's half has code for wide registers; kernels/bodies does the remaining elements.
absl::Status RunCast(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                     const OpAttributes&, Launcher& launcher) {
  const DType from = inputs[0].spec.dtype;
  const DType to = outputs[0].spec.dtype;
  const auto elements = static_cast<std::uint64_t>(outputs[0].spec.shape.elements());
  if (elements == 0) return absl::OkStatus();
  const std::size_t from_bytes = ElementBytes(from);
  const std::size_t to_bytes = ElementBytes(to);
  const std::uint64_t count = 16 / std::max(from_bytes, to_bytes);  // code::CastPack
  const std::uint64_t head = HeadOf(inputs[0].data, from_bytes, count);
  code::CastParameters p{};
  p.output = outputs[0].data;
  p.input = inputs[0].data;
  p.to = TypeOf(to);
  p.packing = {elements, elements, 0};
  if (head < count && head == HeadOf(outputs[0].data, to_bytes, count) && head <= elements) {
    p.packing = {elements, head, (elements - head) / count};
  }
  // Each thread has several packs on their way.
  const std::uint64_t threads =
      std::max((p.packing.packs + code::kInFlight - 1) / code::kInFlight, elements - p.packing.packs * count);
  return launcher.Launch(
      CommonLaunch(cpu::CastFunction(from, to), CastKernel(from), p, (threads + 255) / 256));
}

}  // namespace lgpu
