// Opens the CUDA backend and NVML and prints the results, a line each: "ok UUID ..." or "error CODE text" of
// the enumeration; NVML's version; then, of a backend that opens, each refused GPU and the result of a
// kernel.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "allocator/device/cuda/cuda_backend.h"
#include "allocator/device/cuda/cuda_memory.h"
#include "allocator/device/cuda/nvml.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/kernel_parameters.h"
#include "lgpu/status.h"

namespace {

std::string Text(const absl::Status& status) {
  std::string message(status.message());
  std::replace(message.begin(), message.end(), '\n', ' ');
  return "error " + absl::StatusCodeToString(status.code()) + " " + message;
}

absl::Status RunKernel(lgpu::DeviceBackend& backend) {
  using lgpu::operator""_MiB;
  LGPU_ASSIGN_OR_RETURN(const lgpu::MemoryHandle memory, backend.Create(0, 2_MiB));
  LGPU_ASSIGN_OR_RETURN(std::byte* const base, backend.Reserve(0, 2_MiB));
  LGPU_RETURN_IF_ERROR(backend.Map(base, memory));
  LGPU_RETURN_IF_ERROR(backend.SetAccess(base, 2_MiB));
  LGPU_ASSIGN_OR_RETURN(const lgpu::StreamHandle stream, backend.CreateStream(0, 0));
  lgpu::FillParameters parameters{};
  parameters.to = reinterpret_cast<std::uint8_t*>(base);
  parameters.count = (2_MiB).count();
  lgpu::KernelLaunch launch;
  launch.device_kernel = &lgpu::kFillKernel;
  launch.arguments = &parameters;
  launch.argument_bytes = sizeof(parameters);
  lgpu::SpreadOver(parameters.count, launch);
  LGPU_RETURN_IF_ERROR(backend.Launch(stream, launch));
  return backend.Drain(stream);
}

}  // namespace

int main() {
  const absl::StatusOr<std::vector<std::string>> order = lgpu::CudaEnumeration();
  std::string line = "ok";
  if (order.ok()) {
    for (const std::string& uuid : *order) line += " " + uuid;
  } else {
    line = Text(order.status());
  }
  std::puts(line.c_str());
  const auto backend = lgpu::OpenCudaBackend();
  if (backend.ok() != order.ok()) return 1;
  const auto nvml = lgpu::Nvml::Open();
  std::puts(nvml.ok() ? ("ok " + (*nvml)->DriverVersion()).c_str()
                      : ("error " + std::string(nvml.status().message())).c_str());
  if (!backend.ok()) return 0;
  const absl::Status kernel = RunKernel(**backend);
  std::puts(kernel.ok() ? "kernel ok" : ("kernel " + Text(kernel)).c_str());
  if (nvml.ok()) {
    const auto figures = (*nvml)->MemoryOf(order->front());
    const auto processes = (*nvml)->ProcessesOf(order->front());
    std::string seen = "nvml";
    if (figures.ok()) seen += " used " + lgpu::FormatBytes(figures->used);
    if (processes.ok()) {
      for (const auto& process : *processes) {
        seen += std::string(process.pid == ::getpid() ? " this process " : " another process ") +
                lgpu::FormatBytes(process.used.value_or(lgpu::Bytes()));
      }
    }
    std::puts(seen.c_str());
  }
  const auto memory = lgpu::OpenCudaMemory(nullptr);
  if (!memory.ok()) return 1;
  for (const lgpu::RefusedGpu& gpu : memory->refused) {
    std::puts(("refused " + gpu.about.uuid + ": " + gpu.reason).c_str());
  }
  return 0;
}
