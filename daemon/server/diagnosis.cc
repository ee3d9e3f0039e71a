#include "daemon/server/diagnosis.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "allocator/device/cuda/nvml.h"
#include "base/process.h"
#include "lgpu/bytes.h"

namespace lgpu::daemon {
namespace {

// Enough for a few hundred sessions.
constexpr rlim_t kFewDescriptors = 4096;

void Add(v1::Diagnosis& diagnosis, const char* id, v1::Diagnosis::Level level, std::string text) {
  v1::Diagnosis::Finding& finding = *diagnosis.add_findings();
  finding.set_id(id);
  finding.set_level(level);
  finding.set_text(std::move(text));
}

std::string Size(std::uint64_t bytes) { return FormatBytes(Bytes(bytes)); }

std::string ProcessName(std::int64_t pid) {
  const std::string name = ProcessCommand(pid);
  return absl::StrCat(name.empty() ? "?" : name, " (pid ", pid, ")");
}

void ExamineComputeModes(Nvml& nvml, const std::vector<v1::CardStats>& served, v1::Diagnosis& diagnosis) {
  std::vector<std::string> exclusive;
  for (const v1::CardStats& card : served) {
    const absl::StatusOr<Nvml::ComputeMode> mode = nvml.ComputeModeOf(card.uuid());
    if (mode.ok() && *mode != Nvml::ComputeMode::kDefault) {
      exclusive.push_back(absl::StrCat(
          "GPU ", card.index(), *mode == Nvml::ComputeMode::kProhibited ? " (prohibited)" : " (exclusive)"));
    }
  }
  if (exclusive.empty()) {
    Add(diagnosis, "compute-mode", v1::Diagnosis::LEVEL_OK, "default: any number of processes may use a GPU");
  } else {
    Add(diagnosis, "compute-mode", v1::Diagnosis::LEVEL_FAIL,
        absl::StrCat(absl::StrJoin(exclusive, ", "), " cannot be shared; try: nvidia-smi -c DEFAULT"));
  }
}

void ExamineMig(const std::vector<v1::CardStats>& served, v1::Diagnosis& diagnosis) {
  for (const v1::CardStats& card : served) {
    if (!absl::StartsWith(card.uuid(), "MIG-")) continue;
    Add(diagnosis, "mig", v1::Diagnosis::LEVEL_WARN,
        absl::StrCat(
            "GPU ", card.index(), " is a MIG instance, and a process sees one instance alone: run one lgpud ",
            "for each, with CUDA_VISIBLE_DEVICES=MIG-... and a directory of its own; NVML does not tell the ",
            "processes of an instance apart everywhere, so `foreign` may be missing"));
  }
}

void ExamineDriver(const StatsReporter& stats, const std::vector<v1::CardStats>& served,
                   v1::Diagnosis& diagnosis) {
  const absl::StatusOr<std::shared_ptr<Nvml>> nvml = Nvml::Open();
  if (!nvml.ok()) {
    Add(diagnosis, "driver", v1::Diagnosis::LEVEL_WARN,
        absl::StrCat("accounting is estimated: ", std::string(nvml.status().message())));
    Add(diagnosis, "foreign-memory", v1::Diagnosis::LEVEL_WARN,
        "without NVML the memory of programs outside lgpu is unknown; set memory.reserve to keep room for "
        "them");
    Add(diagnosis, "uncharged-memory", v1::Diagnosis::LEVEL_WARN,
        "without NVML lgpud cannot see memory that programs use beyond their charges: contexts, code, and "
        "allocations that bypass lgpu");
    return;
  }
  Add(diagnosis, "driver", v1::Diagnosis::LEVEL_OK, (*nvml)->DriverVersion());
  ExamineComputeModes(**nvml, served, diagnosis);
  ExamineMig(served, diagnosis);
  std::set<std::int64_t> known = {::getpid()};
  const v1::StatsSnapshot all = stats.Snapshot(Caller{});  // as root: all users' sessions
  for (const v1::LeaseStats& lease : all.leases()) {
    for (const v1::SessionStats& session : lease.sessions()) known.insert(session.pid());
  }
  std::vector<std::string> foreign;
  for (const v1::CardStats& card : served) {
    if (card.foreign_bytes() > 0) {
      foreign.push_back(absl::StrCat(Size(card.foreign_bytes()), " of GPU ", card.index()));
    }
    const absl::StatusOr<std::vector<Nvml::Process>> processes = (*nvml)->ProcessesOf(card.uuid());
    if (!processes.ok()) continue;
    for (const Nvml::Process& process : *processes) {
      if (known.contains(process.pid)) continue;
      foreign.push_back(absl::StrCat(ProcessName(process.pid), " on GPU ", card.index(),
                                     process.used ? " with " + FormatBytes(*process.used) : std::string()));
    }
  }
  if (foreign.empty()) {
    Add(diagnosis, "foreign-memory", v1::Diagnosis::LEVEL_OK, "no process outside lgpu uses the GPUs");
  } else {
    Add(diagnosis, "foreign-memory", v1::Diagnosis::LEVEL_WARN,
        absl::StrCat("in use by programs outside lgpu: ", absl::StrJoin(foreign, ", "),
                     "; lgpu does not limit them"));
  }
}

void ExamineDescriptors(v1::Diagnosis& diagnosis) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const bool few = limit.rlim_cur < kFewDescriptors;
  Add(diagnosis, "descriptors", few ? v1::Diagnosis::LEVEL_WARN : v1::Diagnosis::LEVEL_OK,
      absl::StrCat(limit.rlim_cur, " open files are allowed to lgpud",
                   few ? "; raise the limit (LimitNOFILE=, ulimit -Hn) for many programs at once" : ""));
}

}  // namespace

