#include "cli/doctor.h"

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/nvidia_driver.h"
#include "cli/driver_shim.h"
#include "cli/helper_process.h"
#include "client/session/endpoint.h"
#include "lgpu/bytes.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

using Level = Check::Level;

constexpr std::uint64_t kTestLimit = std::uint64_t{64} << 20;
constexpr std::chrono::seconds kTestPatience{30};

std::string FirstLine(const absl::Status& status) {
  const std::string text(status.message());
  return text.substr(0, text.find('\n'));
}

/// A check that failed with a status; the lines after its first one are advice.
Check Failed(const char* id, const absl::Status& status) {
  std::vector<std::string> lines = absl::StrSplit(std::string(status.message()), '\n');
  Check check{id, Level::kFail, lines[0]};
  check.advice.assign(lines.begin() + 1, lines.end());
  return check;
}

std::string UserName(uid_t uid) {
  const passwd* entry = ::getpwuid(uid);
  return entry == nullptr ? absl::StrCat(uid) : entry->pw_name;
}

std::string GroupName(gid_t gid) {
  const group* entry = ::getgrgid(gid);
  return entry == nullptr ? absl::StrCat(gid) : entry->gr_name;
}

bool InGroup(gid_t gid) {
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(0, ::getgroups(0, nullptr))));
  const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<std::size_t>(std::max(0, count)));
  return ::getegid() == gid || std::find(groups.begin(), groups.end(), gid) != groups.end();
}

Check CheckPermissions(const std::string& directory) {
  struct stat info {};
  const std::string path = ControlSocketPath(directory);
  if (::stat(path.c_str(), &info) != 0) return {"permissions", Level::kFail, "cannot look at " + path};
  const std::string you = ::geteuid() == 0             ? "you are root"
                          : ::geteuid() == info.st_uid ? "you own it"
                          : InGroup(info.st_gid)       ? "you are in group " + GroupName(info.st_gid)
                                                       : "open to every user";
  return {"permissions", Level::kOk,
          absl::StrFormat("socket %s:%s %04o, %s", UserName(info.st_uid), GroupName(info.st_gid),
                          info.st_mode & 0777U, you)};
}

/// Whether real GPUs can be served here and lgpu's ops run on them, and the next step where not.
Check CheckGpuSupport() {
  constexpr bool kKernels = LGPU_HAS_GPU_KERNELS != 0;
  const std::string kernels =
      "for kernels: scripts/deps --cuda (Debian's section non-free) or NVIDIA's toolkit, then build again "
      "with -DLGPU_CUDA=ON";
  if (HasNvidiaDriver()) {
    if (kKernels) {
      return {"gpu-support", Level::kOk, "an NVIDIA driver is there; kernels for GPUs were built"};
    }
    return {
        "gpu-support",
        Level::kWarn,
        "an NVIDIA driver is there; this build serves the memory of GPUs and has no kernels for them: ops "
        "run on the CPU",
        {kernels}};
  }
  Check none{"gpu-support", Level::kOk,
             absl::StrCat("there is no NVIDIA driver: GPUs are simulated here; kernels for GPUs were ",
                          kKernels ? "built" : "not built")};
  none.advice = {
      "for a real GPU: on Debian, with the sections non-free and non-free-firmware, apt-get install "
      "nvidia-driver"};
  if (!kKernels) none.advice.push_back(kernels);
  return none;
}

/// Whether programs that know nothing of lgpu can be limited with the driver that is found here; nothing:
/// there is none.
std::optional<Check> CheckDriverShim(const GetVariable& get, const std::string& runtime_dir) {
  const VariableReader variable = [&get](const std::string& name) { return get(name.c_str()); };
  const std::optional<DriverCalls> calls =
      CompareDriver(DriverShimPlaces::OfThisProgram(runtime_dir, variable), variable);
  if (!calls) return std::nullopt;
  if (calls->shim.empty()) {
    return Check{"driver-shim",
                 Level::kWarn,
                 "lgpu's libcuda.so.1 is not installed: programs that do not use liblgpu cannot be limited",
                 {"try: install the package lgpu-driver-shim"}};
  }
  if (!calls->newer.empty()) {
    return Check{"driver-shim",
                 Level::kWarn,
                 absl::StrCat(calls->driver, " has calls that this lgpu does not count: ",
                              absl::StrJoin(calls->newer, ", ")),
                 {"try: a newer lgpu"}};
  }
  return Check{"driver-shim", Level::kOk,
               absl::StrCat(calls->shim, " counts every call of ", calls->driver, " that it should")};
}

/// The endpoint that was asked for, whether or not its daemon answers.
VariableInEffect EndpointInEffect(const CommonOptions& options, const GetVariable& get,
                                  const absl::StatusOr<Connection>& connection) {
  const std::string variable = get("LGPU_ENDPOINT").value_or("");
  VariableInEffect endpoint{.name = "LGPU_ENDPOINT",
                            .value = !options.endpoint.empty() ? options.endpoint : variable,
                            .origin = !options.endpoint.empty() ? "flag --endpoint"
                                      : !variable.empty()       ? "environment"
                                                                : "default: the first that answers"};
  if (connection.ok()) endpoint.value = connection->runtime_dir();
  if (endpoint.value.empty()) {
    const auto places = ResolveEndpoint("", EndpointEnvironment::OfThisProcess());
    if (places.ok()) endpoint.value = absl::StrJoin(places->directories, ", ");
  }
  return endpoint;
}

