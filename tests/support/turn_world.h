#ifndef LGPU_TESTS_SUPPORT_TURN_WORLD_H_
#define LGPU_TESTS_SUPPORT_TURN_WORLD_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/release_order.h"
#include "allocator/device/device_memory.h"
#include "lgpu/bytes.h"
#include "tests/allocator/broker/recording_log.h"

namespace lgpu {

/// A TurnWorld has programs that share one card in time. The broker is the real one; programs, their use of
/// the card and their moves to host memory are numbers on a clock of the world's, which runs as fast as the
/// processor allows. lgpud's part (Preempter, LeaseSuspender) is played by the world.
class TurnWorld {
 public:
  using Time = std::chrono::milliseconds;
  static constexpr Time kStep{100};

  struct Program {
    Bytes bytes;  // on the card, while it is not suspended
    Broker::Preemptible preemptible = Broker::Preemptible::kNever;
    Time busy;                                 // it works for so long
    Time pause;                                // then it uses no GPU for so long
    Time work;                                 // in all; then it ends
    Time patience = std::chrono::hours(1000);  // for its memory, as it asks for it
  };
  struct Figures {
    Time makespan{};          // until the last program has ended
    Time longest_wait{};      // of a program that wanted to work
    Time moving{};            // the sum of all moves
    std::uint64_t moves = 0;  // to host memory
    std::uint64_t refused = 0;
  };

  /// `rate`: of moves, in bytes a second.
  TurnWorld(Bytes card, Bytes rate);
  ~TurnWorld();
  TurnWorld(const TurnWorld&) = delete;
  TurnWorld& operator=(const TurnWorld&) = delete;

  void Add(const Program& program);
  /// Until all programs have ended, or `most_moves` are done, or `limit` is over. An error: the account is
  /// wrong, or the limit is over.
  absl::Status Run(Time limit, std::uint64_t most_moves = UINT64_MAX);
  const Figures& figures() const { return figures_; }

 private:
  struct State;
  absl::Status Step();
  void StepProgram(State& program);
  void TakeOrders();
  void FinishMove(State& program);
  void BringBack(State& program);
  void Work(State& program);
  void Ask(State& program);
  void End(State& program);
  Time MoveTime(const State& program) const;

  const Bytes rate_;
  Broker::TimePoint now_ = Broker::TimePoint() + std::chrono::hours(1);
  RecordingLog log_;
  std::unique_ptr<DeviceMemory> backend_;
  std::unique_ptr<Broker> broker_;
  CardId card_;
  std::string uuid_;
  std::vector<std::unique_ptr<State>> programs_;
  Figures figures_;
};

}  // namespace lgpu

#endif  // LGPU_TESTS_SUPPORT_TURN_WORLD_H_