void Diagnostician::ExamineCards(v1::Diagnosis& diagnosis) const {
  std::vector<std::string> served;
  std::vector<std::string> problems;
  std::vector<v1::CardStats> usable;
  bool simulated = true;
  const std::vector<v1::CardStats> cards = stats_.Cards();
  for (const v1::CardStats& card : cards) {
    const std::string name = absl::StrCat("GPU ", card.index());
    if (!card.served()) {
      problems.push_back(absl::StrCat(name, " is not served: ", card.not_served_because()));
      continue;
    }
    simulated = simulated && card.simulated();
    usable.push_back(card);
    served.push_back(absl::StrCat(name, " ", card.name(), " ", Size(card.total_bytes())));
    if (card.overcommitted()) {
      problems.push_back(absl::StrCat(name, " is OVERCOMMITTED: ", Size(card.promised_bytes()),
                                      " are promised; nothing more is granted there for now"));
    }
  }
  Add(diagnosis, "backend", v1::Diagnosis::LEVEL_OK,
      absl::StrCat(simulated ? "simulated" : "cuda", ": ", absl::StrJoin(served, ", ")));
  if (!problems.empty()) Add(diagnosis, "gpus", v1::Diagnosis::LEVEL_WARN, absl::StrJoin(problems, "; "));
  if (simulated) {
    Add(diagnosis, "driver", v1::Diagnosis::LEVEL_OK, "simulated GPUs need none");
    Add(diagnosis, "compute-mode", v1::Diagnosis::LEVEL_OK, "simulated GPUs have none");
    Add(diagnosis, "foreign-memory", v1::Diagnosis::LEVEL_OK, "no process outside lgpu uses simulated GPUs");
  } else {
    ExamineDriver(stats_, usable, diagnosis);
  }
}

void Diagnostician::ExamineLeftovers(const Caller& caller, v1::Diagnosis& diagnosis) const {
  std::vector<std::string> left;
  const v1::StatsSnapshot snapshot = stats_.Snapshot(caller);
  for (const v1::LeaseStats& lease : snapshot.leases()) {
    for (const v1::SessionStats& session : lease.sessions()) {
      if (session.state() == v1::SessionStats::STATE_LIVE) continue;
      left.push_back(
          absl::StrCat(Size(session.held_bytes()), " of pid ", session.pid(), " in lease ", lease.name(),
                       " (", session.state() == v1::SessionStats::STATE_ABSENT ? "absent" : "draining", ")"));
    }
    if (!lease.lasting() && lease.sessions().empty()) {
      left.push_back(absl::StrCat("lease ", lease.name(), " without a program"));
    }
  }
  if (left.empty()) {
    Add(diagnosis, "leftovers", v1::Diagnosis::LEVEL_OK,
        "no memory and no lease is left of programs that ended");
  } else {
    Add(diagnosis, "leftovers", v1::Diagnosis::LEVEL_WARN,
        absl::StrCat(absl::StrJoin(left, "; "),
                     ": free again when the processes and their children have ended"));
  }
}

