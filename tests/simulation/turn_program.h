#ifndef LGPU_TESTS_SIMULATION_TURN_PROGRAM_H_
#define LGPU_TESTS_SIMULATION_TURN_PROGRAM_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "client/driver/lease_session.h"
#include "client/session/daemon_connection.h"
#include "lgpu/bytes.h"
#include "tests/simulation/machine/processes.h"
#include "tests/simulation/turn_taker.h"

namespace lgpu::simulation {

/// A TurnProgram is an unmodified program under `lgpu run --preemptible`, as two processes of the simulated
/// machine: the program, whose memory is charged by the shim's session, and its parent, which suspends and
/// resumes it when lgpud says so. What the driver does is done here: the memory of a suspended program is
/// not on the card, and none of its calls goes on.
class TurnProgram final : public TurnTaker {
 public:
  explicit TurnProgram(const Options& options) : TurnTaker(options), random_(options.seed) {}

  void Run() override;
  /// The body of its parent's process: ends after the program.
  void RunParent();
  /// The program's, before the parent has an order.
  void SetProcess(MachineProcess& program) { program_ = &program; }
  void Finish() override { is_finishing_ = true; }
  Bytes OnCard() const override;
  std::optional<TimePoint> waits_since() const override { return waits_since_; }
  std::uint64_t suspensions() const override { return suspensions_; }
  std::uint64_t refusals() const override { return refusals_; }

 private:
  enum class State { kRuns, kLocked, kOnHost };

  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }
  std::uint64_t ParentBelow(std::uint64_t bound) { return parent_random_() % bound; }
  /// Notes a use, as each call of the driver does, and waits until the driver lets it go on.
  void Call();
  void Work(std::chrono::milliseconds time);
  void Take(Bytes bytes);
  void Free(Bytes bytes);
  std::unique_ptr<DaemonConnection> OpenParent();
  void ServeOrders(DaemonConnection& session);
  absl::Status Follow(DaemonConnection& session, const wire::Suspend& order);
  absl::Status Suspend(DaemonConnection& session);
  absl::Status Resume(DaemonConnection& session);
  void Move();

  std::mt19937_64 random_;
  std::mt19937_64 parent_random_{options_.seed + 1};
  MachineProcess* program_ = nullptr;
  std::atomic<bool> is_finishing_ = false;
  std::unique_ptr<shim::LeaseSession> session_;  // the program's
  int card_ = shim::LeaseSession::kNoCard;
  State state_ = State::kRuns;
  Bytes used_;
  std::optional<TimePoint> waits_since_;
  std::uint64_t suspensions_ = 0, refusals_ = 0;
  Mutex mutex_;
  CondVar changed_;  // of the parent's session
};

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_TURN_PROGRAM_H_
