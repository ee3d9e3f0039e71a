#include "daemon/daemon.h"

#include <malloc.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/broker_ticker.h"
#include "allocator/broker/card_observer.h"
#include "allocator/broker/session_releases.h"
#include "allocator/broker/session_trims.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "daemon/http/http_server.h"
#include "daemon/leases/lease_idle.h"
#include "daemon/leases/lease_table.h"
#include "daemon/leases/preempter.h"
#include "daemon/leases/static_devices.h"
#include "daemon/recovery/journal.h"
#include "daemon/recovery/reclaimer.h"
#include "daemon/recovery/recovery.h"
#include "daemon/server/control_server.h"
#include "daemon/server/diagnosis.h"
#include "daemon/server/event_log.h"
#include "daemon/server/lease_directories.h"
#include "daemon/server/log_limit.h"
#include "daemon/server/stats.h"
#include "daemon/server/turn_news.h"
#include "daemon/server/uncharged_watch.h"
#include "daemon/sessions/descriptor_budget.h"
#include "daemon/sessions/grant_times.h"
#include "daemon/sessions/session_server.h"
#include "daemon/sessions/session_state.h"
#include "daemon/snapshots/memory_snapshots.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

// How often rings are read and stats pages written while there are sessions.
constexpr std::chrono::milliseconds kTick{50};
constexpr std::chrono::milliseconds kIdleTick{500};
// How often real cards are asked for their used memory; asking takes the driver's locks.
constexpr std::chrono::seconds kObservation{1};
// How often sessions that ignore trims are looked for.
constexpr std::chrono::milliseconds kTrimLook{500};
// How often managed leases are looked at that end by themselves, and directories of leases that have ended.
constexpr std::chrono::milliseconds kEndsLook{500};

std::size_t DescriptorLimit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<std::size_t>(limit.rlim_cur) : 1024;
}

// Sessions have at most half of the descriptors: a socket, a process, two pages and a wake-up each, and one
// more in flight. An absent session has a process and a wake-up, a connection without a session these and a
// socket: a place for each is within the six too. A quarter is for control connections; the rest is for
// chunks.
std::size_t MaxSessions(const Config& config) {
  constexpr std::size_t kDescriptorsOfASession = 6;
  const std::size_t most = DescriptorLimit() / 2 / kDescriptorsOfASession;
  return std::min<std::size_t>(config.max_sessions, most);
}

std::vector<ListedCard> ListCards(const DeviceRegistry& registry) {
  std::vector<ListedCard> cards;
  for (const DeviceRegistry::Card& card : registry.cards()) {
    cards.push_back({.index = card.index,
                     .device = card.device,
                     .served = card.served,
                     .not_served_because = card.not_served_because,
                     .exact = registry.simulated() || registry.accounting_note().empty()});
  }
  return cards;
}

// Simulated cards have no driver that would take memory for a program.
std::vector<BrokerCard> ServedCards(const DeviceRegistry& registry, const Config& config) {
  std::vector<BrokerCard> cards;
  const bool is_real = !registry.simulated(), has_nvml = is_real && registry.accounting_note().empty();
  const Bytes allowance = is_real ? config.overhead_allowance.value_or(Bytes()) : Bytes();
  for (const DeviceRegistry::Card& card : registry.cards()) {
    if (card.served) {
      cards.push_back({.index = card.index,
                       .backend_device = card.backend_device,
                       .device = card.device,
                       .overhead_allowance = allowance,
                       .lists_processes = has_nvml,
                       .watched_overhead = has_nvml
                                               ? config.overhead_allowance.value_or(Config::kUsualOverhead)
                                               : allowance});
    }
  }
  return cards;
}

}  // namespace

class Daemon::Impl {
 public:
  /// The broker and the parts that it uses. Members are destroyed from below.
  struct Foundation {
    std::unique_ptr<Journal> journal;  // none: the daemon remembers nothing, and `no_log` is the broker's
    std::unique_ptr<NoGrantLog> no_log = std::make_unique<NoGrantLog>();
    std::shared_ptr<PollWaker> reclaimer_waker;
    std::shared_ptr<ThreadWaker> tick_waker = std::make_shared<ThreadWaker>();
    std::shared_ptr<ThreadWaker> preempt_waker = std::make_shared<ThreadWaker>();
    std::unique_ptr<Broker> broker;
  };

