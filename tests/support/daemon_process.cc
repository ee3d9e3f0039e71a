#include "tests/support/daemon_process.h"

#include <signal.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

namespace lgpu::testing {

std::string DaemonProcess::LgpudPath() { return ProgramPath(LGPU_TEST_LGPUD); }
std::string DaemonProcess::LgpuPath() { return ProgramPath(LGPU_TEST_LGPU_CLI); }

std::string DaemonProcess::ProgramPath(const std::string& built) {
  const char* const folder = std::getenv("LGPU_TEST_BIN");
  return folder == nullptr ? built : folder + built.substr(built.rfind('/'));
}

absl::StatusOr<std::unique_ptr<DaemonProcess>> DaemonProcess::Start(const Options& options) {
  std::unique_ptr<DaemonProcess> daemon(new DaemonProcess());
  daemon->temp_dir_ = std::make_unique<TempDir>();
  const std::string& base = daemon->temp_dir_->path();
  daemon->dir_ = options.dir.empty() ? base + "/run" : options.dir;

  if (options.open_to_everybody) {
    daemon->temp_dir_->OpenToEverybody();
    // A directory that is there keeps its mode.
    if (::mkdir(daemon->dir_.c_str(), 0755) != 0 && errno != EEXIST) {
      return absl::ErrnoToStatus(errno, daemon->dir_);
    }
  }
  const std::string config = base + "/lgpud.toml";
  std::ofstream(config) << "[daemon]\n"
                        << "lock_dir = \"" << (options.lock_dir.empty() ? base + "/locks" : options.lock_dir)
                        << "\"\nstate_dir = \""
                        << (options.state_dir.empty() ? base + "/state" : options.state_dir)
                        << "\"\nsocket_group = \"\"\n"
                        << (options.open_to_everybody ? "socket_mode = 0o666\n" : "") << options.config;

  ChildProgram::Options program{.argv = {options.lgpud.empty() ? LgpudPath() : options.lgpud, "--dir",
                                         daemon->dir_, "--config", config},
                                .environment = options.environment,
                                .open_files = options.open_files};
  if (!options.simulate.empty()) program.argv.insert(program.argv.end(), {"--simulate", options.simulate});
  LGPU_ASSIGN_OR_RETURN(daemon->program_, ChildProgram::Start(program));

  const auto ready = [&] { return daemon->program_->Errors().find(" ready: ") != std::string::npos; };
  const bool settled = Eventually([&] { return !daemon->program_->running() || ready(); });
  if (!settled || !daemon->program_->running()) {
    return absl::InternalError(absl::StrCat("lgpud is not ready; code ",
                                            daemon->program_->Wait(std::chrono::milliseconds(0)).value_or(-1),
                                            ", stderr: ", daemon->program_->Errors()));
  }
  return daemon;
}

std::optional<int> DaemonProcess::Stop(std::chrono::milliseconds patience) {
  program_->Signal(SIGTERM);
  return program_->Wait(patience);
}

}  // namespace lgpu::testing
