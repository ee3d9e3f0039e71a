#include "bench/session_host.h"

#include <chrono>
#include <utility>

#include "lgpu/status.h"

namespace lgpu::bench {

absl::StatusOr<std::unique_ptr<SessionHost>> SessionHost::Start(DeviceMemory& memory,
                                                                const Options& options) {
  std::unique_ptr<SessionHost> host(new SessionHost(options));
  LGPU_ASSIGN_OR_RETURN(host->waker_, daemon::PollWaker::Create());
  if (!options.journal_dir.empty()) {
    LGPU_ASSIGN_OR_RETURN(const std::string boot_id, daemon::ReadBootId());
    LGPU_ASSIGN_OR_RETURN(daemon::Journal::Opened opened,
                          daemon::Journal::Open(options.journal_dir, boot_id));
    host->journal_ = std::move(opened.journal);
  }
  const auto tick_waker = std::make_shared<ThreadWaker>();
  GrantLog& log = host->journal_ != nullptr ? static_cast<GrantLog&>(*host->journal_) : host->no_log_;
  LGPU_ASSIGN_OR_RETURN(host->broker_, Broker::Create(memory, log,
                                                      {.cards = {{.device = memory.devices().front()}},
                                                       .reserve = host->config_.reserve,
                                                       .unconfirmed_waker = host->waker_,
                                                       .tick_waker = tick_waker}));
  LGPU_ASSIGN_OR_RETURN(host->ticker_, BrokerTicker::Start(*host->broker_, tick_waker));
  host->events_ = std::make_unique<daemon::EventLog>(host->config_.kept_events);
  host->budget_ = std::make_unique<daemon::DescriptorBudget>(options.descriptors);
  host->leases_ = std::make_unique<daemon::LeaseTable>(
      host->config_, daemon::LeaseTable::Parts{.broker = *host->broker_,
                                               .sessions = host->sessions_,
                                               .events = *host->events_,
                                               .journal = host->journal_.get()});
  LGPU_ASSIGN_OR_RETURN(host->reclaimer_, daemon::Reclaimer::Start(*host->broker_, *host->leases_,
                                                                   host->sessions_, {.waker = host->waker_}));
  host->server_ =
      std::make_unique<daemon::SessionServer>(daemon::SessionServices{.broker = *host->broker_,
                                                                      .leases = *host->leases_,
                                                                      .sessions = host->sessions_,
                                                                      .events = *host->events_,
                                                                      .budget = *host->budget_,
                                                                      .reclaimer = *host->reclaimer_,
                                                                      .log_limit = host->log_limit_});
  return host;
}

SessionHost::~SessionHost() {
  if (server_ != nullptr) server_->Stop();
  if (reclaimer_ != nullptr) reclaimer_->Stop();
}

absl::Status SessionHost::Serve(UniqueFd socket) {
  LGPU_ASSIGN_OR_RETURN(const PeerCredentials peer, GetPeerCredentials(socket.get()));
  server_->Serve(std::move(socket), peer);
  return absl::OkStatus();
}

absl::StatusOr<std::uint64_t> SessionHost::MakeLease(const std::string& token, Bytes limit) {
  std::shared_ptr<daemon::SessionState> session;
  if (!token.empty()) {
    session = sessions_.FindToken(token);
  } else if (const auto connected = sessions_.All(); !connected.empty()) {
    session = connected.front();
  }
  if (session == nullptr) return absl::FailedPreconditionError("a lease was asked for before Hello");
  v1::CreateLeaseRequest request;
  request.add_devices()->set_memory_limit_bytes(limit.count());
  request.mutable_devices(0)->set_mode(v1::LogicalDeviceSpec::MODE_GROWTH);
  const std::uint32_t uid = session->uid();
  LGPU_ASSIGN_OR_RETURN(const v1::Lease lease,
                        leases_->Create({.uid = uid, .session = std::move(session)}, request,
                                        std::chrono::steady_clock::now() + std::chrono::seconds(1)));
  return lease.devices(0).id();
}

}  // namespace lgpu::bench
