#ifndef LGPU_TESTS_ALLOCATOR_BROKER_BROKER_RIG_H_
#define LGPU_TESTS_ALLOCATOR_BROKER_BROKER_RIG_H_

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator/broker/broker.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "tests/support/broker_testing.h"
#include "tests/support/failing_backend.h"

namespace lgpu {

inline constexpr Bytes kMiB(std::uint64_t{1} << 20);
inline constexpr LeaseKey kLease{1};

/// A Rig is a broker over one simulated card, and clients that are only numbers.
class Rig {
 public:
  explicit Rig(Bytes card, FailingBackend::Options options = {}) {
    SimulatedBackendOptions simulated;
    simulated.devices = {SimulatedDevice(0, card, "broker_test")};
    simulated.sparse = true;
    backend_ = std::make_unique<FailingBackend>(MakeSimulatedBackend(std::move(simulated)), options);
    broker_ = MakeBroker(*backend_);
    card_ = broker_->Cards().front().id;
  }

  Broker& broker() { return *broker_; }
  FaultPlan& faults() { return backend_->faults(); }

  SessionId Session(std::uint64_t id, LeaseKey lease = kLease) {
    const SessionId session{id};
    broker_->AddSession(session, {.pid = static_cast<std::int64_t>(1000 + id)});
    broker_->AttachSession(session, lease);
    return session;
  }
  absl::StatusOr<LogicalId> Device(Bytes limit, LeaseKey lease = kLease, bool preallocate = false) {
    return broker_->AddDevice({.card = card_,
                               .limit = limit,
                               .guarantee = Bytes(),
                               .preallocate = preallocate,
                               .lease = lease,
                               .device_name = "/device:GPU:0",
                               .lease_name = "lease-" + std::to_string(lease.value),
                               .owner = "kim"});
  }
  Broker::Answer Grow(SessionId session, LogicalId device, Bytes bytes,
                      std::chrono::milliseconds timeout = {}) {
    return broker_->Grow({.session = session,
                          .device = device,
                          .at_least = bytes,
                          .wanted = bytes,
                          .asked_at = std::chrono::steady_clock::now(),
                          .deadline = std::chrono::steady_clock::now() + timeout});
  }
  // Waits, as a session's thread does, until the request has its answer.
  Broker::Answer Finish(Broker::Answer answer) {
    while (answer.wait) answer = AskAgain(*broker_, *answer.wait);
    return answer;
  }
  Broker::CardInfo Card() const { return broker_->Cards().front(); }

 private:
  std::unique_ptr<FailingBackend> backend_;
  std::unique_ptr<Broker> broker_;
  CardId card_;
};

inline std::vector<ChunkId> Ids(const std::vector<Chunk>& chunks) {
  std::vector<ChunkId> ids;
  for (const Chunk& chunk : chunks) ids.push_back(chunk.id);
  return ids;
}

}  // namespace lgpu

#endif  // LGPU_TESTS_ALLOCATOR_BROKER_BROKER_RIG_H_
