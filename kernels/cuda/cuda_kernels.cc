#include "kernels/cuda/cuda_kernels.h"

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/kernel_parameters.h"
#include "kernels/registry.h"

// The fat binary of elementwise.cu (bin2c).
extern "C" const unsigned long long lgpu_cuda_elementwise[];

namespace lgpu {

const DeviceKernel kFillKernel = {lgpu_cuda_elementwise, "lgpu_fill"};
const DeviceKernel kCopyKernel = {lgpu_cuda_elementwise, "lgpu_copy"};
const DeviceKernel kAddNFloatKernel = {lgpu_cuda_elementwise, "lgpu_add_n_float"};

namespace {

constexpr std::uint32_t kBlock = 256;
constexpr std::uint64_t kMostBlocks = 4096;  // kernels stride over the rest

template <typename Parameters>
absl::Status LaunchKernel(const DeviceKernel& kernel, const Parameters& parameters, std::uint64_t threads,
                          Launcher& launcher) {
  KernelLaunch launch;
  launch.device_kernel = &kernel;
  launch.arguments = &parameters;
  launch.argument_bytes = sizeof(parameters);
  SpreadOver(threads, launch);
  return launcher.Launch(launch);
}

}  // namespace

void SpreadOver(std::uint64_t threads, KernelLaunch& launch) {
  launch.block[0] = kBlock;
  launch.grid[0] =
      static_cast<std::uint32_t>(std::clamp<std::uint64_t>((threads + kBlock - 1) / kBlock, 1, kMostBlocks));
}

absl::Status RunAddNFloatOnGpu(std::span<const TensorView> inputs, const TensorView& output,
                               const OpAttributes&, Launcher& launcher) {
  AddNParameters parameters{};
  parameters.output = reinterpret_cast<float*>(output.data);
  parameters.elements = static_cast<std::uint64_t>(output.spec.shape.elements());
  if (parameters.elements == 0) return absl::OkStatus();
  while (!inputs.empty()) {
    const std::size_t count = std::min<std::size_t>(inputs.size(), AddNParameters::kMaxInputs);
    parameters.count = static_cast<std::int32_t>(count);
    for (std::size_t i = 0; i < count; ++i) {
      parameters.inputs[i] = reinterpret_cast<const float*>(inputs[i].data);
    }
    const absl::Status status = LaunchKernel(kAddNFloatKernel, parameters, parameters.elements, launcher);
    if (!status.ok()) return status;
    inputs = inputs.subspan(count);
    parameters.accumulate = 1;
  }
  return absl::OkStatus();
}

absl::Status RunIdentityOnGpu(std::span<const TensorView> inputs, const TensorView& output,
                              const OpAttributes&, Launcher& launcher) {
  CopyParameters parameters{};
  parameters.to = reinterpret_cast<std::uint8_t*>(output.data);
  parameters.from = reinterpret_cast<const std::uint8_t*>(inputs[0].data);
  parameters.bytes =
      static_cast<std::uint64_t>(output.spec.shape.elements()) * ElementBytes(output.spec.dtype);
  if (parameters.bytes == 0) return absl::OkStatus();
  return LaunchKernel(kCopyKernel, parameters, (parameters.bytes + 15) / 16, launcher);
}

}  // namespace lgpu