Level LevelOf(v1::Diagnosis::Level level) {
  switch (level) {
    case v1::Diagnosis::LEVEL_OK:
      return Level::kOk;
    case v1::Diagnosis::LEVEL_WARN:
      return Level::kWarn;
    default:
      return Level::kFail;
  }
}

/// Adds the daemon's own findings. False: the daemon does not answer; it must not be asked again.
bool ExamineDaemon(Connection& connection, Examination& examination) {
  const auto started = std::chrono::steady_clock::now();
  const auto version = connection.Call(kGetVersion, v1::GetVersionRequest());
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - started;
  if (!version.ok()) {
    examination.checks.push_back(Failed("daemon", version.status()));
    return false;
  }
  const bool same = version->version() == LGPU_VERSION;
  examination.checks.push_back({"daemon", same ? Level::kOk : Level::kWarn,
                                absl::StrFormat("lgpud %s (pid %d) at %s, session protocol %d, %.1fms%s",
                                                Printable(version->version()), version->pid(),
                                                connection.runtime_dir(), version->protocol_version(),
                                                took.count(), same ? "" : "; this is lgpu " LGPU_VERSION)});
  examination.checks.push_back(CheckPermissions(connection.runtime_dir()));
  const auto diagnosis = connection.Call(kDiagnose, v1::DiagnoseRequest());
  if (!diagnosis.ok()) {
    examination.checks.push_back(Failed("ledger", diagnosis.status()));
    return false;
  }
  for (const v1::Diagnosis::Finding& finding : diagnosis->findings()) {
    examination.checks.push_back({finding.id(), LevelOf(finding.level()), finding.text()});
  }
  examination.settings.assign(diagnosis->settings().begin(), diagnosis->settings().end());
  return true;
}

std::string ReadCpuInfo() {
  std::ifstream file("/proc/cpuinfo");
  return {std::istreambuf_iterator<char>(file), {}};
}

Check RunSelfTest(Connection& connection) {
  const auto fail = [](const std::string& why) { return Check{"self-test", Level::kFail, why}; };
  absl::StatusOr<HelperProcess> helper =
      HelperProcess::Start({"check", absl::StrCat(kTestLimit)},
                           {{"LGPU_LEASE", std::nullopt}, {"LGPU_ENDPOINT", connection.runtime_dir()}});
  if (!helper.ok()) return Failed("self-test", helper.status());
  const absl::StatusOr<nlohmann::json> answer = helper->Read(kTestPatience);
  if (!answer.ok()) return fail(FirstLine(answer.status()));
  if (answer->contains("error")) {
    const std::string text = (*answer)["error"].value("message", "");
    const std::string line = Printable(text.substr(0, text.find('\n')));
    const bool full = (*answer)["error"].value("code", "") == "RESOURCE_EXHAUSTED";
    return full ? Check{"self-test", Level::kWarn, "there is no memory for it now: " + line} : fail(line);
  }
  const std::string reason = (*answer)["refused"].value("reason", "not refused");
  if (!answer->value("agree", false)) return fail("MatMul on GPU:0 and on CPU:0 differ");
  if (reason != "limit") return fail("65MiB in a limit of 64MiB: " + reason);
  const bool on_gpu = absl::EndsWith(answer->value("gpu", ""), "GPU:0");
  return {"self-test", Level::kOk,
          absl::StrCat("a lease of 64MiB, MatMul ",
                       on_gpu ? "on GPU:0 and CPU:0 agree" : "on the CPU (no kernels for GPUs)",
                       ", 65MiB refused by the limit, all given back"),
          ProcessorAdvice(answer->value("openblas_core", ""), ReadCpuInfo())};
}

std::string Shown(Level level, const Style& style) {
  switch (level) {
    case Level::kOk:
      return "ok  ";
    case Level::kWarn:
      return style.Bold("warn");
    case Level::kFail:
      return style.Red("fail");
    case Level::kSkip:
      break;
  }
  return "skip";
}

const char* Name(Level level) {
  return level == Level::kOk     ? "ok"
         : level == Level::kWarn ? "warn"
         : level == Level::kFail ? "fail"
                                 : "skip";
}

std::string Plural(int count, const char* noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

/// The lease that LGPU_LEASE names; an empty one where it is not set.
absl::StatusOr<v1::Lease> LeaseOfVariable(const GetVariable& get, Connection& connection) {
  v1::GetLeaseRequest request;
  request.set_lease(get("LGPU_LEASE").value_or(""));
  if (request.lease().empty()) return v1::Lease();
  return connection.Call(kGetLease, request);
}

}  // namespace

