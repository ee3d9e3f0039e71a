#ifndef LGPU_TESTS_SIMULATION_TENSOR_PROGRAM_H_
#define LGPU_TESTS_SIMULATION_TENSOR_PROGRAM_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/session/lease.h"
#include "tests/simulation/turn_taker.h"

namespace lgpu::simulation {

/// A TensorProgram is a program of liblgpu under `--preemptible`: it has liblgpu's session and its chunks,
/// and follows lgpud's orders as a Context does (client/runtime/context_orders.cc). One thread works, another
/// follows the orders.
class TensorProgram final : public TurnTaker {
 public:
  explicit TensorProgram(const Options& options)
      : TurnTaker(options), random_(options.seed), order_random_(options.seed + 1) {}

  void Run() override;
  void Finish() override { is_finishing_ = true; }
  Bytes OnCard() const override { return {}; }
  std::optional<TimePoint> waits_since() const override { return waits_since_; }
  std::uint64_t suspensions() const override { return suspensions_; }
  std::uint64_t refusals() const override { return refusals_; }

 private:
  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }
  std::uint64_t OrderBelow(std::uint64_t bound) { return order_random_() % bound; }
  absl::StatusOr<std::unique_ptr<Lease>> Attach() const;
  bool Open();
  void Work();
  /// As an op: waits while it gives way, and is behind the gate when `op` runs.
  template <typename Op>
  void Call(const Op& op);
  void Take(Bytes bytes);
  absl::Status Grow(Bytes bytes);
  void GiveBack(std::size_t chunks);
  void FollowOrders();
  absl::Status GiveWay();
  absl::Status TakeBack();
  void Move(Bytes bytes);
  Bytes held() const;
  void Close();

  std::mt19937_64 random_;
  std::mt19937_64 order_random_;  // of the thread that follows orders
  std::atomic<bool> is_finishing_ = false, is_over_ = false;
  std::unique_ptr<Lease> lease_;
  std::unique_ptr<RegionSource> source_;
  Mutex gate_;
  std::atomic<bool> gives_way_ = false;
  std::vector<Chunk> chunks_;  // of the thread that has the gate
  Bytes on_host_;
  std::optional<TimePoint> waits_since_;
  std::uint64_t suspensions_ = 0, refusals_ = 0;
};

}  // namespace lgpu::simulation

#endif  // LGPU_TESTS_SIMULATION_TENSOR_PROGRAM_H_
