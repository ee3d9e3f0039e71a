#include "kernels/bodies/reduce.h"

#include <algorithm>
#include <bit>

#include "kernels/axes.h"
#include "kernels/cuda/device_kernels.h"
#include "kernels/launchers/common_kernels.h"
#include "kernels/launchers/common_launch.h"

namespace lgpu {

namespace {

using code::ReduceParameters;
using code::Strided;

/// One more dimension behind the others; it continues the last one where the steps fit.
void Append(Strided& to, std::uint64_t size, std::uint64_t stride) {
  if (size == 1) return;
  if (to.rank > 0 && to.strides[to.rank - 1] == stride * size) {
    to.dimensions[to.rank - 1] *= size;
    to.strides[to.rank - 1] = stride;
    return;
  }
  to.dimensions[to.rank] = size;
  to.strides[to.rank] = stride;
  ++to.rank;
}

/// How many outputs a block of threads has at a time: few terms leave threads for more of them, and
/// neighbours in memory are read together.
std::int32_t LanesFor(const ReduceParameters& p, bool last_is_kept) {
  constexpr std::uint64_t kThreads = code::kBlockThreads;
  const std::uint64_t rows = std::bit_ceil(std::clamp<std::uint64_t>(p.terms, 1, kThreads));
  const std::uint64_t neighbours =
      last_is_kept ? std::bit_ceil(std::clamp<std::uint64_t>(p.outputs, 1, 32)) : 1;
  return static_cast<std::int32_t>(std::max(kThreads / rows, neighbours));
}

absl::Status Reduce(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                    const OpAttributes& attributes, bool mean, Launcher& launcher) {
  const Shape& shape = inputs[0].spec.shape;
  const std::uint32_t reduced = *ReducedAxes(shape, attributes.axes);  // Op::infer checked them
  ReduceParameters p{};
  p.input = inputs[0].data;
  p.output = outputs[0].data;
  p.outputs = static_cast<std::uint64_t>(outputs[0].spec.shape.elements());
  p.terms = 1;
  p.mean = mean ? 1 : 0;
  if (p.outputs == 0) return absl::OkStatus();
  std::uint64_t strides[Shape::kMaxRank] = {};
  std::uint64_t step = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    strides[d] = step;
    step *= static_cast<std::uint64_t>(shape[d]);
  }
  bool last_is_kept = false;
  for (int d = 0; d < shape.rank(); ++d) {
    const auto size = static_cast<std::uint64_t>(shape[d]);
    const bool is_reduced = (reduced >> d & 1U) != 0;
    if (is_reduced) p.terms *= size;
    Append(is_reduced ? p.reduced : p.kept, size, strides[d]);
    if (size > 1) last_is_kept = !is_reduced;
  }
  p.lanes = LanesFor(p, last_is_kept);
  const DType dtype = outputs[0].spec.dtype;
  const auto host = ForElementType(dtype, []<typename T>() {
    return +[](const void* parameters) {
      const auto& q = *static_cast<const ReduceParameters*>(parameters);
      for (std::uint64_t i = 0; i < q.outputs; ++i) code::WriteSum<T>(q, i, code::PartialSum<T>(q, i, 0, 1));
    };
  });
  const auto lanes = static_cast<std::uint64_t>(p.lanes);
  return launcher.Launch(CommonLaunch(host, ReduceKernel(dtype), p, (p.outputs + lanes - 1) / lanes));
}

}  // namespace

absl::Status RunSum(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                    const OpAttributes& attributes, Launcher& launcher) {
  return Reduce(inputs, outputs, attributes, false, launcher);
}

absl::Status RunMean(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                     const OpAttributes& attributes, Launcher& launcher) {
  return Reduce(inputs, outputs, attributes, true, launcher);
}

}  // namespace lgpu
