// gpu_probe: experiments on a real GPU whose outcome lgpu's design hangs on. Prints one JSON object, or keeps
// it in a file that is whole after every experiment. Each experiment is a process of its own with a limit of
// time: one that hangs loses only its own answer.

#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>

#include "tools/gpu_probe/agent.h"
#include "tools/gpu_probe/experiments.h"

namespace lgpu::gpu_probe {
namespace {

using nlohmann::json;

constexpr int kAgentSocket = 3;
constexpr int kResultPipe = 3;

struct Flags {
  bool quick = false;
  int limit_seconds = 240;  // of an experiment
  std::string out;          // empty: standard output
  std::string only;         // this process is the one of that experiment
  std::string used_of;      // only NVML's figure of this card
  bool about = false;       // only what the machine has
  std::vector<const Experiment*> chosen;
};

std::string Today() {
  char text[32] = {};
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// The machine's equipment, without a call of the driver in this process. `agent` has the driver started:
// while it lives, the driver keeps the card initialised.
Bench Look(Agent& agent, json& about) {
  Bench bench;
  about["date"] = Today();
  const Answer started = agent.Ask("start");
  about["driver_started"] = started.ok ? json(started.numbers) : json(started.error);
  bench.total = static_cast<std::size_t>(started["total"]);
  bench.uuid = started.Word("uuid");  // NVML may count the cards in another order
  const auto nvml = Nvml::Open();
  if (!nvml.ok()) {
    about["nvml"] = std::string(nvml.status().message());
    return bench;
  }
  bench.nvml = *nvml;
  about["driver"] = bench.nvml->DriverVersion();
  const auto devices = bench.nvml->Devices();
  if (!devices.ok()) {
    about["nvml"] = std::string(devices.status().message());
    return bench;
  }
  about["gpus"] = devices->size();
  about["uuid"] = bench.uuid;
  for (const Nvml::Device& device : *devices) {
    if (device.uuid != bench.uuid) continue;
    about["gpu"] = device.name;
    about["compute"] = std::to_string(device.compute_major) + "." + std::to_string(device.compute_minor);
  }
  return bench;
}

int Usage() {
  std::string text =
      "usage: gpu_probe [--quick] [--limit SECONDS] [--out FILE] EXPERIMENT ...|all|about\n"
      "       gpu_probe --used UUID\n"
      "  --limit SECONDS  of one experiment; 240\n"
      "  --out FILE       the answers, rewritten after every experiment\n"
      "  --used UUID      only the bytes that NVML counts as used on that GPU\n"
      "  about\tonly what the machine has: date, GPU, driver\n";
  for (const Experiment& experiment : AllExperiments()) {
    text += std::string("  ") + experiment.name + "\t" + experiment.question + "\n";
  }
  std::fputs(text.c_str(), stderr);
  return 2;
}

bool Parse(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--quick") {
      flags.quick = true;
    } else if (word == "--limit" && has_value) {
      flags.limit_seconds = std::atoi(argv[++i]);
    } else if (word == "--out" && has_value) {
      flags.out = argv[++i];
    } else if (word == "--only" && has_value) {
      flags.only = argv[++i];
    } else if (word == "--used" && has_value) {
      flags.used_of = argv[++i];
    } else if (word == "about") {
      flags.about = true;
    } else {
      const std::size_t before = flags.chosen.size();
      for (const Experiment& experiment : AllExperiments()) {
        if (word == "all" || word == experiment.name) flags.chosen.push_back(&experiment);
      }
      if (flags.chosen.size() == before) return false;
    }
  }
  const int modes =
      int{!flags.chosen.empty()} + int{!flags.only.empty()} + int{!flags.used_of.empty()} + int{flags.about};
  return flags.limit_seconds > 0 && modes == 1;
}

/// Reads `read` until it is closed; nothing if the time is over first.
std::optional<std::string> ReadAll(int read, int seconds) {
  const auto start = std::chrono::steady_clock::now();
  std::string text;
  for (;;) {
    const double left = seconds * 1000.0 - MillisecondsSince(start);
    pollfd polled{read, POLLIN, 0};
    if (left <= 0 || ::poll(&polled, 1, static_cast<int>(left) + 1) <= 0) return std::nullopt;
    char piece[4096];
    const ssize_t count = ::read(read, piece, sizeof(piece));
    if (count <= 0) return text;
    text.append(piece, static_cast<std::size_t>(count));
  }
}

json RunInProcess(const Experiment& experiment, const Flags& flags) {
  absl::StatusOr<Pipe> pipe = Pipe::Make();
  if (!pipe.ok()) return {{"failed", std::string(pipe.status().message())}};
  std::vector<std::string> argv = {"/proc/self/exe", "--only", experiment.name};
  if (flags.quick) argv.emplace_back("--quick");
  absl::StatusOr<SpawnedProcess> process =
      SpawnedProcess::Start({.argv = argv, .descriptors = {{pipe->write.get(), kResultPipe}}});
  if (!process.ok()) return {{"failed", std::string(process.status().message())}};
  pipe->write.Reset();
  const std::optional<std::string> text = ReadAll(pipe->read.get(), flags.limit_seconds);
  if (!text) {
    process->Kill();
    return {{"failed", "it took longer than " + std::to_string(flags.limit_seconds) + " s and was ended"}};
  }
  const int code = process->Wait();
  json result = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (result.is_object()) return result;
  return {{"failed", "its process ended with code " + std::to_string(code) + " and no answer"}};
}

// The process of one experiment.
int RunOnly(const Flags& flags) {
  for (const Experiment& experiment : AllExperiments()) {
    if (flags.only != experiment.name) continue;
    Agent agent;
    json about;
    Bench bench = Look(agent, about);
    bench.quick = flags.quick;
    const std::string text = experiment.run(bench).dump();
    return ::write(kResultPipe, text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1;
  }
  return Usage();
}

int PrintUsed(const std::string& uuid) {
  const auto nvml = Nvml::Open();
  const auto memory = nvml.ok() ? (*nvml)->MemoryOf(uuid) : absl::StatusOr<Nvml::Memory>(nvml.status());
  if (!memory.ok()) {
    std::fprintf(stderr, "gpu_probe: %s\n", std::string(memory.status().message()).c_str());
    return 1;
  }
  std::printf("%zu\n", memory->used.count());
  return 0;
}

/// False: the file cannot be written.
bool Keep(const json& out, const Flags& flags) {
  if (flags.out.empty()) return true;
  const std::string next = flags.out + ".next";
  std::ofstream file(next);
  file << out.dump(2) << "\n";
  file.close();
  if (file.good() && std::rename(next.c_str(), flags.out.c_str()) == 0) return true;
  std::fprintf(stderr, "gpu_probe: cannot write %s\n", flags.out.c_str());
  return false;
}

int Main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--agent") == 0) return RunAgent(kAgentSocket);
  Flags flags;
  if (!Parse(argc, argv, flags)) return Usage();
  if (!flags.only.empty()) return RunOnly(flags);
  if (!flags.used_of.empty()) return PrintUsed(flags.used_of);
  json out;
  Agent idle;
  const bool has_gpu = Look(idle, out["about"]).total != 0;
  if (!Keep(out, flags)) return 1;
  int failed = 0;
  for (const Experiment* const experiment : flags.chosen) {
    if (!has_gpu) break;
    json result = RunInProcess(*experiment, flags);
    failed += result.contains("failed") ? 1 : 0;
    result["question"] = experiment->question;
    out[experiment->name] = std::move(result);
    if (!Keep(out, flags)) return 1;
  }
  if (flags.out.empty()) std::puts(out.dump(2).c_str());
  if (!has_gpu) return 9;
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lgpu::gpu_probe

int main(int argc, char** argv) { return lgpu::gpu_probe::Main(argc, argv); }
