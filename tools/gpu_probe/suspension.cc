// Public threads report that killing a process that had been restored hung its machine. So each process here
// that was restored is suspended again before it is killed.

#include "tools/gpu_probe/suspension.h"

#include <string>
#include <vector>

#include "tools/gpu_probe/agent.h"
#include "tools/gpu_probe/readings.h"

namespace lgpu::gpu_probe {
namespace {

using nlohmann::json;

constexpr int kPattern = 0x5a;

class Suspender {
 public:
  explicit Suspender(const Bench& bench) : bench_(bench) { agent_.Ask("start"); }

  Answer Make(const std::string& call, Agent& target) {
    return agent_.Ask("process " + call + " " + std::to_string(target.pid()));
  }
  // Locks the target and takes its memory off the card. False: `out` has the words of the driver.
  bool Suspend(Agent& target, json& out) {
    const Answer locked = Make("lock", target);
    out["lock"] = Said(locked);
    if (!locked.ok) return false;
    const Answer taken = Make("checkpoint", target);
    out["checkpoint"] = Said(taken);
    out["state_then"] = Said(Make("state", target));
    out["used_then"] = Used(bench_);
    out["nvml_process_then"] = UsedBy(bench_, target.pid());
    out["self_then"] = Said(target.Ask("self"));
    if (!taken.ok) out["unlock"] = Said(Make("unlock", target));
    return taken.ok;
  }
  bool Resume(Agent& target, json& out) {
    const Answer back = Make("restore", target);
    out["restore"] = Said(back);
    if (!back.ok) return false;
    out["unlock"] = Said(Make("unlock", target));
    out["used_at_the_end"] = Used(bench_);
    return true;
  }
  // Before the target is killed.
  void Leave(Agent& target) {
    Make("lock", target);
    Make("checkpoint", target);
  }

 private:
  const Bench& bench_;
  Agent agent_;
};

// A process with `bytes` of memory made by the commands, which has the pattern.
std::string Fill(Agent& target, const std::vector<std::string>& make) {
  std::vector<std::string> commands = {"start", "context"};
  commands.insert(commands.end(), make.begin(), make.end());
  commands.push_back("fill " + std::to_string(kPattern));
  commands.emplace_back("wait");
  return AskAll(target, commands);
}

// Suspends a process, lets it ask for its memory meanwhile, and resumes it.
json ThereAndBack(const Bench& bench, Suspender& suspender, Agent& target) {
  json out;
  out["used_before"] = Used(bench);
  out["self_before"] = Said(target.Ask("self"));
  if (!suspender.Suspend(target, out)) return out;
  target.Tell("verify " + std::to_string(kPattern));
  out["answer_while_suspended"] = target.HasAnswered(500);
  if (suspender.Resume(target, out)) {
    out["pattern"] = Said(target.Await());
    suspender.Leave(target);
  }
  return out;
}

json OfKind(const Bench& bench, const std::vector<std::string>& make) {
  Suspender suspender(bench);
  Agent target;
  if (const std::string failed = Fill(target, make); !failed.empty()) return {{"failed", failed}};
  return ThereAndBack(bench, suspender, target);
}

json OfImportedMemory(const Bench& bench, std::size_t bytes) {
  Suspender suspender(bench);
  Agent owner;
  Agent target;
  std::string failed = AskAll(owner, {"start", "create " + std::to_string(bytes)});
  if (failed.empty()) failed = AskAll(target, {"start", "context"});
  if (!failed.empty()) return {{"failed", failed}};
  {
    const Answer exported = owner.Ask("export");
    const Answer imported = target.Ask("import " + std::to_string(bytes), exported.fd.get());
    if (!imported.ok) return {{"failed", imported.error}};
  }
  failed = AskAll(target, {"map", "fill " + std::to_string(kPattern), "wait"});
  if (!failed.empty()) return {{"failed", failed}};
  return ThereAndBack(bench, suspender, target);
}

// Another process takes the room of a suspended one, and gives it back after the restore has failed.
json WithoutRoom(const Bench& bench) {
  const std::size_t bytes = bench.total / 4 / (2 * kMiB) * (2 * kMiB);
  json out = {{"bytes", bytes}};
  Suspender suspender(bench);
  Agent target;
  if (const std::string failed = Fill(target, {"alloc " + std::to_string(bytes)}); !failed.empty()) {
    return {{"failed", failed}};
  }
  if (!suspender.Suspend(target, out)) return out;
  {
    Agent other;
    AskAll(other, {"start", "context"});
    std::size_t taken = 0;
    for (std::size_t piece = bytes; piece >= bytes / 4; piece /= 2) {
      while (other.Ask("alloc " + std::to_string(piece)).ok) taken += piece;
    }
    out["taken_by_another"] = taken;
    out["restore_without_room"] = Said(suspender.Make("restore", target));
    out["state_after_it"] = Said(suspender.Make("state", target));
  }
  WaitForRoom(bench, bytes);
  if (suspender.Resume(target, out)) {
    out["pattern"] = Said(target.Ask("verify " + std::to_string(kPattern)));
    suspender.Leave(target);
  }
  return out;
}

}  // namespace

json SuspendProcesses(const Bench& bench) {
  const std::size_t bytes = ChunkBytes(bench, bench.quick ? 64 * kMiB : 8192 * kMiB);
  const std::string size = std::to_string(bytes);
  json out = {{"bytes", bytes}};
  out["allocated"] = OfKind(bench, {"alloc " + size});
  out["exportable"] = OfKind(bench, {"create " + size, "map"});
  out["imported"] = OfImportedMemory(bench, bytes);
  out["without_room"] = WithoutRoom(bench);
  return out;
}

}  // namespace lgpu::gpu_probe
