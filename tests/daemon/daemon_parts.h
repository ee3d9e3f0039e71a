#ifndef LGPU_TESTS_DAEMON_DAEMON_PARTS_H_
#define LGPU_TESTS_DAEMON_DAEMON_PARTS_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "allocator/broker/allowance.h"
#include "allocator/broker/broker.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "base/process.h"
#include "daemon/leases/lease_table.h"
#include "daemon/recovery/journal.h"
#include "daemon/recovery/reclaimer.h"
#include "daemon/server/config.h"
#include "daemon/server/event_log.h"
#include "daemon/server/poll_waker.h"
#include "daemon/sessions/session_state.h"
#include "lgpu/status.h"
#include "proto/mapped_region.h"
#include "proto/wire/pages.h"
#include "tests/support/broker_testing.h"

namespace lgpu::daemon {

/// A child that does nothing until it is killed; the destructor kills it.
class IdleChild {
 public:
  IdleChild() : pid_(::fork()) {
    if (pid_ == 0) {
      while (true) ::pause();
    }
  }
  ~IdleChild() { Kill(); }
  IdleChild(const IdleChild&) = delete;
  IdleChild& operator=(const IdleChild&) = delete;

  Process Hold() const { return *HoldProcess(pid_); }
  void Kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_;
};

/// The words of a program that gives its whole allowance back when it is asked to.
class NoAllowances final : public Allowances {
 public:
  std::atomic<std::uint64_t>& Free(std::size_t) override { return free_; }
  std::atomic<std::uint64_t>& Keep(std::size_t) override { return keep_; }

 private:
  std::atomic<std::uint64_t> free_{0};
  std::atomic<std::uint64_t> keep_{0};
};

/// The parts of lgpud that keep its accounts, over one simulated card and the journal in a directory, without
/// threads, sockets and sessions' channels. Two of them on one directory, one after the other, are a daemon
/// and the next one.
class DaemonParts {
 public:
  static constexpr Bytes kCard = 64_MiB;

  struct Options {
    bool sparse = true;  // else chunks have pages, so that FindStrays sees them
  };
  explicit DaemonParts(const std::string& directory) : DaemonParts(directory, Options()) {}
  DaemonParts(const std::string& directory, const Options& options)
      : opened_(*Journal::Open(directory, kBoot)), options_(options) {
    config_.state_dir = directory;
    leases_ = std::make_unique<LeaseTable>(
        config_,
        LeaseTable::Parts{
            .broker = *broker_, .sessions = sessions_, .events = events_, .journal = opened_.journal.get()});
  }

  static std::chrono::steady_clock::time_point Soon() {
    return std::chrono::steady_clock::now() + std::chrono::seconds(10);
  }

  /// A live session of `uid`, known to all parts, without a lease.
  std::shared_ptr<SessionState> AddSession(std::uint32_t uid, Process process, std::uint64_t number = 1) {
    return AddSession(uid, std::move(process), number, *PollWaker::Create(), /*suspends=*/false);
  }
  std::shared_ptr<SessionState> AddSession(std::uint32_t uid, Process process, std::uint64_t number,
                                           std::shared_ptr<Waker> waker, bool suspends) {
    absl::StatusOr<SharedPage<StatsPage>> stats_page = SharedPages::CreateStatsPage(MapWithBoost);
    absl::StatusOr<SharedPage<const ClientPage>> client_page = SharedPages::CreateClientPage(MapWithBoost);
    const SessionId id{number};
    broker_->AddSession(id, {.pid = process.pid, .waits_longer = true});
    auto session = std::make_shared<SessionState>(
        SessionState::Identity{.id = id,
                               .uid = uid,
                               .command = "test",
                               .token = "token " + std::to_string(number),
                               .suspends = suspends},
        std::move(process), std::move(waker), *std::move(stats_page), *std::move(client_page));
    EXPECT_EQ(sessions_.Add(session), absl::OkStatus());
    return session;
  }

  /// A lease with one growing device of 32 MiB, attached to the session if there is one, else lasting.
  absl::StatusOr<v1::Lease> CreateLease(const Caller& caller, const std::string& name) {
    return CreateLease(caller, name, 32_MiB, v1::LogicalDeviceSpec::MODE_GROWTH);
  }
  absl::StatusOr<v1::Lease> CreateLease(const Caller& caller, const std::string& name, Bytes limit,
                                        v1::LogicalDeviceSpec::Mode mode) {
    v1::CreateLeaseRequest request;
    request.set_name(name);
    request.set_lasting(caller.session == nullptr);
    v1::LogicalDeviceSpec& device = *request.add_devices();
    device.set_memory_limit_bytes(limit.count());
    device.set_mode(mode);
    return leases_->Create(caller, request, Soon());
  }

  absl::Status Grow(const SessionState& session, const v1::Lease& lease, Bytes bytes) {
    const auto now = std::chrono::steady_clock::now();
    return broker_
        ->Grow({.session = session.id(),
                .device = LogicalId{lease.devices(0).id()},
                .at_least = bytes,
                .wanted = bytes,
                .asked_at = now,
                .deadline = now})
        .status;
  }

  Bytes FreeOfCard() const { return broker_->Cards()[0].view.free(); }

  Journal::Opened& opened() { return opened_; }
  DeviceBackend& backend() { return *backend_; }
  Broker& broker() { return *broker_; }
  LeaseTable& leases() { return *leases_; }
  SessionDirectory& sessions() { return sessions_; }
  EventLog& events() { return events_; }

 private:
  static constexpr char kBoot[] = "01234567-89ab-cdef-0123-456789abcdef";

  Journal::Opened opened_;
  const Options options_;
  Config config_;
  // The card is this process's own: tests that run beside this one have no memory of it.
  const std::unique_ptr<DeviceBackend> backend_ =
      MakeSimulatedBackend({.devices = {SimulatedDevice(0, kCard, "parts " + std::to_string(::getpid()))},
                            .sparse = options_.sparse});
  const TickedBroker broker_{*backend_, *opened_.journal};
  SessionDirectory sessions_{16};
  EventLog events_{64};
  std::unique_ptr<LeaseTable> leases_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_TESTS_DAEMON_DAEMON_PARTS_H_