  Impl(const Config& config, DeviceRegistry& registry, Foundation foundation)
      : config_(config),
        foundation_(std::move(foundation)),
        events_(config.kept_events),
        budget_(DescriptorLimit() / 4),
        leases_(config_, {.broker = broker_, .sessions = sessions_, .events = events_, .journal = journal_}),
        stats_(ListCards(registry), broker_, leases_, sessions_, loads_),
        backend_(registry.backend()),
        served_(ServedCards(registry, config)),
        simulated_(registry.simulated()) {}
  ~Impl() { Stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// `found`: in the journal, where there is one.
  absl::Status Start(DeviceMemory& backend, const std::optional<Journal::Opened>& found) {
    LGPU_ASSIGN_OR_RETURN(broker_ticker_, BrokerTicker::Start(broker_, foundation_.tick_waker));
    LGPU_ASSIGN_OR_RETURN(
        reclaimer_, Reclaimer::Start(broker_, leases_, sessions_, {.waker = foundation_.reclaimer_waker}));
    server_ = std::make_unique<SessionServer>(SessionServices{.broker = broker_,
                                                              .leases = leases_,
                                                              .sessions = sessions_,
                                                              .events = events_,
                                                              .budget = budget_,
                                                              .reclaimer = *reclaimer_,
                                                              .log_limit = log_limit_,
                                                              .outlives_daemon = journal_ != nullptr,
                                                              .grant_times = &grant_times_,
                                                              .suspender = &suspender_});
    if (found) LGPU_RETURN_IF_ERROR(Recover(backend, *found));
    LGPU_ASSIGN_OR_RETURN(
        preempter_, Preempter::Start(broker_, leases_, sessions_, suspender_, foundation_.preempt_waker));
    LGPU_ASSIGN_OR_RETURN(
        control_,
        ControlServer::Start({.leases = leases_,
                              .broker = broker_,
                              .sessions = sessions_,
                              .events = events_,
                              .stats = stats_,
                              .diagnostician = diagnostician_,
                              .snapshots = snapshots_,
                              .suspender = suspender_,
                              .simulated = simulated_,
                              .open_directory = [this](const auto& lease) { return OpenDirectory(lease); }}));
    LGPU_RETURN_IF_ERROR(StartDirectories());
    LGPU_ASSIGN_OR_RETURN(ticker_, Thread::Start("lgpud-tick", [this] { Tick(); }));
    const bool is_waited_for = leases_.size() > 0;  // programs with leases from before wait for lgpud
    if (const absl::Status made = MakeStaticLeases(config_.static_devices, stats_.Cards(), leases_,
                                                   is_waited_for ? OnNoRoom::kGoOn : OnNoRoom::kUndo);
        !made.ok()) {
      if (!is_waited_for) return made;
      const std::string text = absl::StrCat(
          std::string(made.message()), "\nlgpud serves the other leases; make room and reload it (SIGHUP)");
      spdlog::error("{}", text);
      Tell(v1::Event::KIND_LEASE_DEGRADED, text);
    }
    if (!config_.http.listen.empty()) {
      LGPU_ASSIGN_OR_RETURN(
          http_, HttpServer::Start(config_.http, {.stats = stats_,
                                                  .leases = leases_,
                                                  .events = events_,
                                                  .snapshots = snapshots_,
                                                  .grants = grant_times_,
                                                  .suspender = suspender_,
                                                  .broker = broker_,
                                                  .backend = simulated_ ? "simulated" : "cuda",
                                                  .names_owners = config_.http.owners == "names"}));
    }
    Tell(v1::Event::KIND_DAEMON_STARTED, "lgpud " LGPU_VERSION " has started");
    return absl::OkStatus();
  }

  void ServeSession(UniqueFd socket, const PeerCredentials& peer, std::optional<LeaseKey> only = {}) {
    server_->Serve(std::move(socket), peer, only);
  }

  void ServeControl(UniqueFd socket, const PeerCredentials& peer, std::optional<LeaseKey> only = {}) {
    if (const absl::Status status = control_->Serve(std::move(socket), peer, only); !status.ok()) {
      if (const std::optional<std::uint64_t> kept_back = log_limit_.Next()) {
        spdlog::warn(
            "a control connection of pid {} (uid {}) was not served: {} ({} more such lines kept back)",
            peer.pid, peer.uid, std::string(status.message()), *kept_back);
      }
    }
  }

  absl::Status Reload(const Config& config) {
    // New leases are made under the new caps; if one cannot be had, all is as it was.
    LeasePolicy before = leases_.SetPolicy(config.policy);
    if (absl::Status made = MakeStaticLeases(config.static_devices, stats_.Cards(), leases_, OnNoRoom::kUndo);
        !made.ok()) {
      leases_.SetPolicy(std::move(before));
      return made;
    }
    diagnostician_.SetSettings(ListSettings(config));
    return absl::OkStatus();
  }

  void AwaitLocks() const {
    static_cast<void>(broker_.counters());
    static_cast<void>(leases_.size());
    static_cast<void>(sessions_.size());
  }

  std::string http_address() const { return http_ == nullptr ? "" : http_->address(); }

  void Stop() {
    {
      MutexLock lock(mutex_);
      if (std::exchange(stopping_, true)) return;
    }
    Tell(v1::Event::KIND_DAEMON_STOPPING, "lgpud is stopping");
    if (http_ != nullptr) http_->Stop();
    tick_.NotifyAll();
    if (directories_ != nullptr) directories_->Stop();
    suspender_.Close();
    if (preempter_ != nullptr) preempter_->Stop();
    broker_.StopWaiting();
    leases_.Close();
    events_.Close();
    if (server_ != nullptr) server_->Stop();
    if (reclaimer_ != nullptr) reclaimer_->Stop();
    if (control_ != nullptr) control_->Stop();
    ticker_.Join();
    if (journal_ != nullptr) journal_->Tend();
  }

 private:
  absl::Status Recover(DeviceMemory& backend, const Journal::Opened& found) {
    LGPU_ASSIGN_OR_RETURN(const LeaseStore::Found lasting, LeaseStore(config_.state_dir).Read());
    recovery_ = std::make_unique<Recovery>(RecoveryParts{.backend = backend,
                                                         .broker = broker_,
                                                         .leases = leases_,
                                                         .sessions = sessions_,
                                                         .reclaimer = *reclaimer_,
                                                         .events = events_,
                                                         .journal = *journal_});
    server_->SkipIds(SessionId{found.state.ids().session_id()});
    LGPU_ASSIGN_OR_RETURN(const auto wanted, StaticNames(config_.static_devices));
    LGPU_RETURN_IF_ERROR(recovery_->Run(found, lasting, wanted));
    leases_.EndOverdue();
    return absl::OkStatus();
  }

  absl::Status StartDirectories() {
    if (config_.runtime_dir.empty()) return absl::OkStatus();
    LGPU_ASSIGN_OR_RETURN(
        directories_,
        LeaseDirectories::Start(
            config_.runtime_dir,
            {.session = [this](UniqueFd socket, const PeerCredentials& peer,
                               LeaseKey lease) { ServeSession(std::move(socket), peer, lease); },
             .control = [this](UniqueFd socket, const PeerCredentials& peer,
                               LeaseKey lease) { ServeControl(std::move(socket), peer, lease); }}));
    // An earlier daemon's directories stay where their leases do: containers have them mounted.
    directories_->RemoveEnded(leases_);
    for (const LeaseTable::WithDirectory& lease : leases_.LeasesWithDirectories()) {
      if (const absl::Status opened = directories_->Open(lease).status(); !opened.ok()) {
        spdlog::error("lease {} is not served from its own directory: {}", lease.id,
                      std::string(opened.message()));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> OpenDirectory(const LeaseTable::WithDirectory& lease) {
    if (directories_ == nullptr) return absl::FailedPreconditionError("this daemon has no runtime directory");
    return directories_->Open(lease);
  }

  void TendLeases() {
    suspender_.EndEmpty();
    leases_.EndOverdue();
    if (directories_ == nullptr) return;
    for (const LeaseKey ended : directories_->RemoveEnded(leases_)) control_->EndLease(ended);
  }

  void Tell(v1::Event::Kind kind, std::string text) {
    v1::Event event;
    event.set_kind(kind);
    event.set_text(std::move(text));
    events_.Append(std::move(event), std::nullopt);
  }

  void TellIgnoredTrims() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_trim_look_) return;
    next_trim_look_ = now + kTrimLook;
    for (const SessionTrims::Ignored& ignored : broker_.trims().TakeIgnored()) {
      if (const std::shared_ptr<SessionState> session = sessions_.Find(ignored.session)) {
        leases_.TellOf(session->lease(), [&](const LeaseEvents& events, const Lease& lease) {
          events.IgnoredTrim(lease, *session, ignored);
        });
      }
    }
  }

  void TellGivingWay() {
    for (const GivingWayNews& news : broker_.releases().TakeNews()) {
      leases_.TellOf(news.lease,
                     [&](const LeaseEvents& events, const Lease& lease) { events.GaveWay(lease, news); });
    }
  }

  /// Once a second.
  void NoteUses() {
    const std::uint64_t tick = TickAt(UseTimeNow());
    if (std::exchange(tick_shown_, tick) == tick) return;
    for (const std::shared_ptr<SessionState>& session : sessions_.All()) session->WriteTick(tick);
    TellLastUses(leases_, sessions_, broker_);
  }

  /// Once for each session.
  void TellLostContext(SessionState& session) {
    if (!session.TakeLostContext()) return;
    leases_.TellOf(session.lease(), [&](const LeaseEvents& events, const Lease& lease) {
      events.LostContext(lease, session);
    });
  }

  void Tick() {
    std::chrono::steady_clock::time_point observe_at, look_at_ends_at;  // at once
    while (true) {
      const auto now = std::chrono::steady_clock::now();
      if (!simulated_ && now >= observe_at) {
        broker_.observer().ObserveCards();
        uncharged_watch_.Look();
        loads_.Sample(backend_, served_);
        observe_at = now + kObservation;
      }
      if (now >= look_at_ends_at) {
        TendLeases();
        look_at_ends_at = now + kEndsLook;
      }
      {
        MutexLock lock(mutex_);
        if (!stopping_) {
          const auto pause = sessions_.size() > 0 ? kTick : kIdleTick;
          tick_.WaitUntil(mutex_, std::chrono::steady_clock::now() + pause);
        }
        if (stopping_) return;
      }
      for (const std::shared_ptr<SessionState>& session : sessions_.All()) {
        leases_.DrainPlacements(*session);
        TellLostContext(*session);
        leases_.WriteStats(*session);
      }
      NoteUses();
      server_->Reap();
      turn_news_.Look();
      TellIgnoredTrims();
      TellGivingWay();
      if (recovery_ != nullptr) {
        recovery_->Tend();
        journal_->Tend();
      }
    }
  }

  const Config config_;
  const Foundation foundation_;
  Journal* const journal_ = foundation_.journal.get();
  Broker& broker_ = *foundation_.broker;
  SessionDirectory sessions_{MaxSessions(config_)};
  EventLog events_;
  LogLimit log_limit_;
  DescriptorBudget budget_;
  LeaseTable leases_;
  CardLoads loads_;
  StatsReporter stats_;
  DeviceMemory& backend_;
  const std::vector<BrokerCard> served_;
  MemorySnapshots snapshots_{{.leases = leases_, .broker = broker_, .sessions = sessions_}};
  LeaseSuspender suspender_{broker_, leases_, sessions_};
  GrantTimes grant_times_;
  Diagnostician diagnostician_{broker_, stats_, ListSettings(config_)};
  TurnNews turn_news_{broker_, events_};
  std::chrono::steady_clock::time_point next_trim_look_;  // of the tick's thread
  std::uint64_t tick_shown_ = 0;                          // in the stats pages
  UnchargedWatch uncharged_watch_{broker_, leases_, sessions_, config_.on_uncharged};
  const bool simulated_;
  std::unique_ptr<BrokerTicker> broker_ticker_;
  std::unique_ptr<Reclaimer> reclaimer_;
  std::unique_ptr<Preempter> preempter_;
  std::unique_ptr<SessionServer> server_;
  std::unique_ptr<ControlServer> control_;
  std::unique_ptr<LeaseDirectories> directories_;
  std::unique_ptr<Recovery> recovery_;
  std::unique_ptr<HttpServer> http_;
  Mutex mutex_;
  CondVar tick_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Thread ticker_;
};

Daemon::Daemon(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Daemon::~Daemon() = default;

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Config& config, DeviceRegistry& registry) {
  // One arena per thread would cost every idle session more than all the rest of it.
  ::mallopt(M_ARENA_MAX, 2);
  Impl::Foundation foundation;
  std::optional<Journal::Opened> found;
  if (!config.runtime_dir.empty()) {
    LGPU_ASSIGN_OR_RETURN(const std::string boot_id, ReadBootId());
    LGPU_ASSIGN_OR_RETURN(found, Journal::Open(config.runtime_dir, boot_id));
    foundation.journal = std::move(found->journal);
  }
  GrantLog& log = found ? static_cast<GrantLog&>(*foundation.journal) : *foundation.no_log;
  LGPU_ASSIGN_OR_RETURN(foundation.reclaimer_waker, PollWaker::Create());
  LGPU_ASSIGN_OR_RETURN(foundation.broker, Broker::Create(registry.backend(), log,
                                                          {.cards = ServedCards(registry, config),
                                                           .reserve = config.reserve,
                                                           .unconfirmed_waker = foundation.reclaimer_waker,
                                                           .tick_waker = foundation.tick_waker,
                                                           .preempt_waker = foundation.preempt_waker,
                                                           .max_drain = config.max_drain,
                                                           .give_way_wait = config.give_way_wait,
                                                           .min_run = config.min_run}));
  auto impl = std::make_unique<Impl>(config, registry, std::move(foundation));
  LGPU_RETURN_IF_ERROR(impl->Start(registry.backend(), found));
  return std::unique_ptr<Daemon>(new Daemon(std::move(impl)));
}

void Daemon::ServeSession(UniqueFd socket, const PeerCredentials& peer) {
  impl_->ServeSession(std::move(socket), peer);
}
void Daemon::ServeControl(UniqueFd socket, const PeerCredentials& peer) {
  impl_->ServeControl(std::move(socket), peer);
}
absl::Status Daemon::Reload(const Config& config) { return impl_->Reload(config); }
void Daemon::AwaitLocks() const { impl_->AwaitLocks(); }
std::string Daemon::http_address() const { return impl_->http_address(); }
void Daemon::Stop() { impl_->Stop(); }

}  // namespace lgpu::daemon
