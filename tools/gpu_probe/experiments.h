#ifndef LGPU_TOOLS_GPU_PROBE_EXPERIMENTS_H_
#define LGPU_TOOLS_GPU_PROBE_EXPERIMENTS_H_

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "allocator/device/cuda/nvml.h"

namespace lgpu::gpu_probe {

/// The means of the experiments.
struct Bench {
  std::shared_ptr<Nvml> nvml;  // may be null
  std::string uuid;            // of the GPU that the driver counts as 0; empty without a driver
  std::size_t total = 0;       // of that GPU
  bool quick = false;          // less of everything
};

struct Experiment {
  const char* name;      // "e1"
  const char* question;  // the question that it answers
  nlohmann::json (*run)(const Bench& bench);
};

/// In the order in which they matter.
std::span<const Experiment> AllExperiments();

}  // namespace lgpu::gpu_probe

#endif  // LGPU_TOOLS_GPU_PROBE_EXPERIMENTS_H_
