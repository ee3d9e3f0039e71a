#include "tests/simulation/daemon_program.h"

#include <memory>
#include <utility>

#include "daemon/daemon.h"
#include "daemon/server/acceptor.h"
#include "daemon/server/device_registry.h"
#include "daemon/server/server_dir.h"
#include "lgpu/status.h"
#include "tests/simulation/machine/scheduler.h"

namespace lgpu::simulation {

void DaemonProgram::Run() { status_ = Serve(); }

void DaemonProgram::SendStop() {
  stop_ = true;
  Scheduler::Here()->WakeAll(this);
}

absl::Status DaemonProgram::Serve() {
  LGPU_ASSIGN_OR_RETURN(daemon::ServerDir dir, daemon::ServerDir::Open(config_, {}));
  LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<daemon::DeviceRegistry> registry,
                        daemon::DeviceRegistry::Open(config_));
  LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<daemon::Daemon> serving,
                        daemon::Daemon::Start(config_, *registry));
  LGPU_ASSIGN_OR_RETURN(const auto sessions,
                        daemon::Acceptor::Start(dir.session_socket(), "session",
                                                [&](UniqueFd socket, const PeerCredentials& peer) {
                                                  serving->ServeSession(std::move(socket), peer);
                                                }));
  LGPU_ASSIGN_OR_RETURN(const auto controls,
                        daemon::Acceptor::Start(dir.control_socket(), "control",
                                                [&](UniqueFd socket, const PeerCredentials& peer) {
                                                  serving->ServeControl(std::move(socket), peer);
                                                }));
  on_start_();
  serves_ = true;
  while (!stop_) Scheduler::Here()->Block("a signal", this, {}, {});
  controls->Stop();
  sessions->Stop();
  serving->Stop();
  return absl::OkStatus();
}

}  // namespace lgpu::simulation
