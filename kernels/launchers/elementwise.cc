#include "kernels/bodies/elementwise.h"

#include <array>

#include "kernels/axes.h"
#include "kernels/cuda/device_kernels.h"
#include "kernels/launchers/common_kernels.h"
#include "kernels/launchers/common_launch.h"
#include "kernels/launchers/transpose.h"
#include "kernels/packing.h"
#include "kernels/registry.h"
#include "lgpu/status.h"

namespace lgpu {

namespace {

using code::Elementwise;
using code::ElementwiseParameters;

constexpr int kMost = ElementwiseParameters::kMostDimensions;
static_assert(kMost == Shape::kMaxRank);

/// The steps of one operand along each dimension of the output.
using Strides = std::array<std::uint64_t, kMost>;

/// The operand's steps; 0 where it has one element for all.
Strides BroadcastStrides(const Shape& operand, const Shape& output) {
  Strides strides{};
  std::uint64_t step = 1;
  for (int d = operand.rank() - 1; d >= 0; --d) {
    const auto at = static_cast<std::size_t>(d + output.rank() - operand.rank());
    strides[at] = operand[d] == 1 ? 0 : step;
    step *= static_cast<std::uint64_t>(operand[d]);
  }
  return strides;
}

/// Merges dimensions that both operands pass through alike.
void SetDimensions(const Shape& output, const Strides& a, const Strides& b, ElementwiseParameters& p) {
  p.rank = 0;
  for (int d = 0; d < output.rank(); ++d) {
    const auto size = static_cast<std::uint64_t>(output[d]);
    if (size == 1) continue;
    const std::uint64_t step_a = a[static_cast<std::size_t>(d)];
    const std::uint64_t step_b = b[static_cast<std::size_t>(d)];
    const int last = p.rank - 1;
    if (last >= 0 && p.a_strides[last] == step_a * size && p.b_strides[last] == step_b * size) {
      p.dimensions[last] *= size;
      p.a_strides[last] = step_a;
      p.b_strides[last] = step_b;
      continue;
    }
    p.dimensions[p.rank] = size;
    p.a_strides[p.rank] = step_a;
    p.b_strides[p.rank] = step_b;
    ++p.rank;
  }
  if (p.rank > 1) return;
  // One run through both operands, or one element for all of it.
  p.a_step = p.rank == 0 || p.a_strides[0] == 0 ? 0 : 1;
  p.b_step = p.rank == 0 || p.b_strides[0] == 0 ? 0 : 1;
  if (p.rank == 1 && (p.a_strides[0] > 1 || p.b_strides[0] > 1)) return;
  p.rank = 0;
}

absl::Status LaunchElementwise(Elementwise function, const TensorView& a, const Strides& a_strides,
                               const TensorView& b, const Strides& b_strides, const TensorView& output,
                               Launcher& launcher) {
  const Shape& shape = output.spec.shape;
  if (shape.elements() == 0) return absl::OkStatus();
  const DType dtype = output.spec.dtype;
  const std::size_t element = ElementBytes(dtype);
  ElementwiseParameters p{};
  p.output = output.data;
  p.a = a.data;
  p.b = b.data;
  p.function = function;
  p.packing.elements = static_cast<std::uint64_t>(shape.elements());
  SetDimensions(shape, a_strides, b_strides, p);
  // Only copies of Transpose have several steps.
  if (function == Elementwise::kCopy && p.rank > 1) {
    if (const auto launched = TransposeByTiles(p, dtype, launcher)) return *launched;
  }
  Alignment alignment(output.data);
  if (p.a_step != 0) alignment.Add(a.data);
  if (p.b_step != 0) alignment.Add(b.data);
  p.packing = alignment.Split(shape.elements(), element);
  if (p.rank != 0) p.packing = {p.packing.elements, p.packing.elements, 0};
  const auto host = ForElementType(dtype, []<typename T>() {
    return +[](const void* parameters) {
      code::ApplyElementwise<T>(*static_cast<const ElementwiseParameters*>(parameters), {0, 1});
    };
  });
  const std::uint64_t blocks = (ThreadsFor(p.packing, element) + 255) / 256;
  return launcher.Launch(CommonLaunch(host, ElementwiseKernel(dtype), p, blocks));
}

template <Elementwise function>
absl::Status RunOfOne(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                      const OpAttributes&, Launcher& launcher) {
  const Strides strides = BroadcastStrides(inputs[0].spec.shape, outputs[0].spec.shape);
  return LaunchElementwise(function, inputs[0], strides, inputs[0], strides, outputs[0], launcher);
}

template <Elementwise function>
absl::Status RunOfTwo(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                      const OpAttributes&, Launcher& launcher) {
  const Shape& output = outputs[0].spec.shape;
  return LaunchElementwise(function, inputs[0], BroadcastStrides(inputs[0].spec.shape, output), inputs[1],
                           BroadcastStrides(inputs[1].spec.shape, output), outputs[0], launcher);
}

/// Each input is copied behind the one before.
absl::Status RunConcat(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                       const OpAttributes&, Launcher& launcher) {
  std::byte* to = outputs[0].data;
  for (const TensorView& input : inputs) {
    const Shape flat{input.spec.shape.elements()};
    const TensorView from{input.data, {input.spec.dtype, flat}};
    const Strides strides = BroadcastStrides(flat, flat);
    LGPU_RETURN_IF_ERROR(LaunchElementwise(Elementwise::kCopy, from, strides, from, strides,
                                           {to, {input.spec.dtype, flat}}, launcher));
    to += static_cast<std::size_t>(flat.elements()) * ElementBytes(input.spec.dtype);
  }
  return absl::OkStatus();
}

}  // namespace

std::span<const CommonKernel> CommonKernels() {
  static const auto kKernels = std::to_array<CommonKernel>({
#define LGPU_ELEMENTWISE_KERNEL(op, inputs, function) {&op##Op(), RunOf##inputs<Elementwise::k##op>},
      LGPU_ELEMENTWISE_OPS(LGPU_ELEMENTWISE_KERNEL)
#undef LGPU_ELEMENTWISE_KERNEL
          {&FillOp(), RunOfOne<Elementwise::kCopy>},
      {&CastOp(), RunCast},
      {&TransposeOp(), RunTranspose},
      {&SumOp(), RunSum},
      {&MeanOp(), RunMean},
      {&SoftmaxCrossEntropyOp(), RunSoftmaxCrossEntropy},
      {&ConcatOp(), RunConcat},
  });
  return kKernels;
}

absl::Status RunTranspose(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                          const OpAttributes& attributes, Launcher& launcher) {
  const Shape& shape = inputs[0].spec.shape;
  const Strides strides = BroadcastStrides(shape, shape);
  const AxisList order = TransposedOrder(shape, attributes.axes);
  Strides permuted{};
  for (std::size_t d = 0; d < static_cast<std::size_t>(shape.rank()); ++d) {
    permuted[d] = strides[static_cast<std::size_t>(order.values[d])];
  }
  return LaunchElementwise(Elementwise::kCopy, inputs[0], permuted, inputs[0], permuted, outputs[0],
                           launcher);
}

}  // namespace lgpu
