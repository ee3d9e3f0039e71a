#ifndef LGPU_DAEMON_SERVER_CONFIG_H_
#define LGPU_DAEMON_SERVER_CONFIG_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/bytes.h"

namespace lgpu::daemon {

/// One simulated GPU.
struct SimulatedDeviceConfig {
  Bytes memory = {};
  std::string uuid = {};  // empty: made from the runtime directory and the index
  std::string name = "Simulated GPU";
  bool sparse = false;      // do not allocate chunks really: more memory than the machine has
  std::string origin = {};  // file:line:column of its uuid, else of its table; not compared
  friend bool operator==(const SimulatedDeviceConfig& a, const SimulatedDeviceConfig& b) {
    return a.memory == b.memory && a.uuid == b.uuid && a.name == b.name && a.sparse == b.sparse;
  }
};

/// Caps for one user or group, over all of its leases; an absent one does not limit.
struct CapConfig {
  std::string name = {};                   // a user or group name, or a number; "*": all other users
  std::optional<Bytes> memory_limit = {};  // sum of limits of its logical devices
  std::optional<Bytes> guarantee = {};     // sum of guarantees
  std::optional<std::uint32_t> leases = {};
  std::optional<std::uint32_t> sessions = {};  // attached to its leases
  std::optional<std::uint32_t> calls = {};     // that are not finished, streams and leases that wait included
  std::string key = {};                        // "caps.users.kim"
  friend bool operator==(const CapConfig&, const CapConfig&) = default;
};

/// One logical device that the daemon makes at its start. Devices with the same owner and lease form one
/// lasting lease.
struct StaticDeviceConfig {
  std::string lease = {};
  std::string owner = {};  // a user name or number; empty: lgpud's own
  std::string name = {};   // for people
  std::string gpu = {};    // an index, or a UUID or its beginning; empty: where most room is
  Bytes memory = {};       // zero: all that its GPU can give
  Bytes guarantee = {};
  std::string mode = {};                            // "growth" or "preallocate"; empty: the default mode
  std::string origin = {};                          // file:line:column
  std::map<std::string, std::string> origins = {};  // of its keys
  /// Where a key stands; all of it where that is missing.
  const std::string& OriginOf(const char* key) const {
    const auto found = origins.find(key);
    return found == origins.end() ? origin : found->second;
  }
  friend bool operator==(const StaticDeviceConfig&, const StaticDeviceConfig&) = default;
};

/// The port for metrics and the page.
struct HttpConfig {
  std::string listen = {};      // "9400" (of this machine alone), "127.0.0.1:9400"; empty: none
  std::string token_file = {};  // has the token of `Authorization: Bearer`; empty: none is needed
  std::string owners =
      "hidden";             // the metrics' label of a lease's owner: "names", or "hidden": a made-up one
  bool show_users = false;  // every reader of the page sees all leases, with their users and programs
  friend bool operator==(const HttpConfig&, const HttpConfig&) = default;
};

/// A LeasePolicy holds for leases that are made from now on; a running daemon can change it.
struct LeasePolicy {
  std::vector<CapConfig> user_caps = {};
  std::vector<CapConfig> group_caps = {};
  bool preallocate = false;                // for devices whose request names no mode
  std::uint32_t placement_records = 1024;  // kept per lease
};

/// A Config is lgpud's whole configuration, after defaults, files, environment and flags.
struct Config {
  /// As much as contexts take of real GPUs, by reports of others.
  static constexpr Bytes kUsualOverhead{std::uint64_t{600} << 20};

