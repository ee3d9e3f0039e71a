#include "kernels/bodies/softmax.h"

#include <algorithm>
#include <bit>

#include "kernels/bodies/reduce.h"
#include "kernels/cuda/device_kernels.h"
#include "kernels/launchers/common_kernels.h"
#include "kernels/launchers/common_launch.h"

namespace lgpu {

namespace {

using code::SoftmaxParameters;

template <typename T>
void Softmax(const void* parameters) {
  const auto& p = *static_cast<const SoftmaxParameters*>(parameters);
  for (std::uint64_t row = 0; row < p.rows; ++row) {
    const code::SoftmaxPart<T> part = code::PartOfRow<T>(p, row, 0, 1);
    code::WriteSoftmax<T>(p, row, static_cast<double>(part.most), part.sum, 0, 1);
  }
}

void (*SoftmaxFor(DType dtype))(const void*) {
  switch (dtype) {
    case DType::kFloat16:
      return Softmax<code::HalfBits>;
    case DType::kBFloat16:
      return Softmax<code::BFloat16Bits>;
    case DType::kFloat64:
      return Softmax<double>;
    default:
      return Softmax<float>;
  }
}

// Threads for a row: a pack for each up to a warp, then as many packs for each as are loaded together.
std::uint64_t LanesFor(std::uint64_t classes, std::size_t element_bytes) {
  constexpr std::uint64_t kWarp = 32;
  constexpr std::uint64_t kMost = code::kBlockThreads;
  const std::uint64_t packs = (classes * element_bytes + 15) / 16;
  const std::uint64_t each = (packs + code::kInFlight - 1) / code::kInFlight;
  return std::bit_ceil(std::clamp<std::uint64_t>(std::max(std::min(packs, kWarp), each), 1, kMost));
}

}  // namespace

absl::Status RunSoftmaxCrossEntropy(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                                    const OpAttributes&, Launcher& launcher) {
  const Shape& shape = inputs[0].spec.shape;
  if (shape.elements() == 0) return absl::OkStatus();
  SoftmaxParameters p{};
  p.logits = inputs[0].data;
  p.labels = inputs[1].data;
  p.loss = outputs[0].data;
  p.backprop = outputs[1].data;
  p.rows = static_cast<std::uint64_t>(shape[0]);
  p.classes = static_cast<std::uint64_t>(shape[1]);
  p.wide_labels = inputs[1].spec.dtype == DType::kInt64 ? 1 : 0;
  const DType dtype = inputs[0].spec.dtype;
  const std::uint64_t lanes = LanesFor(p.classes, ElementBytes(dtype));
  p.lanes = static_cast<std::int32_t>(lanes);
  const std::uint64_t rows = code::kBlockThreads / lanes;
  return launcher.Launch(
      CommonLaunch(SoftmaxFor(dtype), SoftmaxKernel(dtype), p, (p.rows + rows - 1) / rows));
}

}  // namespace lgpu
