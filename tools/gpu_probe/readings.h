#ifndef LGPU_TOOLS_GPU_PROBE_READINGS_H_
#define LGPU_TOOLS_GPU_PROBE_READINGS_H_

#include <sys/types.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/gpu_probe/agent.h"
#include "tools/gpu_probe/experiments.h"

namespace lgpu::gpu_probe {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

/// An agent's answer as it stands in the report.
nlohmann::json Said(const Answer& answer);
/// Asks one command after the other; the first that fails, with its words, or "".
std::string AskAll(Agent& agent, const std::vector<std::string>& commands);

/// NVML's figure of the card, in bytes; null without NVML.
nlohmann::json Used(const Bench& bench);
/// NVML's figure for a process, in bytes; "not listed", or null without NVML.
nlohmann::json UsedBy(const Bench& bench, pid_t pid);
/// How much larger `after` is; 0 where one is no number.
double Growth(const nlohmann::json& before, const nlohmann::json& after);
/// At most `wished` bytes, and at most an eighth of the card, in whole chunks.
std::size_t ChunkBytes(const Bench& bench, std::size_t wished);
/// Waits until the card has so many bytes free, 10 s at most.
void WaitForRoom(const Bench& bench, std::size_t bytes);

}  // namespace lgpu::gpu_probe

#endif  // LGPU_TOOLS_GPU_PROBE_READINGS_H_
