#include "daemon/server/config.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/device/simulated/simulated_spec.h"
#include "base/read_file.h"
#include "daemon/http/http_address.h"
#include "daemon/leases/static_devices.h"
#include "daemon/server/server_dir.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr std::size_t kMaxSimulatedDevices = 64;

std::optional<std::string> Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// The XDG rule: a relative path is to be ignored.
std::string XdgDirectory(const char* name) {
  std::string value = Variable(name).value_or("");
  return value.starts_with('/') ? value : "";
}

std::string DefaultRuntimeDir(const Environment& environment) {
  if (environment.uid == 0) return "/run/lgpu";
  if (!environment.xdg_runtime_dir.empty()) return environment.xdg_runtime_dir + "/lgpu";
  return absl::StrCat("/tmp/lgpu-", environment.uid);
}

std::string DefaultStateDir(const Environment& environment, const std::string& runtime_dir) {
  // A daemon in a directory of its own shares nothing with the user's ordinary one.
  if (runtime_dir != DefaultRuntimeDir(environment)) return runtime_dir + "/state";
  if (environment.uid == 0) return "/var/lib/lgpu";
  if (!environment.xdg_state_home.empty()) return environment.xdg_state_home + "/lgpu";
  if (!environment.home.empty()) return environment.home + "/.local/state/lgpu";
  return runtime_dir + "/state";
}

// The same for every user of the machine: this is where daemons of different users meet.
std::string DefaultLockDir() {
  std::error_code error;
  return std::filesystem::is_directory("/run/lock", error) ? "/run/lock/lgpu" : "/tmp/lgpu-locks";
}

// A uuid is a file name of the lock directory.
absl::Status CheckSimulated(const std::vector<SimulatedDeviceConfig>& simulated) {
  if (simulated.size() > kMaxSimulatedDevices) {
    return absl::InvalidArgumentError(
        absl::StrCat(simulated[kMaxSimulatedDevices].origin, ": ", simulated.size(),
                     " simulated GPUs were asked for; at most ", kMaxSimulatedDevices, " are possible"));
  }
  std::set<std::string> uuids;
  for (const SimulatedDeviceConfig& device : simulated) {
    if (device.uuid.empty()) continue;
    absl::Status status = CheckUuid(device.uuid);
    if (status.ok() && !uuids.insert(device.uuid).second) {
      status = absl::InvalidArgumentError(absl::StrCat("two simulated GPUs have the uuid '", device.uuid,
                                                       "'; every card needs one of its own"));
    }
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(device.origin, ": ", std::string(status.message())));
    }
  }
  return absl::OkStatus();
}

absl::Status Check(const Config& config) {
  LGPU_RETURN_IF_ERROR(CheckSimulated(config.simulated));
  const auto at = [&config](const char* key, const absl::Status& status) {
    return status.ok() ? status
                       : absl::InvalidArgumentError(
                             absl::StrCat(PlaceOf(config, key), std::string(status.message())));
  };
  LGPU_RETURN_IF_ERROR(CheckStaticNames(config));
  LGPU_RETURN_IF_ERROR(at("http.listen", CheckHttpListen(config.http)));
  if (config.on_uncharged != "report" && config.overhead_allowance.value_or(Bytes()).is_zero()) {
    LGPU_RETURN_IF_ERROR(at("memory.on_uncharged",
                            absl::InvalidArgumentError(absl::StrCat(
                                "on_uncharged = \"", config.on_uncharged,
                                "\" needs memory.overhead_allowance above 0: a GPU context alone is memory "
                                "that no program charges; "
                                "set it to what a context takes on these GPUs, for example \"600MiB\""))));
  }
  LGPU_RETURN_IF_ERROR(at("daemon.log_level", CheckLogLevel(config.log_level)));
  return at("daemon.runtime_dir", CheckSocketPath(config.runtime_dir));
}

absl::Status ApplyFile(const std::string& path, Config& config) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path);
  if (!text.ok()) {
    const bool wrong = !absl::IsNotFound(text.status()) && !absl::IsPermissionDenied(text.status());
    return absl::Status(wrong ? absl::StatusCode::kInvalidArgument : text.status().code(),
                        absl::StrCat("the configuration: ", std::string(text.status().message())));
  }
  return ApplyConfigText(*text, path, config);
}

}  // namespace

std::string PlaceOf(const Config& config, const char* key) {
  const auto found = config.origins.find(key);
  return found == config.origins.end() ? std::string() : found->second + ": ";
}

absl::Status CheckUuid(const std::string& uuid) {
  const bool plain = std::all_of(uuid.begin(), uuid.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
  });
  if (plain && !uuid.empty() && uuid.size() <= 128) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", uuid, "' cannot be the uuid of a GPU; use letters, digits, - and _, ",
                   "for example GPU-11111111-2222-3333-4444-555555555555"));
}

