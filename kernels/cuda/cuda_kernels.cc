#include "kernels/cuda/cuda_kernels.h"

#include <algorithm>
#include <cstddef>

#include "kernels/bodies/add_n.h"
#include "kernels/cuda/device_kernels.h"
#include "kernels/cuda/kernel_parameters.h"
#include "kernels/packing.h"
#include "kernels/registry.h"

namespace lgpu {

namespace {

template <typename Parameters>
absl::Status LaunchKernel(const DeviceKernel* kernel, const Parameters& parameters, std::uint64_t threads,
                          Launcher& launcher) {
  KernelLaunch launch;
  launch.device_kernel = kernel;
  launch.arguments = &parameters;
  launch.argument_bytes = sizeof(parameters);
  SpreadOver(threads, launch);
  return launcher.Launch(launch);
}

/// Each thread has kInFlight packs on their way.
std::uint64_t ThreadsForBytes(std::uint64_t bytes) {
  constexpr std::uint64_t kBytes = 16 * code::kInFlight;
  return (bytes + kBytes - 1) / kBytes;
}

/// One launch over at most Parameters::kMost inputs.
template <typename Parameters>
absl::Status LaunchAddN(std::span<const TensorView> inputs, const TensorView& output, bool accumulate,
                        Launcher& launcher) {
  Parameters parameters;
  parameters.output = output.data;
  parameters.count = static_cast<std::int32_t>(inputs.size());
  parameters.accumulate = accumulate ? 1 : 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) parameters.inputs[i] = inputs[i].data;
  const std::size_t element = ElementBytes(output.spec.dtype);
  Alignment alignment(output.data);
  for (const TensorView& input : inputs) alignment.Add(input.data);
  parameters.packing = alignment.Split(output.spec.shape.elements(), element);
  const DeviceKernel* const kernel =
      AddNKernel(output.spec.dtype, std::is_same_v<Parameters, code::AddNMany>);
  return LaunchKernel(kernel, parameters, ThreadsFor(parameters.packing, element), launcher);
}

}  // namespace

void SpreadOver(std::uint64_t threads, KernelLaunch& launch) {
  constexpr std::uint32_t kBlock = 256;
  constexpr std::uint64_t kMostBlocks = 4096;  // kernels stride over the rest
  launch.block[0] = kBlock;
  launch.grid[0] =
      static_cast<std::uint32_t>(std::clamp<std::uint64_t>((threads + kBlock - 1) / kBlock, 1, kMostBlocks));
}

absl::Status RunAddNOnGpu(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                          const OpAttributes&, Launcher& launcher) {
  if (outputs[0].spec.shape.elements() == 0) return absl::OkStatus();
  bool accumulate = false;
  while (!inputs.empty()) {
    const auto now = inputs.first(std::min<std::size_t>(inputs.size(), code::AddNMany::kMost));
    const bool few = now.size() <= code::AddNFew::kMost;
    const absl::Status status = few ? LaunchAddN<code::AddNFew>(now, outputs[0], accumulate, launcher)
                                    : LaunchAddN<code::AddNMany>(now, outputs[0], accumulate, launcher);
    if (!status.ok()) return status;
    inputs = inputs.subspan(now.size());
    accumulate = true;
  }
  return absl::OkStatus();
}

absl::Status RunIdentityOnGpu(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                              const OpAttributes&, Launcher& launcher) {
  CopyParameters parameters{};
  parameters.to = reinterpret_cast<std::uint8_t*>(outputs[0].data);
  parameters.from = reinterpret_cast<const std::uint8_t*>(inputs[0].data);
  parameters.bytes =
      static_cast<std::uint64_t>(outputs[0].spec.shape.elements()) * ElementBytes(outputs[0].spec.dtype);
  if (parameters.bytes == 0) return absl::OkStatus();
  return LaunchKernel(&kCopyKernel, parameters, ThreadsForBytes(parameters.bytes), launcher);
}

absl::Status RunMatMulOnGpu(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                            const OpAttributes& attributes, Launcher& launcher) {
  const Shape& shape = outputs[0].spec.shape;
  if (shape.elements() == 0) return absl::OkStatus();
  const MatMulProblem problem{.dtype = outputs[0].spec.dtype,
                              .m = shape[0],
                              .n = shape[1],
                              .k = inputs[0].spec.shape[attributes.transpose_a ? 0 : 1],
                              .transpose_a = attributes.transpose_a,
                              .transpose_b = attributes.transpose_b,
                              .a = inputs[0].data,
                              .b = inputs[1].data,
                              .output = outputs[0].data};
  if (problem.k == 0) {  // an empty sum, whose operands have no address
    FillParameters zeros{};
    zeros.to = reinterpret_cast<std::uint8_t*>(problem.output);
    zeros.count = static_cast<std::uint64_t>(shape.elements()) * ElementBytes(problem.dtype);
    return LaunchKernel(&kFillKernel, zeros, ThreadsForBytes(zeros.count), launcher);
  }
  return launcher.CallLibrary(
      [&problem](const LibraryCall& call) { return call.matmul->MatMul(problem, call); });
}

}  // namespace lgpu