int Examination::Count(Level level) const {
  return static_cast<int>(std::count_if(checks.begin(), checks.end(),
                                        [level](const Check& check) { return check.level == level; }));
}

Examination Examine(const CommonOptions& options, bool self_test) {
  Examination examination;
  const GetVariable get = [](const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  absl::StatusOr<Connection> connection = Connection::Open(options);
  examination.variables.push_back(EndpointInEffect(options, get, connection));
  examination.variables.push_back({"--timeout",
                                   absl::StrFormat("%gs", static_cast<double>(options.timeout.count()) / 1e3),
                                   options.timeout_origin});
  examination.variables.push_back({"--color", options.out.color ? "on" : "off", options.color_origin});
  if (!connection.ok()) examination.checks.push_back(Failed("daemon", connection.status()));
  if (!connection.ok() || !ExamineDaemon(*connection, examination)) {
    examination.checks.push_back(CheckGpuSupport());
    ExamineVariables(get, {}, examination);
    for (const char* id : {"permissions", "ledger", "self-test"}) {
      const bool done = std::any_of(examination.checks.begin(), examination.checks.end(),
                                    [id](const Check& check) { return check.id == id; });
      if (!done) examination.checks.push_back({id, Level::kSkip, "no daemon to ask"});
    }
    return examination;
  }
  examination.checks.push_back(CheckGpuSupport());
  if (std::optional<Check> check = CheckDriverShim(get, connection->runtime_dir())) {
    examination.checks.push_back(*std::move(check));
    examination.checks.push_back(CheckHook(connection->runtime_dir()));
  }
  const auto cards = connection->Call(kListPhysicalDevices, v1::ListPhysicalDevicesRequest());
  const absl::StatusOr<v1::Lease> lease = LeaseOfVariable(get, *connection);
  if (!lease.ok()) examination.checks.push_back(Failed("LGPU_LEASE", lease.status()));
  ExamineVariables(get,
                   {.cards = cards.ok() ? &*cards : nullptr,
                    .lease = lease.ok() && !lease->id().empty() ? &*lease : nullptr},
                   examination);
  examination.checks.push_back(self_test ? RunSelfTest(*connection)
                                         : Check{"self-test", Level::kSkip, "--no-self-test"});
  return examination;
}

std::string FormatExamination(const Examination& examination, const CommonOptions& options) {
  std::size_t width = 0;
  for (const Check& check : examination.checks) width = std::max(width, check.id.size());
  const std::size_t indent = width + 8;  // behind the level and the longest id
  const auto wrapped = [&](const std::string& text) {
    return Wrap(Printable(text), options.out.width, indent, indent);
  };
  std::string text;
  for (const Check& check : examination.checks) {
    absl::StrAppend(&text, Shown(check.level, options.out), "  ", check.id,
                    std::string(width - check.id.size() + 2, ' '), wrapped(check.text), "\n");
    for (const std::string& line : check.advice) {
      absl::StrAppend(&text, std::string(indent, ' '), wrapped(line), "\n");
    }
  }
  if (options.verbose > 0) {
    Table variables({{"VARIABLE"}, {"IN EFFECT"}, {"FROM"}});
    for (const VariableInEffect& variable : examination.variables) {
      variables.AddRow({variable.name, Printable(variable.value), Printable(variable.origin)});
    }
    Table settings({{"SETTING OF LGPUD"}, {"IN EFFECT"}, {"FROM"}});
    for (const v1::Diagnosis::Setting& setting : examination.settings) {
      settings.AddRow({Printable(setting.key()), Printable(setting.value()), Printable(setting.origin())});
    }
    absl::StrAppend(&text, "\n", variables.Format(options.out));
    if (!settings.empty()) absl::StrAppend(&text, "\n", settings.Format(options.out));
    absl::StrAppend(&text, "\n");
  }
  const int warnings = examination.Count(Level::kWarn);
  const int failures = examination.Count(Level::kFail);
  absl::StrAppend(&text, Plural(failures, "failure"), ", ", Plural(warnings, "warning"), ".",
                  options.verbose > 0 ? "" : " Values in effect: lgpu doctor -v.", "\n");
  return text;
}

nlohmann::json ToJson(const Examination& examination) {
  nlohmann::json json = {{"schema", "lgpu.diagnosis/v1"},
                         {"failures", examination.Count(Level::kFail)},
                         {"warnings", examination.Count(Level::kWarn)},
                         {"checks", nlohmann::json::array()},
                         {"variables", nlohmann::json::array()},
                         {"settings", nlohmann::json::array()}};
  for (const Check& check : examination.checks) {
    json["checks"].push_back(
        {{"id", check.id}, {"level", Name(check.level)}, {"text", check.text}, {"advice", check.advice}});
  }
  for (const VariableInEffect& variable : examination.variables) {
    json["variables"].push_back(
        {{"name", variable.name}, {"value", variable.value}, {"origin", variable.origin}});
  }
  for (const v1::Diagnosis::Setting& setting : examination.settings) {
    json["settings"].push_back(v1::ToJson(setting));
  }
  return json;
}

}  // namespace lgpu::cli
