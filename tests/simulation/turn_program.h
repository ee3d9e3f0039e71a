#ifndef LGPU_TESTS_SIMULATION_TURN_PROGRAM_H_
#define LGPU_TESTS_SIMULATION_TURN_PROGRAM_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "client/driver/lease_session.h"
#include "client/session/daemon_connection.h"
#include "lgpu/bytes.h"
#include "tests/simulation/machine/processes.h"

namespace lgpu::simulation {

/// A TurnProgram is an unmodified program under `lgpu run --preemptible`, as two processes of the simulated
/// machine: the program, whose memory is charged by the shim's session, and its parent, which suspends and
/// resumes it when lgpud says so. What the driver does is done here: the memory of a suspended program is
/// not on the card, and none of its calls goes on.
class TurnProgram {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Options {
    std::uint64_t seed = 0;
    std::string directory;  // lgpud's
    std::string lease;
    Bytes need;         // all that it ever has on the card
    bool fails = true;  // now and then its driver fails, and its parent is slow
    /// What cannot be right. Does not return.
    std::function<void(const std::string& what)> fail;
  };
  explicit TurnProgram(const Options& options) : options_(options), random_(options.seed) {}

  /// The body of the program's process: works, pauses, frees and takes memory until Finish.
  void Run();
  /// The body of its parent's: ends after the program.
  void RunParent();
  /// The program's, before the parent has an order.
  void SetProcess(MachineProcess& program) { program_ = &program; }
  void Finish() { is_finishing_ = true; }
  const std::string& lease() const { return options_.lease; }
  /// What the driver has of it on the card.
  Bytes OnCard() const;
  /// It waits for memory, or to be brought back, since then.
  std::optional<TimePoint> waits_since() const { return waits_since_; }
  std::uint64_t suspensions() const { return suspensions_; }
  std::uint64_t refusals() const { return refusals_; }

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

  const Options options_;
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
