// lgpud: builds every object of the daemon, connects them, and waits for the signal to stop.

#include <google/protobuf/stubs/logging.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/exit_codes.h"
#include "base/nvidia_driver.h"
#include "base/standard_files.h"
#include "daemon/daemon.h"
#include "daemon/http/http_address.h"
#include "daemon/leases/static_devices.h"
#include "daemon/server/acceptor.h"
#include "daemon/server/command_line.h"
#include "daemon/server/config.h"
#include "daemon/server/device_registry.h"
#include "daemon/server/server_dir.h"
#include "daemon/server/service_manager.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

int Fail(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "lgpud: error: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

int ExitCodeForStart(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return kExitConfig;
    case absl::StatusCode::kPermissionDenied:
      return kExitNotPermitted;
    default:
      return kExitFailure;
  }
}

// The message as a JSON string.
class JsonMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& to) override {
    const std::string text(message.payload.data(), message.payload.size());
    const std::string quoted =
        nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    to.append(quoted.data(), quoted.data() + quoted.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JsonMessage>(); }
};

// The level as syslog's number, by which the journal knows it.
class SyslogLevel final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& to) override {
    const char number = message.level <= spdlog::level::debug  ? '7'
                        : message.level == spdlog::level::info ? '6'
                        : message.level == spdlog::level::warn ? '4'
                                                               : '3';
    to.push_back(number);
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<SyslogLevel>(); }
};

// systemd's way to say that stderr is the journal.
bool StderrIsJournal() {
  const char* const stream = std::getenv("JOURNAL_STREAM");
  struct stat info = {};
  if (stream == nullptr || ::fstat(STDERR_FILENO, &info) != 0) return false;
  return stream == std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
}

void SetUpLog(const Config& config) {
  const bool automatic = config.log_format == "auto";
  const std::string format = !automatic ? config.log_format : StderrIsJournal() ? "journal" : "text";
  auto logger = std::make_shared<spdlog::logger>("lgpud", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<JsonMessage>('*').add_flag<SyslogLevel>('#');
  formatter->set_pattern(format == "json" ? R"({"time":"%Y-%m-%dT%H:%M:%S.%f%z","level":"%l","message":%*})"
                         : format == "journal" ? "<%#>%v"
                                               : "%Y-%m-%d %H:%M:%S.%f: %L lgpud] %v");
  logger->set_formatter(std::move(formatter));
  logger->set_level(spdlog::level::from_str(config.log_level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  // It would print a line for every malformed string that a client sends.
  google::protobuf::SetLogHandler(nullptr);
}

// Every session needs a few descriptors and every grant one in flight.
void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    spdlog::warn("the limit of open files stays at its soft value");
  }
}

// Before the first thread, so that all of them inherit the mask and the signals come to the descriptor.
absl::StatusOr<UniqueFd> BlockStopSignals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the one write
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  if (const int error = ::pthread_sigmask(SIG_BLOCK, &signals, nullptr); error != 0) {
    return absl::ErrnoToStatus(error, "cannot block signals");
  }
  UniqueFd fd(::signalfd(-1, &signals, SFD_CLOEXEC));
  if (!fd) return absl::ErrnoToStatus(errno, "cannot make a signalfd");
  return fd;
}

// Tells the service manager's watchdog meanwhile that the daemon is alive.
int WaitForSignal(int fd, const Daemon& daemon) {
  const std::optional<std::chrono::milliseconds> period = WatchdogPeriod();
  pollfd waited = {.fd = fd, .events = POLLIN, .revents = 0};
  while (::poll(&waited, 1, period ? static_cast<int>(period->count()) : -1) <= 0) {
    if (!period) continue;
    daemon.AwaitLocks();
    NotifyServiceManager("WATCHDOG=1");
  }
  signalfd_siginfo info = {};
  while (::read(fd, &info, sizeof info) < 0 && errno == EINTR) {
  }
  return static_cast<int>(info.ssi_signo);
}

std::string CountedCards(const DeviceRegistry& registry) {
  int served = 0;
  for (const DeviceRegistry::Card& card : registry.cards()) served += card.served ? 1 : 0;
  return std::to_string(served) + (registry.simulated() ? " simulated" : "") +
         (served == 1 ? " GPU" : " GPUs");
}

