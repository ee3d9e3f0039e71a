// The configuration from files and flags. One file past the usual length: every case is a few lines of the
// same file.

#include "daemon/server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/exit_codes.h"
#include "daemon/server/command_line.h"
#include "tests/daemon/temporary_directory.h"

namespace lgpu::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void Write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

std::string ErrorOf(const std::string& text) {
  Config config;
  const absl::Status status = ApplyConfigText(text, "lgpud.toml", config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

Config Parsed(const std::string& text) {
  Config config;
  EXPECT_EQ(ApplyConfigText(text, "lgpud.toml", config), absl::OkStatus());
  return config;
}

TEST(ConfigTest, ReadsEveryKey) {
  const Config config = Parsed(R"(
[daemon]
runtime_dir = "/run/a/"
state_dir = "/var/lib/a"
lock_dir = "/run/lock/a"
socket_group = "gpu"
socket_mode = 0o600
log_level = "debug"
max_sessions = 7
[[simulated_device]]
memory = "1GiB"
[[simulated_device]]
memory = 4194304
uuid = "GPU-1"
name = "small"
sparse = true
[memory]
reserve = "64MiB"
overhead_allowance = "1.5MiB"
max_drain = "1.5s"
min_run = "300ms"
[caps.users.alice]
memory_limit = "8GiB"
guarantee = "2GiB"
leases = 4
sessions = 8
calls = 16
[caps.users."*"]
leases = 0
[caps.groups.students]
memory_limit = "1G"
[placements]
records = 5
[events]
kept = 6
)");
  EXPECT_EQ(config.runtime_dir, "/run/a");
  EXPECT_EQ(config.state_dir, "/var/lib/a");
  EXPECT_EQ(config.lock_dir, "/run/lock/a");
  EXPECT_EQ(config.socket_group, "gpu");
  EXPECT_EQ(config.socket_mode, 0600u);
  EXPECT_EQ(config.log_level, "debug");
  EXPECT_EQ(config.max_sessions, 7u);
  EXPECT_THAT(
      config.simulated,
      ElementsAre(SimulatedDeviceConfig{.memory = 1_GiB},
                  SimulatedDeviceConfig{.memory = 4_MiB, .uuid = "GPU-1", .name = "small", .sparse = true}));
  EXPECT_EQ(config.reserve, 64_MiB);
  EXPECT_EQ(config.overhead_allowance, Bytes(1536 * 1024));
  EXPECT_EQ(config.max_drain, std::chrono::milliseconds(1500));
  EXPECT_EQ(config.min_run, std::chrono::milliseconds(300));
  EXPECT_THAT(config.policy.user_caps, ::testing::UnorderedElementsAre(
                                           CapConfig{.name = "alice",
                                                     .memory_limit = 8_GiB,
                                                     .guarantee = 2_GiB,
                                                     .leases = 4,
                                                     .sessions = 8,
                                                     .calls = 16,
                                                     .key = "caps.users.alice"},
                                           CapConfig{.name = "*", .leases = 0, .key = "caps.users.\"*\""}));
  EXPECT_THAT(
      config.policy.group_caps,
      ElementsAre(CapConfig{.name = "students", .memory_limit = 1_GiB, .key = "caps.groups.students"}));
  EXPECT_EQ(config.policy.placement_records, 5u);
  EXPECT_EQ(config.kept_events, 6u);
}

TEST(ConfigTest, ErrorsSayFileLineAndColumn) {
  EXPECT_THAT(ErrorOf("[daemon]\nlog_level = \n"), ::testing::StartsWith("lgpud.toml:2:"));
  EXPECT_THAT(ErrorOf("[daemon]\nlog_leve = \"info\"\n"),
              ::testing::StartsWith("lgpud.toml:2:1: unknown key 'log_leve' in [daemon]; known are: "));
  EXPECT_THAT(ErrorOf("\n[deamon]\n"), HasSubstr("lgpud.toml:2:2: unknown key 'deamon' at the top"));
  EXPECT_THAT(ErrorOf("[memory]\nreserve = \"2GB\"\n"), ::testing::StartsWith("lgpud.toml:2:11: "));
  EXPECT_THAT(ErrorOf("[daemon]\nmax_sessions = 0\n"), HasSubstr("0 is out of range; allowed are 1 to "));
  EXPECT_THAT(ErrorOf("[memory]\nmax_drain = \"0\"\n"),
              HasSubstr("0 is out of range; allowed are 100ms to "));
  EXPECT_THAT(ErrorOf("[memory]\nmax_drain = 2\n"), HasSubstr("expected a time such as \"2s\" or \"500ms\""));
  EXPECT_THAT(ErrorOf("[memory]\nmax_drain = \"soon\"\n"), HasSubstr("expected a time such as"));
  EXPECT_THAT(ErrorOf("[daemon]\nmax_sessions = \"9\"\n"),
              HasSubstr("expected a whole number, found a string"));
  EXPECT_THAT(ErrorOf("[daemon]\nsocket_mode = 660\n"), HasSubstr("2:15: a file mode is written in octal"));
  EXPECT_THAT(ErrorOf("[daemon]\nsocket_mode = 440\n"), HasSubstr("did you mean 0o440?"));
  EXPECT_THAT(ErrorOf("[daemon]\nsocket_mode = 0o1777\n"), HasSubstr("a file mode such as 0o660"));
  EXPECT_THAT(ErrorOf("[daemon]\nsocket_mode = \"0660\"\n"), HasSubstr("a file mode such as 0o660"));
  EXPECT_THAT(ErrorOf("[daemon]\nlog_level = \"loud\"\n"), HasSubstr("2:13: log level 'loud' is unknown"));
  EXPECT_THAT(ErrorOf("[daemon]\nruntime_dir = \"lgpu\"\n"), HasSubstr("'lgpu' is not an absolute path"));
  EXPECT_THAT(ErrorOf("[[simulated_device]]\nname = \"x\"\n"), HasSubstr("has no memory"));
  EXPECT_THAT(ErrorOf("[[simulated_device]]\nmemory = \"1MiB\"\n"), HasSubstr("at least 2MiB"));
  EXPECT_THAT(ErrorOf("simulated_device = 3\n"), HasSubstr("[[simulated_device]]"));
  EXPECT_THAT(ErrorOf("[caps.users.alice]\nmemory = \"1GiB\"\n"), HasSubstr("in [caps.users.alice]"));
  EXPECT_THAT(ErrorOf("[caps.users]\nalice = 3\n"), HasSubstr("expected a table"));
  EXPECT_THAT(ErrorOf("[memory]\nreserve = 1.5\n"), HasSubstr("a number with a fraction"));
  EXPECT_THAT(ErrorOf("[memory]\nreserve = -1\n"), ::testing::StartsWith("lgpud.toml:2:11: "));
}

TEST(ConfigTest, FlagWinsOverEnvironmentOverUserFileOverSystemFilesOverDefault) {
  const TemporaryDirectory temporary;
  const std::string system = temporary.path() + "/etc";
  Environment environment;
  environment.system_config_dir = system;
  environment.uid = 1000;
  environment.home = temporary.path() + "/home";
  environment.xdg_runtime_dir = "/run/user/1000";
  Flags flags;
  const auto level = [&] {
    const absl::StatusOr<Config> config = LoadConfig(flags, environment);
    EXPECT_EQ(config.status(), absl::OkStatus());
    return config.ok() ? config->log_level : "";
  };
  EXPECT_EQ(level(), "info");
  Write(system + "/lgpud.toml", "[daemon]\nlog_level = \"trace\"\nmax_sessions = 3\n");
  EXPECT_EQ(level(), "trace");
  Write(system + "/lgpud.d/20.toml", "[daemon]\nlog_level = \"debug\"\n");
  Write(system + "/lgpud.d/10.toml", "[daemon]\nlog_level = \"off\"\n");
  Write(system + "/lgpud.d/30.toml.off", "[daemon]\nlog_level = \"error\"\n");
  EXPECT_EQ(level(), "debug");
  Write(environment.home + "/.config/lgpu/lgpud.toml", "[daemon]\nlog_level = \"warn\"\n");
  EXPECT_EQ(level(), "warn");
  environment.log_level = "error";
  EXPECT_EQ(level(), "error");
  flags.log_level = "off";
  EXPECT_EQ(level(), "off");
  EXPECT_EQ(LoadConfig(flags, environment)->max_sessions, 3u);
}

// A container may mount a directory in the place of a missing file.
TEST(ConfigTest, ADirectoryInPlaceOfAFileIsAnError) {
  const TemporaryDirectory temporary;
  std::filesystem::create_directories(temporary.path() + "/lgpud.d/20.toml");
  Environment environment;
  environment.system_config_dir = temporary.path();
  const absl::Status status = LoadConfig({}, environment).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("20.toml: Is a directory"));
}

TEST(ConfigTest, DefaultDirectoriesOfRootAndOfOtherUsers) {
  const TemporaryDirectory empty;
  Environment environment;
  environment.system_config_dir = empty.path();
  absl::StatusOr<Config> config = LoadConfig({}, environment);
  EXPECT_EQ(config->runtime_dir, "/run/lgpu");
  EXPECT_EQ(config->state_dir, "/var/lib/lgpu");

  environment.uid = 1000;
  environment.xdg_runtime_dir = "/run/user/1000";
  environment.xdg_state_home = "/home/a/state";
  config = LoadConfig({}, environment);
  EXPECT_EQ(config->runtime_dir, "/run/user/1000/lgpu");
  EXPECT_EQ(config->state_dir, "/home/a/state/lgpu");

  environment.xdg_runtime_dir = "";
  environment.xdg_state_home = "";
  environment.home = empty.path();
  config = LoadConfig({}, environment);
  EXPECT_EQ(config->runtime_dir, "/tmp/lgpu-1000");
  EXPECT_EQ(config->state_dir, empty.path() + "/.local/state/lgpu");
}

TEST(ConfigTest, ADirectoryOfItsOwnKeepsItsStateToItself) {
  const TemporaryDirectory empty;
  Environment environment;
  environment.system_config_dir = empty.path();
  environment.endpoint = "/srv/a";
  EXPECT_EQ(LoadConfig({}, environment)->runtime_dir, "/srv/a");
  Flags flags;
  flags.dir = "/srv/b/../c/";
  const absl::StatusOr<Config> config = LoadConfig(flags, environment);
  EXPECT_EQ(config->runtime_dir, "/srv/c");
  EXPECT_EQ(config->state_dir, "/srv/c/state");
  environment.endpoint = "local";
  EXPECT_EQ(LoadConfig({}, environment)->runtime_dir, "/run/lgpu");
}

TEST(ConfigTest, VisibleDevicesSetToNothingIsNotUnset) {
  const TemporaryDirectory empty;
  Environment environment;
  environment.system_config_dir = empty.path();
  EXPECT_FALSE(LoadConfig({}, environment)->has_cuda_visible_devices);
  environment.cuda_visible_devices = "";
  EXPECT_TRUE(LoadConfig({}, environment)->has_cuda_visible_devices);
}

TEST(ConfigTest, SimulateIsCountsAndSizes) {
  const SimulatedDeviceConfig gib{.memory = 1_GiB};
  EXPECT_THAT(*ParseSimulate("1GiB"), ElementsAre(gib));
  EXPECT_THAT(*ParseSimulate("2x1GiB,1x512MiB"),
              ElementsAre(gib, gib, SimulatedDeviceConfig{.memory = 512_MiB}));
  for (const char* wrong : {"", "x", "0x1GiB", "-1x1GiB", "2x", "2x1GB", "1GiB,", "65x1GiB",
                            "33x1GiB,32x1GiB", "99999999999999999999x1GiB", "1x2x1GiB", "1MiB"}) {
    EXPECT_EQ(ParseSimulate(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(ConfigTest, SimulateOnTheCommandLineReplacesTheFilesDevices) {
  const TemporaryDirectory temporary;
  Write(temporary.path() + "/a.toml", "[[simulated_device]]\nmemory = \"3GiB\"\n");
  Flags flags;
  flags.config_file = temporary.path() + "/a.toml";
  EXPECT_THAT(LoadConfig(flags, {})->simulated, ElementsAre(SimulatedDeviceConfig{.memory = 3_GiB}));
  flags.simulate = "1GiB";
  EXPECT_THAT(LoadConfig(flags, {})->simulated, ElementsAre(SimulatedDeviceConfig{.memory = 1_GiB}));
}

TEST(ConfigTest, OneUuidForTwoCardsIsRefused) {
  const TemporaryDirectory temporary;
  Write(temporary.path() + "/a.toml",
        "[[simulated_device]]\nmemory = \"1GiB\"\nuuid = \"GPU-1\"\n"
        "[[simulated_device]]\nmemory = \"1GiB\"\nuuid = \"GPU-1\"\n");
  Flags flags;
  flags.config_file = temporary.path() + "/a.toml";
  EXPECT_THAT(std::string(LoadConfig(flags, {}).status().message()), HasSubstr("uuid 'GPU-1'"));
}

TEST(ConfigTest, AFileThatIsAskedForMustBeThere) {
  Flags flags;
  flags.config_file = "/nowhere/lgpud.toml";
  const absl::Status status = LoadConfig(flags, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/lgpud.toml"));
}

TEST(ConfigTest, StopAndKillNeedAnAllowance) {
  const TemporaryDirectory temporary;
  Flags flags;
  flags.config_file = temporary.path() + "/lgpud.toml";
  for (const std::string action : {"stop", "kill"}) {
    const std::string text = "[memory]\non_uncharged = \"" + action + "\"\n";
    Write(*flags.config_file, text);
    const absl::Status status = LoadConfig(flags, {}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("needs memory.overhead_allowance"));
    Write(*flags.config_file, text + "overhead_allowance = \"600MiB\"\n");
    const absl::StatusOr<Config> config = LoadConfig(flags, {});
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->on_uncharged, action);
  }
  EXPECT_FALSE(
      ApplyConfigText("[memory]\non_uncharged = \"maim\"\n", "lgpud.toml", *std::make_unique<Config>()).ok());
}

// The example says that its values are the defaults; with its commented keys switched on it is still right.
TEST(ConfigTest, TheExampleFileHoldsTheDefaultsAndEveryKeyOfItIsKnown) {
  std::ifstream file(LGPU_SOURCE_DIR "/packaging/lgpud.toml");
  std::ostringstream text;
  text << file.rdbuf();
  ASSERT_FALSE(text.str().empty());
  const Config defaults;
  const Config example = Parsed(text.str());
  EXPECT_EQ(example.socket_group, defaults.socket_group);
  EXPECT_EQ(example.socket_mode, defaults.socket_mode);
  EXPECT_EQ(example.log_level, defaults.log_level);
  EXPECT_EQ(example.max_sessions, defaults.max_sessions);
  EXPECT_EQ(example.reserve, defaults.reserve);
  EXPECT_EQ(example.overhead_allowance, defaults.overhead_allowance);
  EXPECT_EQ(example.on_uncharged, defaults.on_uncharged);
  EXPECT_EQ(example.max_drain, defaults.max_drain);
  EXPECT_EQ(example.policy.placement_records, defaults.policy.placement_records);
  EXPECT_EQ(example.kept_events, defaults.kept_events);

  std::string all;
  std::istringstream lines(text.str());
  for (std::string line; std::getline(lines, line);) {
    const std::size_t start = line.find_first_not_of("# ");
    const bool commented_key = line.starts_with('#') && start != std::string::npos &&
                               (line[start] == '[' || line.find(" = ") != std::string::npos) &&
                               line.find("  ") != 1;
    all += (commented_key ? line.substr(start) : line) + "\n";
  }
  const Config everything = Parsed(all);
  EXPECT_EQ(everything.runtime_dir, "/run/lgpu");
  EXPECT_EQ(everything.simulated.size(), 1u);
  EXPECT_EQ(everything.static_devices.size(), 1u);
  EXPECT_EQ(everything.http.listen, "9400");
  EXPECT_EQ(everything.policy.user_caps.size(), 2u);
  EXPECT_EQ(everything.policy.group_caps.size(), 1u);
}

std::string FileText(const std::string& path) {
  std::ifstream file(LGPU_SOURCE_DIR "/" + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ConfigTest, EveryKeyIsInTheExampleAndInTheDocumentation) {
  const std::string example = FileText("packaging/lgpud.toml");
  const std::string page = FileText("docs/configuration.md");
  const std::string man = FileText("docs/man/lgpud.toml.5");
  const std::vector<std::string> keys = ConfigKeys();
  EXPECT_GT(keys.size(), 25u);
  for (std::string key : keys) {
    const std::string last = key.substr(key.rfind('.') + 1);
    const bool in_example = example.find("\n" + last + " = ") != std::string::npos ||
                            example.find("\n# " + last + " = ") != std::string::npos;
    EXPECT_TRUE(in_example) << key << " is not in the example";
    if (key.starts_with("caps.")) key = "caps.*.NAME." + last;
    EXPECT_THAT(page, HasSubstr("`" + key + "`")) << key << " is not in docs/configuration.md";
    EXPECT_THAT(man, HasSubstr("\\fB" + last + "\\fR")) << key << " is not in lgpud.toml(5)";
  }
}

TEST(ConfigTest, NewTablesAndTheirErrors) {
  const Config config = Parsed(R"(
[devices]
visible = "1,0"
[[logical_device]]
lease = "shared"
owner = "alice"
memory = "1GiB"
mode = "preallocate"
gpu = "0"
[[logical_device]]
lease = "shared"
guarantee = "64MiB"
[memory]
default_mode = "preallocate"
[http]
listen = "[::1]:0"
token_file = "/etc/lgpu/token"
owners = "names"
[daemon]
log_format = "json"
)");
  EXPECT_TRUE(config.has_cuda_visible_devices);
  EXPECT_EQ(config.cuda_visible_devices, "1,0");
  ASSERT_EQ(config.static_devices.size(), 2u);
  EXPECT_EQ(config.static_devices[0].memory, 1_GiB);
  EXPECT_EQ(config.static_devices[1].guarantee, 64_MiB);
  EXPECT_EQ(config.static_devices[1].origin, "lgpud.toml:10:1");
  EXPECT_TRUE(config.policy.preallocate);
  EXPECT_EQ(config.http,
            (HttpConfig{.listen = "[::1]:0", .token_file = "/etc/lgpu/token", .owners = "names"}));
  EXPECT_EQ(config.log_format, "json");
  EXPECT_EQ(config.origins.at("http.listen"), "lgpud.toml:16:1");

  EXPECT_THAT(ErrorOf("[memory]\ndefault_mode = \"all\"\n"),
              HasSubstr("2:16: expected \"growth\" or \"preallocate\""));
  EXPECT_THAT(ErrorOf("[[logical_device]]\nmemory = \"1GiB\"\n"), HasSubstr("has no lease"));
  EXPECT_THAT(ErrorOf("[[logical_device]]\nlease = \"a\"\nmode = \"preallocate\"\nguarantee = \"2MiB\"\n"),
              HasSubstr("leave guarantee out"));
  EXPECT_THAT(ErrorOf("[devices]\nvisible = 0\n"), HasSubstr("a list in quotes"));
}

TEST(ConfigTest, AnAddressThatOtherMachinesReachNeedsAToken) {
  const TemporaryDirectory temporary;
  const std::string path = temporary.path() + "/lgpud.toml";
  Flags flags;
  flags.config_file = path;
  Write(path, "[http]\nlisten = \"0.0.0.0:9400\"\n");
  EXPECT_THAT(std::string(LoadConfig(flags, {}).status().message()),
              ::testing::AllOf(HasSubstr("lgpud.toml:2:1: "), HasSubstr("http.token_file")));
  Write(path, "[http]\nlisten = \"9400\"\n");  // of 127.0.0.1
  EXPECT_EQ(LoadConfig(flags, {}).status(), absl::OkStatus());
  Write(path, "[http]\nlisten = \"http\"\n");
  EXPECT_THAT(std::string(LoadConfig(flags, {}).status().message()), HasSubstr("is not ADDRESS:PORT"));
  Write(path, "[http]\nlisten = \"0.0.0.0:9400\"\ntoken_file = \"/t\"\n");
  EXPECT_EQ(LoadConfig(flags, {}).status(), absl::OkStatus());
}

TEST(ConfigTest, SettingsSayWhereTheyComeFrom) {
  const TemporaryDirectory temporary;
  const std::string path = temporary.path() + "/lgpud.toml";
  Write(path, "[daemon]\nmax_sessions = 5\nlog_level = \"warn\"\n");
  Environment environment;
  environment.log_level = "debug";
  Flags flags;
  flags.config_file = path;
  flags.dir = "/tmp/x";
  const absl::StatusOr<Config> config = LoadConfig(flags, environment);
  ASSERT_EQ(config.status(), absl::OkStatus());
  std::map<std::string, std::pair<std::string, std::string>> settings;
  for (const Setting& setting : ListSettings(*config)) {
    settings[setting.key] = {setting.value, setting.origin};
  }
  using Pair = std::pair<std::string, std::string>;
  EXPECT_EQ(settings["daemon.max_sessions"], (Pair{"5", path + ":2:1"}));
  EXPECT_EQ(settings["daemon.log_level"], (Pair{"debug", "LGPU_LOG_LEVEL"}));
  EXPECT_EQ(settings["daemon.runtime_dir"], (Pair{"/tmp/x", "flag --dir"}));
  EXPECT_EQ(settings["events.kept"], (Pair{"1024", "default"}));

  Config other = *config;
  other.log_level = "off";
  other.policy.preallocate = true;
  EXPECT_THAT(NeedRestart(*config, other), ::testing::IsEmpty());
  other.reserve = 1_MiB;
  other.simulated.push_back({.memory = 1_GiB});
  EXPECT_THAT(NeedRestart(*config, other), ElementsAre("memory.reserve", "simulated_device"));
}

TEST(CommandLineTest, FlagsAndTheirErrors) {
  const char* good[] = {"lgpud", "--simulate", "2x1GiB", "--dir=/tmp/x", "--check-config"};
  const CommandLine line = ParseCommandLine(5, good);
  EXPECT_FALSE(line.exit_code.has_value());
  EXPECT_EQ(line.flags.simulate, "2x1GiB");
  EXPECT_EQ(line.flags.dir, "/tmp/x");
  EXPECT_EQ(line.flags.config_file, std::nullopt);
  EXPECT_TRUE(line.check_config);

  const char* format[] = {"lgpud", "--log-format", "json"};
  EXPECT_EQ(ParseCommandLine(3, format).flags.log_format, "json");
  format[2] = "xml";
  EXPECT_EQ(ParseCommandLine(3, format).exit_code, kExitUsage);
  const char* bad[] = {"lgpud", "--simulat", "2x1GiB"};
  EXPECT_EQ(ParseCommandLine(3, bad).exit_code, kExitUsage);
  const char* size[] = {"lgpud", "--simulate", "2x1GB"};
  EXPECT_EQ(ParseCommandLine(3, size).exit_code, kExitUsage);
  EXPECT_THAT(ParseCommandLine(3, size).message, HasSubstr("GiB"));
  EXPECT_EQ(ParseCommandLine(3, bad).message,
            "lgpud: error: lgpud has no flag --simulat\n  try: lgpud --help\n");
  const char* word[] = {"lgpud", "now"};
  EXPECT_THAT(ParseCommandLine(2, word).message, HasSubstr("takes no arguments, but you gave it now\n"));
  const char* valueless[] = {"lgpud", "--dir"};
  EXPECT_THAT(ParseCommandLine(2, valueless).message, HasSubstr("--dir needs a value\n"));
  const char* twice[] = {"lgpud", "--dir=/a", "--dir=/b"};
  EXPECT_THAT(ParseCommandLine(3, twice).message, HasSubstr("--dir can be given once\n"));
  const char* valued[] = {"lgpud", "--check-config=3"};
  EXPECT_THAT(ParseCommandLine(2, valued).message, HasSubstr("--check-config takes no value\n"));
  const char* level[] = {"lgpud", "--log-level", "loud"};
  EXPECT_EQ(ParseCommandLine(3, level).exit_code, kExitUsage);
  const char* version[] = {"lgpud", "--version"};
  EXPECT_EQ(ParseCommandLine(2, version).exit_code, kExitOk);
  EXPECT_THAT(ParseCommandLine(2, version).message, ::testing::StartsWith("lgpud "));
  const char* help[] = {"lgpud", "--help"};
  EXPECT_EQ(ParseCommandLine(2, help).exit_code, kExitOk);
  EXPECT_THAT(ParseCommandLine(2, help).message, HasSubstr("--simulate"));
  std::istringstream lines(ParseCommandLine(2, help).message);
  for (std::string text; std::getline(lines, text);) EXPECT_LE(text.size(), 80u) << text;
}

}  // namespace
}  // namespace lgpu::daemon
