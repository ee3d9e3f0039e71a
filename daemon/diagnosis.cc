#include "daemon/diagnosis.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lgpu/bytes.h"

namespace lgpu::daemon {
namespace {

// What a few hundred sessions need.
constexpr rlim_t kFewDescriptors = 4096;

void Add(v1::Diagnosis& diagnosis, const char* id, v1::Diagnosis::Level level, std::string text) {
  v1::Diagnosis::Finding& finding = *diagnosis.add_findings();
  finding.set_id(id);
  finding.set_level(level);
  finding.set_text(std::move(text));
}

std::string Size(std::uint64_t bytes) { return FormatBytes(Bytes(bytes)); }

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ..."; empty without a driver.
std::string DriverLine() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  return line;
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
  std::vector<std::string> foreign;
  bool simulated = true;
  bool foreign_known = true;
  const std::vector<v1::CardStats> cards = stats_.Cards();
  for (const v1::CardStats& card : cards) {
    const std::string name = absl::StrCat("GPU ", card.index());
    if (!card.served()) {
      problems.push_back(absl::StrCat(name, " is not served: ", card.not_served_because()));
      continue;
    }
    simulated = simulated && card.simulated();
    served.push_back(absl::StrCat(name, " ", card.name(), " ", Size(card.total_bytes())));
    if (card.overcommitted()) {
      problems.push_back(absl::StrCat(name, " is OVERCOMMITTED: ", Size(card.promised_bytes()),
                                      " are promised; nothing more is granted there for now"));
    }
    foreign_known = foreign_known && card.has_foreign_bytes();
    if (card.foreign_bytes() > 0) foreign.push_back(absl::StrCat(Size(card.foreign_bytes()), " of ", name));
  }
  Add(diagnosis, "backend", v1::Diagnosis::LEVEL_OK,
      absl::StrCat(simulated ? "simulated" : "cuda", ": ", absl::StrJoin(served, ", ")));
  if (!problems.empty()) Add(diagnosis, "gpus", v1::Diagnosis::LEVEL_WARN, absl::StrJoin(problems, "; "));
  const std::string driver = DriverLine();
  if (simulated) {
    Add(diagnosis, "driver", v1::Diagnosis::LEVEL_OK, "simulated GPUs need none");
    Add(diagnosis, "compute-mode", v1::Diagnosis::LEVEL_OK, "simulated GPUs have none");
  } else {
    Add(diagnosis, "driver", driver.empty() ? v1::Diagnosis::LEVEL_WARN : v1::Diagnosis::LEVEL_OK,
        driver.empty() ? "its version cannot be told: /proc/driver/nvidia/version is not there" : driver);
  }
  if (!foreign_known) {
    Add(diagnosis, "foreign-memory", v1::Diagnosis::LEVEL_WARN,
        "what programs outside lgpu use is unknown (no NVML); set memory.reserve for them");
  } else if (!foreign.empty()) {
    Add(diagnosis, "foreign-memory", v1::Diagnosis::LEVEL_WARN,
        absl::StrCat(absl::StrJoin(foreign, ", "), " are used outside lgpu; limits do not cover that"));
  } else {
    Add(diagnosis, "foreign-memory", v1::Diagnosis::LEVEL_OK, "nobody outside lgpu uses GPU memory");
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
    Add(diagnosis, "leftovers", v1::Diagnosis::LEVEL_OK, "no memory and no lease without a living program");
  } else {
    Add(diagnosis, "leftovers", v1::Diagnosis::LEVEL_WARN,
        absl::StrCat(absl::StrJoin(left, "; "),
                     ": comes back when the processes, and their children, are gone"));
  }
}

v1::Diagnosis Diagnostician::Examine(const Caller& caller) const {
  v1::Diagnosis diagnosis;
  ExamineCards(diagnosis);
  ExamineDescriptors(diagnosis);
  ExamineLeftovers(caller, diagnosis);
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