void Diagnostician::ExamineIdle(const Caller& caller, v1::Diagnosis& diagnosis) const {
  constexpr std::int64_t kLong = 3600;
  std::vector<std::string> idle;
  const v1::StatsSnapshot snapshot = stats_.Snapshot(caller);
  for (const v1::LeaseStats& lease : snapshot.leases()) {
    const std::int64_t seconds = snapshot.taken_at().seconds() - lease.idle_since().seconds();
    if (!lease.has_idle_since() || seconds < kLong) continue;
    std::uint64_t held = 0;
    for (const v1::LogicalDeviceStats& device : lease.devices()) held += device.held_bytes();
    if (held == 0) continue;
    idle.push_back(absl::StrCat(lease.name(), " (", lease.sessions().empty() ? "no program, " : "", "idle ",
                                seconds / 3600, " h) holds ", Size(held)));
  }
  if (idle.empty()) {
    Add(diagnosis, "idle-leases", v1::Diagnosis::LEVEL_OK,
        "no lease that holds memory has been idle for an hour");
  } else {
    Add(diagnosis, "idle-leases", v1::Diagnosis::LEVEL_WARN,
        absl::StrCat(absl::StrJoin(idle, "; "),
                     ": remove them with lgpu rm, or make them with --end-when-idle next time"));
  }
}

void Diagnostician::ExamineContexts(const Caller& caller, v1::Diagnosis& diagnosis) const {
  std::vector<std::string> lost;
  const v1::StatsSnapshot snapshot = stats_.Snapshot(caller);
  for (const v1::LeaseStats& lease : snapshot.leases()) {
    for (const v1::SessionStats& session : lease.sessions()) {
      if (!session.context_lost()) continue;
      lost.push_back(absl::StrCat(session.command(), " (pid ", session.pid(), ") of lease ", lease.name()));
    }
  }
  if (lost.empty()) {
    Add(diagnosis, "contexts", v1::Diagnosis::LEVEL_OK, "no program has lost its GPU context");
  } else {
    Add(diagnosis, "contexts", v1::Diagnosis::LEVEL_WARN,
        absl::StrCat(absl::StrJoin(lost, ", "),
                     ": a fault ended the GPU context; start the program again (`dmesg` may have an Xid "
                     "with the cause)"));
  }
}

v1::Diagnosis Diagnostician::Examine(const Caller& caller) const {
  v1::Diagnosis diagnosis;
  ExamineCards(diagnosis);
  ExamineDescriptors(diagnosis);
  ExamineContexts(caller, diagnosis);
  ExamineLeftovers(caller, diagnosis);
  ExamineIdle(caller, diagnosis);
  const absl::Status ledger = broker_.CheckInvariants();
  if (ledger.ok()) {
    Add(diagnosis, "ledger", v1::Diagnosis::LEVEL_OK, "every invariant holds");
  } else {
    Add(diagnosis, "ledger", v1::Diagnosis::LEVEL_FAIL,
        absl::StrCat(std::string(ledger.message()), "; this is a bug of lgpu, please report it"));
  }
  MutexLock lock(mutex_);
  for (const Setting& setting : settings_) {
    v1::Diagnosis::Setting& out = *diagnosis.add_settings();
    out.set_key(setting.key);
    out.set_value(setting.value);
    out.set_origin(setting.origin);
  }
  return diagnosis;
}

void Diagnostician::SetSettings(std::vector<Setting> settings) {
  MutexLock lock(mutex_);
  settings_ = std::move(settings);
}

}  // namespace lgpu::daemon
