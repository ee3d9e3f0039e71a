#ifndef LGPU_TESTS_SIMULATION_TURN_TAKER_H_
#define LGPU_TESTS_SIMULATION_TURN_TAKER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "lgpu/bytes.h"

namespace lgpu::simulation {

/// The program of a preemptible lease, as a process of the simulated machine: it works, pauses, frees and
/// takes memory, and gives the card up when lgpud says so.
class TurnTaker {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Options {
    std::uint64_t seed = 0;
    std::string directory;  // lgpud's
    std::string lease;
    Bytes need;         // all that it ever has on the card
    bool fails = true;  // now and then a move fails, or is slow
    /// What cannot be right. Does not return.
    std::function<void(const std::string& what)> fail;
  };
  explicit TurnTaker(const Options& options) : options_(options) {}
  TurnTaker(const TurnTaker&) = delete;
  TurnTaker& operator=(const TurnTaker&) = delete;
  virtual ~TurnTaker() = default;

  /// The body of its process, until Finish.
  virtual void Run() = 0;
  virtual void Finish() = 0;
  /// What the driver has of it on the card beside chunks.
  virtual Bytes OnCard() const = 0;
  /// It waits for memory, or to be brought back, since then.
  virtual std::optional<TimePoint> waits_since() const = 0;
  virtual std::uint64_t suspensions() const = 0;
  virtual std::uint64_t refusals() const = 0;
  const std::string& lease() const { return options_.lease; }

 protected:
  const Options options_;
};

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_TURN_TAKER_H_