  std::string runtime_dir;  // sockets, lock, journal
  std::string state_dir;    // leases that were made to last
  std::string lock_dir;     // one lock per physical device, machine-wide
  std::string socket_group = "lgpu";
  std::uint32_t socket_mode = 0660;
  std::string cuda_visible_devices;  // as the environment has it
  bool has_cuda_visible_devices = false;
  std::vector<SimulatedDeviceConfig> simulated;  // empty: the machine's GPUs
  Bytes reserve;                                 // of every card, never granted
  /// Of driver memory beside charges and chunks, for each program and card. None: 0 is set aside, and where
  /// NVML lists processes they are watched with kUsualOverhead.
  std::optional<Bytes> overhead_allowance;
  std::string on_uncharged = "report";  // "stop", "kill": of programs that use more than they charged
  std::chrono::milliseconds max_drain =
      std::chrono::seconds(2);  // how long a waiting request holds other requests back
  /// How long a request may wait for memory that idle leases are asked to give up.
  std::chrono::milliseconds give_way_wait = std::chrono::seconds(60);
  /// How long a lease that gives way at work works first, at least.
  std::chrono::milliseconds min_run = std::chrono::seconds(10);
  std::vector<StaticDeviceConfig> static_devices;
  LeasePolicy policy;
  std::uint32_t kept_events = 1024;
  std::uint32_t max_sessions = 4096;
  std::string log_level = "info";
  std::string log_format = "auto";  // "text", "json", "journal"; "auto": by the kind of standard error
  HttpConfig http;
  /// Where values come from, by key: "/etc/lgpu/lgpud.toml:3:1", "flag --dir". Missing: the default.
  std::map<std::string, std::string> origins;
};

/// One value in effect, as text.
struct Setting {
  std::string key;  // "daemon.log_level"
  std::string value;
  std::string origin;
};
/// All settings with one value: without the tables of devices, and without the caps of users and groups.
std::vector<Setting> ListSettings(const Config& config);
/// Every key that a file can have: "daemon.log_level", "simulated_device.memory", "caps.users.NAME.leases".
std::vector<std::string> ConfigKeys();

/// The keys whose values differ and that a running daemon cannot change.
std::vector<std::string> NeedRestart(const Config& running, const Config& wanted);

/// The variables of the environment that matter here; a value of its own so that tests need none.
struct Environment {
  std::uint32_t uid = 0;
  std::optional<std::string> cuda_visible_devices;
  std::optional<std::string> endpoint;   // LGPU_ENDPOINT: a directory is the runtime directory
  std::optional<std::string> log_level;  // LGPU_LOG_LEVEL
  std::string home;
  std::string xdg_config_home;
  std::string xdg_runtime_dir;
  std::string xdg_state_home;
  std::string system_config_dir;  // LGPU_CONFIG_DIR, else /etc/lgpu; empty: no system's files

  static Environment OfThisProcess();
};

/// The values of the flags; nothing: the flag was not given.
struct Flags {
  std::optional<std::string> simulate;     // "2x1GiB", "1GiB", "2x1GiB,1x512MiB"
  std::optional<std::string> dir;          // the runtime directory
  std::optional<std::string> config_file;  // instead of the system's and the user's files
  std::optional<std::string> log_level;
  std::optional<std::string> log_format;
  std::optional<std::string> http;  // "9400", "127.0.0.1:9400"
};

/// The files that are read when no flag names one, the later ones winning: the system's file, its drop-ins in
/// lexical order, the user's. Only existing ones.
std::vector<std::string> ConfigFiles(const Environment& environment);

/// The whole configuration, in the order flag > environment > user's file > system's files > default.
/// INVALID_ARGUMENT, with file:line:column where a file is to blame; NOT_FOUND for a file that a flag names.
absl::StatusOr<Config> LoadConfig(const Flags& flags, const Environment& environment);

/// Reads TOML `text` into `config`, over what it has; `path` is for messages only. Unknown keys are errors.
absl::Status ApplyConfigText(std::string_view text, std::string_view path, Config& config);

/// Reads "2x1GiB,1x512MiB". INVALID_ARGUMENT with what to write instead.
absl::StatusOr<std::vector<SimulatedDeviceConfig>> ParseSimulate(std::string_view text);

/// INVALID_ARGUMENT, with the levels there are, unless `level` is one of them.
absl::Status CheckLogLevel(std::string_view level);

/// "file:line:column: " of a key, for a message; empty where the default holds.
std::string PlaceOf(const Config& config, const char* key);

/// INVALID_ARGUMENT unless a simulated GPU can have this uuid.
absl::Status CheckUuid(const std::string& uuid);

/// The absolute form of a directory that a flag or variable names, without a trailing slash.
std::string AbsolutePath(const std::string& path);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_CONFIG_H_
