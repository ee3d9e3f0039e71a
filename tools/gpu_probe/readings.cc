#include "tools/gpu_probe/readings.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace lgpu::gpu_probe {

using nlohmann::json;

json Said(const Answer& answer) {
  if (!answer.ok) return answer.error;
  return answer.numbers.empty() ? json("ok") : json(answer.numbers);
}

json Used(const Bench& bench) {
  if (bench.nvml == nullptr) return nullptr;
  const auto memory = bench.nvml->MemoryOf(bench.uuid);
  return memory.ok() ? json(memory->used.count()) : json(nullptr);
}

json UsedBy(const Bench& bench, pid_t pid) {
  if (bench.nvml == nullptr) return nullptr;
  const auto processes = bench.nvml->ProcessesOf(bench.uuid);
  if (!processes.ok()) return std::string(processes.status().message());
  for (const Nvml::Process& process : *processes) {
    if (process.pid == pid) return process.used ? json(process.used->count()) : json("not available");
  }
  return "not listed";
}

double Growth(const json& before, const json& after) {
  return before.is_number() && after.is_number() ? after.get<double>() - before.get<double>() : 0;
}

std::size_t ChunkBytes(const Bench& bench, std::size_t wished) {
  return std::min(wished, bench.total / 8 / (2 * kMiB) * (2 * kMiB));
}

std::string AskAll(Agent& agent, const std::vector<std::string>& commands) {
  for (const std::string& command : commands) {
    const Answer answer = agent.Ask(command);
    if (!answer.ok) return command + ": " + answer.error;
  }
  return "";
}

void WaitForRoom(const Bench& bench, std::size_t bytes) {
  const auto start = std::chrono::steady_clock::now();
  while (MillisecondsSince(start) < 10'000) {
    const json used = Used(bench);
    if (used.is_number() &&
        used.get<double>() + static_cast<double>(bytes) <= static_cast<double>(bench.total))
      return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace lgpu::gpu_probe
