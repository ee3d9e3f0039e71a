// The experiments: commands to agents, then readings of NVML and clocks. Every experiment gives a JSON
// object; a step that fails is in it with the driver's words and ends nothing. One file past the usual
// length: one function an experiment, and a table of them.

#include "tools/gpu_probe/experiments.h"

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "tools/gpu_probe/agent.h"
#include "tools/gpu_probe/readings.h"
#include "tools/gpu_probe/suspension.h"

namespace lgpu::gpu_probe {
namespace {

using nlohmann::json;

constexpr int kPattern = 0x5a;

std::string Number(std::size_t number) { return std::to_string(number); }

json ContextLessCreate(const Bench& bench) {
  const std::size_t bytes = ChunkBytes(bench, 1024 * kMiB);
  Agent daemon;
  json out;
  out["start"] = Said(daemon.Ask("start"));
  const json before = Used(bench);
  out["create"] = Said(daemon.Ask("create " + Number(bytes)));
  Answer exported = daemon.Ask("export");
  out["export"] = Said(exported);
  const json after = Used(bench);
  out["bytes"] = bytes;
  out["used_before"] = before;
  out["used_after"] = after;
  out["beyond_payload"] = Growth(before, after) - static_cast<double>(bytes);
  out["second_create"] = Said(daemon.Ask("create " + Number(bytes)));
  out["beyond_second_payload"] = Growth(after, Used(bench)) - static_cast<double>(bytes);
  out["nvml_process"] = UsedBy(bench, daemon.pid());
  out["self"] = Said(daemon.Ask("self"));
  return out;
}

json Charging(const Bench& bench) {
  const std::size_t bytes = ChunkBytes(bench, 256 * kMiB);
  json out;
  out["bytes"] = bytes;
  Agent owner;
  Agent user;
  owner.Ask("start");
  user.Ask("start");
  user.Ask("context");
  const auto look = [&](const char* when) {
    out[when] = {
        {"used", Used(bench)}, {"owner", UsedBy(bench, owner.pid())}, {"user", UsedBy(bench, user.pid())}};
  };
  look("context_only");
  owner.Ask("create " + Number(bytes));
  Answer exported = owner.Ask("export");
  out["import"] = Said(user.Ask("import " + Number(bytes), exported.fd.get()));
  out["map"] = Said(user.Ask("map"));
  exported.fd.Reset();
  look("both_alive");
  owner.Ask("release");
  look("owner_released");
  owner.Kill();
  look("owner_dead");
  user.Ask("unmap");
  user.Ask("release");
  look("user_released");
  return out;
}

json DescriptorKeeper(const Bench& bench) {
  const std::size_t bytes = ChunkBytes(bench, 64 * kMiB);
  Agent exporter;
  Agent keeper;  // makes no call of the driver
  Agent reader;
  json out;
  exporter.Ask("start");
  exporter.Ask("context");
  exporter.Ask("create " + Number(bytes));
  exporter.Ask("map");
  exporter.Ask("fill " + Number(kPattern));
  exporter.Ask("wait");
  {
    const Answer exported = exporter.Ask("export");
    keeper.Ask("keep", exported.fd.get());
  }
  exporter.Kill();
  const json kept = Used(bench);
  reader.Ask("start");
  reader.Ask("context");
  {
    const Answer given = keeper.Ask("give");
    out["import_after_exporter_died"] = Said(reader.Ask("import " + Number(bytes), given.fd.get()));
  }
  out["map"] = Said(reader.Ask("map"));
  out["pattern"] = Said(reader.Ask("verify " + Number(kPattern)));
  keeper.Ask("drop");
  out["pattern_after_keeper_closed"] = Said(reader.Ask("verify " + Number(kPattern)));
  reader.Ask("unmap");
  reader.Ask("release");
  out["used_kept"] = kept;
  out["used_at_the_end"] = Used(bench);
  return out;
}

json DaemonDeath(const Bench& bench) {
  const std::size_t bytes = ChunkBytes(bench, 64 * kMiB);
  Agent daemon;
  Agent client;
  Agent next;
  json out;
  daemon.Ask("start");
  daemon.Ask("create " + Number(bytes));
  client.Ask("start");
  client.Ask("context");
  {
    const Answer exported = daemon.Ask("export");
    client.Ask("import " + Number(bytes), exported.fd.get());
  }
  client.Ask("map");
  client.Tell("work " + Number(bench.quick ? 100 : 1000));
  daemon.Kill();
  out["client_worked_on"] = Said(client.Await());
  client.Ask("fill " + Number(kPattern));
  client.Ask("wait");
  const Answer again = client.Ask("reexport");
  out["reexport_of_an_imported_handle"] = Said(again);
  next.Ask("start");
  next.Ask("context");
  out["import_of_that"] = Said(next.Ask("import " + Number(bytes), again.fd.get()));
  out["map_of_that"] = Said(next.Ask("map"));
  out["pattern"] = Said(next.Ask("verify " + Number(kPattern)));
  return out;
}

json ClientDeath(const Bench& bench) {
  json out = json::array();
  std::vector<std::size_t> sizes = {2 * kMiB, bench.total / 10, bench.total / 10 * 8};
  for (std::size_t bytes : sizes) {
    bytes = std::max(bytes / (2 * kMiB) * (2 * kMiB), 2 * kMiB);
    Agent client;
    client.Ask("start");
    client.Ask("context");
    const json before = Used(bench);
    const Answer created = client.Ask("create " + Number(bytes));
    client.Ask("map");
    client.Ask("fill 1 20");
    const auto start = std::chrono::steady_clock::now();
    const Agent::Death death = client.KillAndTime();
    json back = nullptr;
    while (MillisecondsSince(start) < 30'000 && before.is_number()) {
      const json used = Used(bench);  // a query that fails is no answer
      if (used.is_number() && used.get<double>() <= before.get<double>()) {
        back = MillisecondsSince(start);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    Agent next;
    next.Ask("start");
    Answer again = next.Ask("create " + Number(bytes));
    while (!again.ok && MillisecondsSince(start) < 30'000) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      again = next.Ask("create " + Number(bytes));
    }
    out.push_back({{"bytes", bytes},
                   {"created", Said(created)},
                   {"socket_closed_ms", death.socket_ms},
                   {"process_gone_ms", death.process_ms},
                   {"nvml_free_ms", back},
                   {"create_again", Said(again)},
                   {"create_again_ms", MillisecondsSince(start)}});
  }
  return {{"cases", out}};
}

json Costs(const Bench& bench) {
  json out;
  Agent agent;
  agent.Ask("start");
  agent.Ask("context");
  for (const std::size_t mib : {2, 16, 32, 64, 256, 1024}) {
    const std::size_t bytes = mib * kMiB;
    const std::size_t fit = bench.total / 2 / bytes;
    const std::size_t count = std::min<std::size_t>(fit, bench.quick ? 4 : (mib <= 32 ? 64 : 8));
    if (count == 0) continue;
    json& entry = out[Number(mib) + "MiB"];
    entry["count"] = count;
    entry["first"] = Said(agent.Ask("cost " + Number(bytes) + " " + Number(count)));
    entry["again"] = Said(agent.Ask("cost " + Number(bytes) + " " + Number(count)));
    // A kernel in this process, then one in another.
    Agent other;
    other.Ask("start");
    other.Ask("context");
    other.Ask("create " + Number(2 * kMiB));
    other.Ask("map");
    other.Tell("work " + Number(bench.quick ? 50 : 500));
    entry["while_another_process_works"] = Said(agent.Ask("cost " + Number(bytes) + " " + Number(count)));
    entry["that_process"] = Said(other.Await());
  }
  return out;
}

json Limits(const Bench& bench) {
  const std::size_t most = bench.quick ? 512 : 100'000;
  json out;
  for (const char* const what : {"handles", "descriptors", "mappings"}) {
    Agent agent;
    agent.Ask("start");
    agent.Ask("context");
    out[what] = Said(agent.Ask(std::string("limit ") + what + " " + Number(most)));
  }
  return out;
}

// Writes a pattern into memory, checks it, and gives the memory up.
std::string WriteAndGiveUp(std::size_t bytes, bool killed) {
  Agent writer;
  std::string failed = AskAll(
      writer, {"start", "context", "create " + Number(bytes), "map", "fill " + Number(kPattern), "wait"});
  if (!failed.empty()) return failed;
  const Answer found = writer.Ask("find " + Number(kPattern));
  if (!found.ok) return "find before it is given up: " + found.error;
  if (found["found"] != static_cast<double>(bytes)) return "the pattern was not in the memory that had it";
  if (!killed) return AskAll(writer, {"unmap", "release"});
  writer.Kill();
  return "";
}

// All memory that is free, in pieces: smaller ones when there is no room for larger ones.
json FindInFreeMemory(std::size_t bytes) {
  Agent reader;
  const std::string failed = AskAll(reader, {"start", "context"});
  if (!failed.empty()) return {{"failed", failed}};
  double searched = 0;
  double found = 0;
  for (std::size_t piece = bytes; piece >= 2 * kMiB;) {
    const Answer created = reader.Ask("create " + Number(piece));
    if (!created.ok && created.error.find("OUT_OF_MEMORY") == std::string::npos) {
      return {{"failed", "create: " + created.error}};
    }
    if (!created.ok) {
      piece = piece / 2 / (2 * kMiB) * (2 * kMiB);
      continue;
    }
    const std::string mapped = AskAll(reader, {"map"});
    const Answer looked = reader.Ask("find " + Number(kPattern));
    if (!mapped.empty() || !looked.ok) return {{"failed", mapped.empty() ? looked.error : mapped}};
    searched += static_cast<double>(piece);
    found += looked["found"];
  }
  return {{"searched", searched}, {"found", found}};
}

json Scrub(const Bench& bench) {
  const std::size_t bytes = ChunkBytes(bench, 512 * kMiB);
  json out = {{"bytes", bytes}};
  // Once: when the second case begins, the driver may still be taking back what the first one's reader had.
  const json before = Used(bench);
  for (const bool killed : {false, true}) {
    json& step = out[killed ? "after_sigkill" : "after_release"];
    if (const std::string failed = WriteAndGiveUp(bytes, killed); !failed.empty()) {
      step = {{"answer", "not known"}, {"why", failed}};
      continue;
    }
    const auto start = std::chrono::steady_clock::now();
    while (MillisecondsSince(start) < 10'000 && Growth(before, Used(bench)) > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    step = FindInFreeMemory(bytes);
    if (step.contains("failed")) {
      step = {{"answer", "not known"}, {"why", step["failed"]}};
    } else if (step["found"] != 0) {
      step["answer"] = "not cleared";
    } else if (step["searched"].get<double>() < static_cast<double>(bytes)) {
      step["answer"] = "not known";
      step["why"] = "less memory was free than had the pattern";
    } else {
      step["answer"] = "cleared";
    }
  }
  return out;
}

json Overheads(const Bench& bench) {
  json out;
  Agent agent;
  agent.Ask("start");
  json before = Used(bench);
  const auto step = [&](const char* name, const std::string& command) {
    const Answer answer = agent.Ask(command);
    const json after = Used(bench);
    out[name] = {{"said", Said(answer)}, {"bytes", Growth(before, after)}};
    before = after;
  };
  step("primary_context", "context");
  step("module", "module");
  step("chunk", "create " + Number(2 * kMiB));
  step("map", "map");
  step("first_kernel", "fill 1");
  step("cublaslt_create", "library libcublasLt.so.13 cublasLtCreate");
  step("cublas_create", "library libcublas.so.13 cublasCreate_v2");
  return out;
}

json MapWithoutContext(const Bench&) {
  Agent agent;
  agent.Ask("start");
  agent.Ask("create " + Number(2 * kMiB));
  return {{"map_without_context", Said(agent.Ask("map"))}};
}

json UnmapUnderWork(const Bench& bench) {
  const std::size_t bytes = ChunkBytes(bench, 256 * kMiB);
  json out;
  {
    Agent agent;
    agent.Ask("start");
    agent.Ask("context");
    agent.Ask("create " + Number(bytes));
    agent.Ask("map");
    agent.Ask("fill 1 10");
    agent.Ask("wait");
    out["unmap_after_the_work"] = Said(agent.Ask("unmap"));
  }
  Agent other;  // does it notice?
  other.Ask("start");
  other.Ask("context");
  other.Ask("create " + Number(2 * kMiB));
  other.Ask("map");
  {
    Agent agent;
    agent.Ask("start");
    agent.Ask("context");
    agent.Ask("create " + Number(bytes));
    agent.Ask("map");
    agent.Ask("fill 1 200");
    out["unmap_under_queued_work"] = Said(agent.Ask("unmap"));
    out["the_stream_then"] = Said(agent.Ask("wait"));
  }
  {
    Agent agent;
    agent.Ask("start");
    agent.Ask("context");
    agent.Ask("create " + Number(2 * kMiB));
    out["map_read_only"] = Said(agent.Ask("map read-only"));
    out["write_to_it"] = Said(agent.Ask("fill 1"));
    out["the_stream_after_that"] = Said(agent.Ask("wait"));
  }
  out["another_process_meanwhile"] = Said(other.Ask("work 10"));
  return out;
}

json Visibility(const Bench& bench) {
  json out;
  const std::string prefix = bench.uuid.empty() ? "GPU-0" : bench.uuid.substr(0, 12);
  for (const std::string& value :
       {std::string(), std::string("-1"), std::string("0,0"), std::string("0,foo"), prefix,
        std::string("GPU-zz"), std::string("0,-1"), std::string(" 0"), std::string("00"), std::string("0")}) {
    Agent agent({{"CUDA_VISIBLE_DEVICES", value}});
    out["\"" + value + "\""] = Said(agent.Ask("start"));
  }
  return out;
}

json Mps(const Bench& bench) {
  Agent agent;
  agent.Ask("start");
  json out = {{"mps_enabled", Said(agent.Ask("mps"))}};
  agent.Ask("context");
  out["nvml_process"] = UsedBy(bench, agent.pid());
  return out;
}

// A process with a context and memory to work on.
void PrepareToWork(Agent& agent, const Bench& bench) {
  agent.Ask("start");
  agent.Ask("context");
  agent.Ask("create " + Number(ChunkBytes(bench, 256 * kMiB)));
  agent.Ask("map");
  agent.Ask("fill 1");
  agent.Ask("wait");
}

// How much of a card's speed a part of its multiprocessors has, alone and beside a program with all of them.
json GreenContexts(const Bench& bench) {
  const std::string work = "work " + Number(bench.quick ? 50 : 1000);
  json out;
  Agent whole;
  PrepareToWork(whole, bench);
  out["all_multiprocessors"] = Said(whole.Ask(work));
  for (const std::size_t multiprocessors : {8, 16, 64}) {
    Agent agent;
    PrepareToWork(agent, bench);
    const json before = Used(bench);
    const Answer made = agent.Ask("green " + Number(multiprocessors));
    json& part = out[Number(multiprocessors)];
    part["made"] = Said(made);
    if (!made.ok) continue;
    part["bytes"] = Growth(before, Used(bench));
    part["alone"] = Said(agent.Ask(work));
    agent.Tell(work);
    whole.Tell(work);
    part["beside_another_program"] = Said(agent.Await());
    part["the_other_program"] = Said(whole.Await());
  }
  return out;
}

json TimeSlices(const Bench& bench) {
  const std::string work = "work " + Number(bench.quick ? 100 : 2000);
  Agent one;
  Agent two;
  PrepareToWork(one, bench);
  PrepareToWork(two, bench);
  json out;
  out["alone"] = Said(one.Ask(work));
  one.Tell(work);
  two.Tell(work);
  out["first_of_two"] = Said(one.Await());
  out["second_of_two"] = Said(two.Await());
  return out;
}

constexpr Experiment kExperiments[] = {
    {"e1", "what a process without a context costs that creates and exports memory", ContextLessCreate},
    {"e2", "to which process NVML charges memory that another one created", Charging},
    {"e3", "whether a descriptor alone keeps memory alive", DescriptorKeeper},
    {"e4", "whether clients go on when the creator is killed, and can export again", DaemonDeath},
    {"e5", "how long after SIGKILL the memory is back", ClientDeath},
    {"e6", "what every call costs, by size", Costs},
    {"e7", "how many handles, descriptors and mappings there may be", Limits},
    {"e8", "whether memory is cleared between two owners", Scrub},
    {"e9", "what contexts, modules and libraries take", Overheads},
    {"e10", "what mapping without a context says", MapWithoutContext},
    {"e11", "what unmapping under queued work and writing read-only memory do", UnmapUnderWork},
    {"e12", "what values of CUDA_VISIBLE_DEVICES leave", Visibility},
    {"e13", "whether MPS is on, and what NVML shows then", Mps},
    {"e14", "what a part of the multiprocessors does alone and beside others (green contexts)",
     GreenContexts},
    {"e15", "how two processes share the time of a card", TimeSlices},
    {"e16", "what suspending a process by the driver's checkpoint calls does", SuspendProcesses},
};

}  // namespace

std::span<const Experiment> AllExperiments() { return kExperiments; }

}  // namespace lgpu::gpu_probe