absl::Status CheckToken(const Config& config) {
  if (config.http.listen.empty()) return absl::OkStatus();
  const absl::Status token = ReadHttpToken(config.http.token_file).status();
  return token.ok()
             ? token
             : absl::InvalidArgumentError(PlaceOf(config, "http.token_file") + std::string(token.message()));
}

// The rules of a configuration beyond its grammar: the same for --check-config, at the start
// and when it is read again.
absl::Status CheckForMachine(const Config& config, const DeviceRegistry& registry) {
  LGPU_RETURN_IF_ERROR(CheckStaticDevices(config, registry.cards()));
  return CheckToken(config);
}

// An unknown user is not an error: the account may be created later.
void NoteUnknownNames(const Config& config) {
  const auto note = [](const char* kind, const std::string& name) {
    std::fprintf(stderr, "lgpud: note: caps.%ss.%s: there is no such %s on this machine\n", kind,
                 name.c_str(), kind);
  };
  const auto is_number = [](const std::string& name) {
    return name.find_first_not_of("0123456789") == std::string::npos;
  };
  for (const CapConfig& cap : config.policy.user_caps) {
    if (cap.name != "*" && !is_number(cap.name) && ::getpwnam(cap.name.c_str()) == nullptr) {
      note("user", cap.name);
    }
  }
  for (const CapConfig& cap : config.policy.group_caps) {
    if (!is_number(cap.name) && ::getgrnam(cap.name.c_str()) == nullptr) note("group", cap.name);
  }
}

int CheckConfig(const Config& config) {
  const absl::StatusOr<std::unique_ptr<DeviceRegistry>> registry = DeviceRegistry::Look(config);
  const absl::Status status = registry.ok() ? CheckForMachine(config, **registry) : CheckToken(config);
  if (!status.ok()) return Fail(status, kExitConfig);
  if (!registry.ok() && !config.static_devices.empty()) {
    // Without a card to try them on.
    std::fprintf(stderr, "lgpud: note: whether the logical devices fit was not checked: %s\n",
                 std::string(registry.status().message()).c_str());
  }
  NoteUnknownNames(config);
  return kExitOk;
}

// kExitNoGpu where no start can serve a GPU: no driver, and none simulated. Every other fault is for the
// start to tell.
int CheckGpus(const Config& config) {
  if (!config.simulated.empty() || HasNvidiaDriver()) return kExitOk;
  const absl::Status status = DeviceRegistry::Look(config).status();
  return absl::IsFailedPrecondition(status) ? Fail(status, kExitNoGpu) : kExitOk;
}

// Reads the configuration again. An error in it changes nothing.
void Reload(const Flags& flags, const Config& running, const DeviceRegistry& registry, Daemon& daemon) {
  const absl::StatusOr<Config> wanted = LoadConfig(flags, Environment::OfThisProcess());
  absl::Status status = wanted.status();
  // On the cards and with the reserve that stay until the next start.
  if (status.ok()) {
    Config now = *wanted;
    now.reserve = running.reserve;
    status = CheckForMachine(now, registry);
  }
  if (status.ok()) status = daemon.Reload(*wanted);
  if (!status.ok()) {
    spdlog::error("the new configuration is refused, the old one stays in force: {}",
                  std::string(status.message()));
    return;
  }
  for (const std::string& key : NeedRestart(running, *wanted)) {
    spdlog::warn("{} has changed; that takes effect when lgpud is started again", key);
  }
  spdlog::default_logger()->set_level(spdlog::level::from_str(wanted->log_level));
  spdlog::info("the configuration was read again");
}

// Without the group root alone reaches the system's daemon.
void NoteMissingGroup(const Config& config) {
  const bool system = ::geteuid() == 0 && config.runtime_dir == "/run/lgpu";
  if (!system || config.socket_group.empty() || ::getgrnam(config.socket_group.c_str()) != nullptr) return;
  spdlog::warn(
      "there is no group {}: only root can use this lgpud; groupadd --system {}, then start lgpud again",
      config.socket_group, config.socket_group);
}

