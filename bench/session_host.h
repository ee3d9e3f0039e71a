#ifndef LGPU_BENCH_SESSION_HOST_H_
#define LGPU_BENCH_SESSION_HOST_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/broker_ticker.h"
#include "allocator/device/device_memory.h"
#include "base/unique_fd.h"
#include "daemon/leases/lease_table.h"
#include "daemon/recovery/journal.h"
#include "daemon/recovery/reclaimer.h"
#include "daemon/server/config.h"
#include "daemon/server/event_log.h"
#include "daemon/sessions/descriptor_budget.h"
#include "daemon/sessions/session_server.h"
#include "daemon/sessions/session_state.h"

namespace lgpu::bench {

/// A SessionHost is lgpud's broker, leases and sessions over any memory, in this process: all parts on the
/// way of a grant, without control plane and configuration files.
class SessionHost {
 public:
  struct Options {
    std::size_t max_sessions = 1;
    std::size_t descriptors = 256;  // for chunks on their way: lgpud's number at 1,024 open files
    std::string journal_dir = {};   // empty: grants are not logged
  };
  /// `memory` has one card and outlives the host.
  static absl::StatusOr<std::unique_ptr<SessionHost>> Start(DeviceMemory& memory, const Options& options);
  /// Ends its sessions.
  ~SessionHost();
  SessionHost(const SessionHost&) = delete;
  SessionHost& operator=(const SessionHost&) = delete;

  /// Serves a session on the other end of a client's socket.
  absl::Status Serve(UniqueFd socket);
  /// A lease of one growing device for the session of that token (empty: the only one); the device's id.
  absl::StatusOr<std::uint64_t> MakeLease(const std::string& token, Bytes limit);
  absl::Status CheckInvariants() const { return broker_->CheckInvariants(); }

 private:
  explicit SessionHost(const Options& options) : sessions_(options.max_sessions) {}

  daemon::Config config_;
  std::shared_ptr<daemon::PollWaker> waker_;
  NoGrantLog no_log_;
  std::unique_ptr<daemon::Journal> journal_;
  std::unique_ptr<Broker> broker_;
  std::unique_ptr<BrokerTicker> ticker_;
  daemon::SessionDirectory sessions_;  // which bounds the connections too
  std::unique_ptr<daemon::EventLog> events_;
  std::unique_ptr<daemon::DescriptorBudget> budget_;
  daemon::LogLimit log_limit_;
  std::unique_ptr<daemon::LeaseTable> leases_;
  std::unique_ptr<daemon::Reclaimer> reclaimer_;
  std::unique_ptr<daemon::SessionServer> server_;
};

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_SESSION_HOST_H_
