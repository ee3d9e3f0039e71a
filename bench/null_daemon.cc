#include "bench/null_daemon.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "allocator/broker/broker.h"
#include "bench/null_backend.h"
#include "daemon/leases/lease_table.h"
#include "daemon/recovery/reclaimer.h"
#include "daemon/server/config.h"
#include "daemon/server/event_log.h"
#include "daemon/sessions/descriptor_budget.h"
#include "daemon/sessions/session_server.h"
#include "daemon/sessions/session_state.h"
#include "lgpu/status.h"

namespace lgpu::bench {
namespace {

constexpr std::size_t kDescriptors = 256;  // what lgpud has at 1024 open files
constexpr std::size_t kSessions = 1;

}  // namespace

absl::Status ServeOverNullBackend(UniqueFd session, UniqueFd control) {
  LGPU_ASSIGN_OR_RETURN(const PeerCredentials peer, GetPeerCredentials(session.get()));
  LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceMemory> backend, MakeNullBackend());
  const daemon::Config config;
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<daemon::PollWaker> waker, daemon::PollWaker::Create());
  NoGrantLog log;
  LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<Broker> broker,
                        Broker::Create(*backend, log,
                                       {.cards = {{.device = backend->devices().front()}},
                                        .reserve = config.reserve,
                                        .unconfirmed_waker = waker}));
  daemon::SessionDirectory sessions;
  daemon::EventLog events(config.kept_events);
  daemon::DescriptorBudget budget(kDescriptors);
  daemon::LogLimit log_limit;
  daemon::LeaseTable leases(config, {.broker = *broker, .sessions = sessions, .events = events});
  LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<daemon::Reclaimer> reclaimer,
                        daemon::Reclaimer::Start(*broker, leases, sessions, {.waker = waker}));
  daemon::SessionServer server({.broker = *broker,
                                .leases = leases,
                                .sessions = sessions,
                                .events = events,
                                .budget = budget,
                                .reclaimer = *reclaimer,
                                .log_limit = log_limit},
                               kSessions);
  server.Serve(std::move(session), peer);
  v1::CreateLeaseRequest request;
  request.add_devices()->set_memory_limit_bytes((64_GiB).count());
  request.mutable_devices(0)->set_mode(v1::LogicalDeviceSpec::MODE_GROWTH);
  char asked = 0;
  while (::read(control.get(), &asked, sizeof(asked)) == sizeof(asked)) {
    const auto connected = sessions.All();
    if (connected.empty()) return absl::FailedPreconditionError("a lease was asked for before Hello");
    LGPU_ASSIGN_OR_RETURN(const v1::Lease lease,
                          leases.Create({.uid = peer.uid, .session = connected.front()}, request,
                                        std::chrono::steady_clock::now() + std::chrono::seconds(1)));
    const std::uint64_t device = lease.devices(0).id();
    if (::write(control.get(), &device, sizeof(device)) != sizeof(device)) break;
  }
  server.Stop();
  reclaimer->Stop();
  return absl::OkStatus();
}

}  // namespace lgpu::bench
