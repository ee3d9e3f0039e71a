// gpu_probe: experiments on a real GPU whose outcome lgpu's design hangs on. Every subcommand prints one JSON
// object.

#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>

#include "tools/gpu_probe/agent.h"
#include "tools/gpu_probe/experiments.h"

namespace lgpu::gpu_probe {
namespace {

constexpr int kAgentSocket = 3;

std::string Today() {
  char text[32] = {};
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// What the machine has, without a call of the driver in this process.
Bench Look(nlohmann::json& about) {
  Bench bench;
  about["date"] = Today();
  Agent agent;
  const Answer started = agent.Ask("start");
  about["driver_started"] = started.ok ? nlohmann::json(started.numbers) : nlohmann::json(started.error);
  bench.total = static_cast<std::size_t>(started["total"]);
  const auto nvml = Nvml::Open();
  if (!nvml.ok()) {
    about["nvml"] = std::string(nvml.status().message());
    return bench;
  }
  bench.nvml = *nvml;
  about["driver"] = bench.nvml->DriverVersion();
  const auto devices = bench.nvml->Devices();
  if (devices.ok() && !devices->empty()) {
    bench.uuid = devices->front().uuid;
    about["gpu"] = devices->front().name;
    about["gpus"] = devices->size();
    about["compute"] =
        std::to_string(devices->front().compute_major) + "." + std::to_string(devices->front().compute_minor);
  }
  return bench;
}

int Usage() {
  std::string text = "usage: gpu_probe [--quick] EXPERIMENT ...|all\n";
  for (const Experiment& experiment : AllExperiments()) {
    text += std::string("  ") + experiment.name + "\t" + experiment.question + "\n";
  }
  std::fputs(text.c_str(), stderr);
  return 2;
}

int Main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--agent") == 0) return RunAgent(kAgentSocket);
  nlohmann::json out;
  bool quick = false;
  std::vector<const Experiment*> chosen;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--quick") {
      quick = true;
      continue;
    }
    const std::size_t before = chosen.size();
    for (const Experiment& experiment : AllExperiments()) {
      if (word == "all" || word == experiment.name) chosen.push_back(&experiment);
    }
    if (chosen.size() == before) return Usage();
  }
  if (chosen.empty()) return Usage();
  Bench bench = Look(out["about"]);
  bench.quick = quick;
  if (bench.total == 0) {
    std::puts(out.dump(2).c_str());
    return 9;
  }
  for (const Experiment* const experiment : chosen) {
    nlohmann::json result = experiment->run(bench);
    result["question"] = experiment->question;
    out[experiment->name] = std::move(result);
  }
  std::puts(out.dump(2).c_str());
  return 0;
}

}  // namespace
}  // namespace lgpu::gpu_probe

int main(int argc, char** argv) { return lgpu::gpu_probe::Main(argc, argv); }
