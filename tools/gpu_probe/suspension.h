#ifndef LGPU_TOOLS_GPU_PROBE_SUSPENSION_H_
#define LGPU_TOOLS_GPU_PROBE_SUSPENSION_H_

#include <nlohmann/json.hpp>

#include "tools/gpu_probe/experiments.h"

namespace lgpu::gpu_probe {

/// Suspends and resumes processes by the driver's checkpoint calls: with memory of cuMemAlloc, with memory
/// that can be exported, with imported memory, and where the card has no room to come back to.
nlohmann::json SuspendProcesses(const Bench& bench);

}  // namespace lgpu::gpu_probe

#endif  // LGPU_TOOLS_GPU_PROBE_SUSPENSION_H_