int Serve(const Config& config, const Flags& flags, int signals) {
  absl::StatusOr<ServerDir::Inherited> inherited = ServerDir::TakeInherited();
  if (!inherited.ok()) return Fail(inherited.status(), ExitCodeForStart(inherited.status()));
  absl::StatusOr<ServerDir> dir = ServerDir::Open(config, *std::move(inherited));
  if (!dir.ok()) return Fail(dir.status(), ExitCodeForStart(dir.status()));
  absl::StatusOr<std::unique_ptr<DeviceRegistry>> registry = DeviceRegistry::Open(config);
  if (!registry.ok()) {
    const bool no_gpu = absl::IsFailedPrecondition(registry.status());
    return Fail(registry.status(), no_gpu ? kExitNoGpu : ExitCodeForStart(registry.status()));
  }
  if (const absl::Status status = CheckForMachine(config, **registry); !status.ok()) {
    return Fail(status, kExitConfig);
  }
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config, **registry);
  if (!daemon.ok()) return Fail(daemon.status(), ExitCodeForStart(daemon.status()));

  auto sessions =
      Acceptor::Start(dir->session_socket(), "session", [&](UniqueFd socket, const PeerCredentials& peer) {
        (*daemon)->ServeSession(std::move(socket), peer);
      });
  if (!sessions.ok()) return Fail(sessions.status(), kExitFailure);
  auto controls =
      Acceptor::Start(dir->control_socket(), "control", [&](UniqueFd socket, const PeerCredentials& peer) {
        (*daemon)->ServeControl(std::move(socket), peer);
      });
  if (!controls.ok()) return Fail(controls.status(), kExitFailure);

  std::fprintf(stderr, "lgpud %s ready: %s, directory %s\n", LGPU_VERSION, CountedCards(**registry).c_str(),
               dir->path().c_str());
  if (const std::string http = (*daemon)->http_address(); !http.empty()) {
    std::fprintf(stderr, "lgpud serves HTTP at http://%s/metrics\n", http.c_str());
    std::fprintf(stderr, "lgpud shows its page at http://%s/\n", http.c_str());
  }
  NotifyServiceManager("READY=1\nSTATUS=serving " + CountedCards(**registry));
  NoteMissingGroup(config);
  int signal = WaitForSignal(signals, **daemon);
  for (; signal == SIGHUP; signal = WaitForSignal(signals, **daemon)) {
    NotifyServiceManager("RELOADING=1");
    Reload(flags, config, **registry, **daemon);
    NotifyServiceManager("READY=1");
  }
  spdlog::info("stopping on signal {}", signal);
  NotifyServiceManager("STOPPING=1");
  (*controls)->Stop();
  (*sessions)->Stop();
  (*daemon)->Stop();
  return kExitOk;
}

int Main(int argc, const char* const* argv) {
  const CommandLine command_line = ParseCommandLine(argc, argv);
  if (command_line.exit_code) {
    std::fputs(command_line.message.c_str(), *command_line.exit_code == kExitOk ? stdout : stderr);
    return *command_line.exit_code;
  }
  const absl::StatusOr<Config> config = LoadConfig(command_line.flags, Environment::OfThisProcess());
  if (!config.ok()) return command_line.check_gpus ? kExitOk : Fail(config.status(), kExitConfig);
  if (command_line.check_gpus) return CheckGpus(*config);
  if (command_line.check_config || command_line.print_config) {
    if (const int code = CheckConfig(*config); code != kExitOk) return code;
    if (!command_line.print_config) {
      std::puts("configuration ok");
      return kExitOk;
    }
    for (const Setting& setting : ListSettings(*config)) {
      std::printf("%s = %s  # %s\n", setting.key.c_str(), setting.value.c_str(), setting.origin.c_str());
    }
    return kExitOk;
  }
  SetUpLog(*config);
  RaiseDescriptorLimit();
  const absl::StatusOr<UniqueFd> signals = BlockStopSignals();
  if (!signals.ok()) return Fail(signals.status(), kExitFailure);
  return Serve(*config, command_line.flags, signals->get());
}

}  // namespace
}  // namespace lgpu::daemon

int main(int argc, char** argv) {
  lgpu::OpenStandardFiles();
  try {
    return lgpu::daemon::Main(argc, argv);
  } catch (const std::exception& error) {  // of the libraries; lgpu itself throws nothing
    std::fprintf(stderr, "lgpud: error: %s\n", error.what());
    return lgpu::kExitFailure;
  }
}
