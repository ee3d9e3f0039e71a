// Opens the CUDA backend and NVML and says what came of it, a line each: "ok UUID ..." or "error CODE text".

#include <cstdio>
#include <string>

#include "allocator/device/cuda/cuda_backend.h"
#include "allocator/device/cuda/nvml.h"

int main() {
  const absl::StatusOr<std::vector<std::string>> order = lgpu::CudaEnumeration();
  std::string line = "ok";
  if (order.ok()) {
    for (const std::string& uuid : *order) line += " " + uuid;
  } else {
    line = "error " + absl::StatusCodeToString(order.status().code()) + " " +
           std::string(order.status().message());
  }
  std::puts(line.c_str());
  const auto backend = lgpu::OpenCudaBackend();
  if (backend.ok() != order.ok()) return 1;
  const auto nvml = lgpu::Nvml::Open();
  std::puts(nvml.ok() ? ("ok " + (*nvml)->DriverVersion()).c_str()
                      : ("error " + std::string(nvml.status().message())).c_str());
  return 0;
}
