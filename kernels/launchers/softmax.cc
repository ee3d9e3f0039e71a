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
    const double most = code::PartialMax<T>(p, row, 0, 1);
    code::WriteSoftmax<T>(p, row, most, code::PartialExponentials<T>(p, row, most, 0, 1), 0, 1);
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
  constexpr std::uint64_t kThreads = code::kBlockThreads;
  const std::uint64_t lanes = std::bit_ceil(std::clamp<std::uint64_t>(p.classes, 1, kThreads));
  p.lanes = static_cast<std::int32_t>(lanes);
  const std::uint64_t rows = kThreads / lanes;
  const DType dtype = inputs[0].spec.dtype;
  return launcher.Launch(
      CommonLaunch(SoftmaxFor(dtype), SoftmaxKernel(dtype), p, (p.rows + rows - 1) / rows));
}

}  // namespace lgpu
