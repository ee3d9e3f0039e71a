#ifndef LGPU_TESTS_FUZZ_MEMORY_PLANE_H_
#define LGPU_TESTS_FUZZ_MEMORY_PLANE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/broker_ticker.h"
#include "allocator/device/device_backend.h"
#include "daemon/leases/lease_table.h"
#include "daemon/recovery/journal.h"
#include "daemon/recovery/reclaimer.h"
#include "daemon/recovery/recovery.h"
#include "daemon/server/config.h"
#include "daemon/server/event_log.h"
#include "daemon/sessions/descriptor_budget.h"
#include "daemon/sessions/session_server.h"
#include "daemon/sessions/session_state.h"
#include "lgpu/v1/control.pb.h"
#include "tests/daemon/temporary_directory.h"
#include "tests/support/generated_channel.h"

namespace lgpu::daemon {

/// A MemoryPlane is lgpud behind its session socket, in this process: broker, journal, leases, sessions with
/// their threads, reclaimer, and recovery after a restart. One sparse simulated card of kCardChunks chunks;
/// lost sessions have no grace, as if their process were gone. Memory is never taken away through /proc,
/// where a daemon passes itself over.
class MemoryPlane {
 public:
  static constexpr std::uint64_t kChunkBytes = std::uint64_t{2} << 20;
  static constexpr std::uint64_t kCardChunks = 16;

  MemoryPlane();
  ~MemoryPlane();
  MemoryPlane(const MemoryPlane&) = delete;
  MemoryPlane& operator=(const MemoryPlane&) = delete;

  /// The client's end of a connection of this process.
  GeneratedChannel Connect();
  /// As from the control service, by any caller that knows the token.
  absl::StatusOr<v1::Lease> CreateLease(const std::string& token, std::uint64_t chunks, bool preallocate);
  absl::StatusOr<v1::Lease> AttachLease(const std::string& token, const std::string& lease);
  void ResizeLease(const std::string& token, const std::string& lease, std::uint64_t chunks);
  void RemoveLease(const std::string& token, const std::string& lease);

  /// The daemon is stopped, and the next one starts with its journal. Connections end.
  void Restart();
  /// Waits for the threads of sessions whose connections ended, but for `left`, and for their memory. Absent
  /// sessions end too, as if their process did.
  void EndSessions(std::size_t left);

  Bytes Held(SessionId session) const { return now_->broker->Held(session); }
  /// Waits for memory on its way back until no more than this is held on the card. Aborts if it is less.
  void WaitUntilHeld(Bytes bytes) const;
  /// Aborts with the broken invariant.
  void CheckInvariants() const;
  /// No lease is left, and no descriptor counts as in flight.
  void CheckEmpty() const;

 private:
  // One daemon. Members are destroyed from below.
  struct Generation {
    std::unique_ptr<DeviceBackend> backend;
    std::unique_ptr<Journal> journal;
    std::unique_ptr<Broker> broker;
    std::unique_ptr<BrokerTicker> ticker;
    SessionDirectory sessions{1024};  // more than an input opens
    EventLog events{64};
    LogLimit log_limit;
    DescriptorBudget budget{128};  // four descriptors a message
    std::unique_ptr<LeaseTable> leases;
    std::unique_ptr<Reclaimer> reclaimer;
    std::unique_ptr<SessionServer> server;
    std::unique_ptr<Recovery> recovery;
  };
  std::unique_ptr<Generation> Start(bool again);
  Caller WhoHas(const std::string& token) const;

  const TemporaryDirectory directory_;
  Config config_;
  std::unique_ptr<Generation> now_;
  int leases_made_ = 0;
};

}  // namespace lgpu::daemon

#endif  // LGPU_TESTS_FUZZ_MEMORY_PLANE_H_
