#ifndef LGPU_CLI_DOCTOR_H_
#define LGPU_CLI_DOCTOR_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands/command.h"
#include "cli/connection.h"
#include "lgpu/v1/control.pb.h"
#include "nlohmann/json.hpp"

namespace lgpu::cli {

/// The result of one check. `id` is stable; docs/troubleshooting.md has a section for each.
struct Check {
  enum class Level { kOk, kWarn, kFail, kSkip };
  std::string id;
  Level level = Level::kOk;
  std::string text;
  std::vector<std::string> advice = {};  // lines: further findings, and what to try
};

/// A variable of this process: its value in effect, and the origin of that.
struct VariableInEffect {
  std::string name;
  std::string value;   // in effect
  std::string origin;  // "environment", "default", ...
};

struct Examination {
  std::vector<Check> checks;
  std::vector<VariableInEffect> variables;
  std::vector<v1::Diagnosis::Setting> settings;  // the daemon's
  int Count(Check::Level level) const;
};

/// A variable's value; nothing: it is not set.
using GetVariable = std::function<std::optional<std::string>(const char* name)>;

/// The daemon's answers that the variables are compared with; null where it gave none.
struct DaemonAnswers {
  const v1::ListPhysicalDevicesResponse* cards = nullptr;
  const v1::Lease* lease = nullptr;  // of LGPU_LEASE: indices of CUDA_VISIBLE_DEVICES count its cards
};
/// The checks on the variables that lgpu and its programs read.
void ExamineVariables(const GetVariable& get, const DaemonAnswers& daemon, Examination& examination);

/// Whether containers of this machine can be limited; `runtime_dir`: lgpud's, which names its lgpu-hook.
Check CheckHook(const std::string& runtime_dir);

/// Lines for the self-test where OpenBLAS does not use the AVX-512 that the processor has. `openblas_core`:
/// the core type that OpenBLAS has chosen; `cpuinfo`: /proc/cpuinfo.
std::vector<std::string> ProcessorAdvice(const std::string& openblas_core, const std::string& cpuinfo);

/// Runs all checks. `self_test`: also makes a small lease of its own, and gives it back.
Examination Examine(const CommonOptions& options, bool self_test);

std::string FormatExamination(const Examination& examination, const CommonOptions& options);
/// "lgpu.diagnosis/v1"
nlohmann::json ToJson(const Examination& examination);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_DOCTOR_H_