Environment Environment::OfThisProcess() {
  const std::string system_config_dir = Variable("LGPU_CONFIG_DIR").value_or("");
  return {.uid = ::geteuid(),
          .cuda_visible_devices = Variable("CUDA_VISIBLE_DEVICES"),
          .endpoint = Variable("LGPU_ENDPOINT"),
          .log_level = Variable("LGPU_LOG_LEVEL"),
          .home = Variable("HOME").value_or(""),
          .xdg_config_home = XdgDirectory("XDG_CONFIG_HOME"),
          .xdg_runtime_dir = XdgDirectory("XDG_RUNTIME_DIR"),
          .xdg_state_home = XdgDirectory("XDG_STATE_HOME"),
          .system_config_dir = system_config_dir.empty() ? "/etc/lgpu" : system_config_dir};
}

absl::Status CheckLogLevel(std::string_view level) {
  static constexpr std::string_view kLevels[] = {"trace", "debug", "info", "warn", "error", "off"};
  if (std::find(std::begin(kLevels), std::end(kLevels), level) != std::end(kLevels)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("log level '", std::string(level),
                                                 "' is unknown; use trace, debug, info, warn, error or off"));
}

std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(path, error);
  std::string text = (error ? std::filesystem::path(path) : absolute).lexically_normal().string();
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

std::vector<std::string> ConfigFiles(const Environment& environment) {
  std::error_code error;
  std::vector<std::string> files;
  std::vector<std::string> drop_ins;
  if (const std::string& dir = environment.system_config_dir; !dir.empty()) {
    if (std::string path = dir + "/lgpud.toml"; std::filesystem::exists(path, error)) files.push_back(path);
    for (std::filesystem::directory_iterator it(dir + "/lgpud.d", error), end; !error && it != end;
         it.increment(error)) {
      if (it->path().extension() == ".toml") drop_ins.push_back(it->path().string());
    }
  }
  std::sort(drop_ins.begin(), drop_ins.end());
  files.insert(files.end(), drop_ins.begin(), drop_ins.end());
  std::string user_dir = environment.xdg_config_home;
  if (user_dir.empty() && !environment.home.empty()) user_dir = environment.home + "/.config";
  if (environment.uid != 0 && !user_dir.empty()) {
    if (std::string path = user_dir + "/lgpu/lgpud.toml"; std::filesystem::exists(path, error)) {
      files.push_back(path);
    }
  }
  return files;
}

absl::StatusOr<std::vector<SimulatedDeviceConfig>> ParseSimulate(std::string_view text) {
  LGPU_ASSIGN_OR_RETURN(const std::vector<Bytes> sizes, ParseSimulatedSpec(text));
  std::vector<SimulatedDeviceConfig> devices(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) devices[i].memory = sizes[i];
  return devices;
}

absl::StatusOr<Config> LoadConfig(const Flags& flags, const Environment& environment) {
  Config config;
  const std::vector<std::string> files =
      flags.config_file ? std::vector<std::string>{*flags.config_file} : ConfigFiles(environment);
  for (const std::string& file : files) LGPU_RETURN_IF_ERROR(ApplyFile(file, config));

  const auto set = [&config](const char* key, std::string& to, const std::string& value, const char* origin) {
    to = value;
    config.origins[key] = origin;
  };
  if (environment.endpoint && environment.endpoint->starts_with('/')) {
    set("daemon.runtime_dir", config.runtime_dir, *environment.endpoint, "LGPU_ENDPOINT");
  }
  if (environment.log_level && !environment.log_level->empty()) {
    set("daemon.log_level", config.log_level, *environment.log_level, "LGPU_LOG_LEVEL");
  }
  if (environment.cuda_visible_devices) {
    set("devices.visible", config.cuda_visible_devices, *environment.cuda_visible_devices,
        "CUDA_VISIBLE_DEVICES");
    config.has_cuda_visible_devices = true;
  }

  if (flags.simulate) {
    LGPU_ASSIGN_OR_RETURN(config.simulated, ParseSimulate(*flags.simulate));
    for (SimulatedDeviceConfig& device : config.simulated) device.origin = "flag --simulate";
  }
  if (flags.dir) set("daemon.runtime_dir", config.runtime_dir, *flags.dir, "flag --dir");
  if (flags.log_level) set("daemon.log_level", config.log_level, *flags.log_level, "flag --log-level");
  if (flags.log_format) set("daemon.log_format", config.log_format, *flags.log_format, "flag --log-format");
  if (flags.http) set("http.listen", config.http.listen, *flags.http, "flag --http");

  if (config.runtime_dir.empty()) config.runtime_dir = DefaultRuntimeDir(environment);
  config.runtime_dir = AbsolutePath(config.runtime_dir);
  if (config.state_dir.empty()) config.state_dir = DefaultStateDir(environment, config.runtime_dir);
  if (config.lock_dir.empty()) config.lock_dir = DefaultLockDir();
  LGPU_RETURN_IF_ERROR(Check(config));
  return config;
}

}  // namespace lgpu::daemon
