#ifndef LGPU_MIRRORED_STRATEGY_H_
#define LGPU_MIRRORED_STRATEGY_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/context.h"
#include "lgpu/export.h"
#include "lgpu/tensor.h"

namespace lgpu {

// Data parallelism over the logical devices of one Context, or of the Contexts of several processes of a
// lease: each replica runs the same step on its part of the batch, and the gradients are summed. TensorFlow's
// tf.distribute.MirroredStrategy.

namespace internal {
class Replicas;
}

class MirroredStrategy;

/// TensorFlow's ReduceOp.
enum class ReduceOp { kSum, kMean };

/// One tensor for each replica of this process, by its number; each usually on the device of its replica.
class LGPU_API PerReplica {
 public:
  PerReplica() = default;
  explicit PerReplica(std::vector<Tensor> values) : values_(std::move(values)) {}
  int size() const { return static_cast<int>(values_.size()); }
  /// A Tensor without a value where there is no such replica.
  const Tensor& operator[](int replica) const;
  const std::vector<Tensor>& values() const { return values_; }

 private:
  friend class MirroredStrategy;
  friend class Replica;
  std::vector<Tensor> values_;
  std::int64_t rows_ = 0;  // of the batch that Split took apart; 0: the rows of all values
};

/// A MirroredVariable has a value on the device of each replica, the same on all of them as long as each
/// replica assigns the same. A default-constructed one has no value. Copies share their values.
///
/// Thread-safety: each replica reads and assigns its own value; the rest happens between steps.
class LGPU_API MirroredVariable {
 public:
  MirroredVariable() = default;
  /// The value of a replica; a Tensor without a value where there is no such replica or the variable has
  /// none. The strategy's Replica::Read checks that the variable is its own.
  const Tensor& value(int replica) const;
  bool has_value() const { return values_ != nullptr; }

 private:
  friend class MirroredStrategy;
  friend class Replica;
  std::shared_ptr<std::vector<Tensor>> values_;
  std::shared_ptr<const void> owner_;  // the identity of the variable's strategy
};

/// A Replica is what a step sees of the replica that runs it. It lives as long as the step, on the thread of
/// the step, whose innermost DeviceScope is the replica's device.
class LGPU_API Replica {
 public:
  /// Among the replicas of this process.
  int id() const { return id_; }
  /// Replicas in all processes.
  int count() const;
  const Context& context() const;
  /// "/job:localhost/replica:0/task:0/device:GPU:1"
  const std::string& device() const;

  /// The sum or mean over all replicas, of all processes, of each tensor, on this replica's device. Every
  /// replica calls it, equally often, with tensors of the same shapes and dtypes (else INVALID_ARGUMENT on
  /// all). It waits for the others; the error of one that fails ends the wait.
  absl::StatusOr<std::vector<Tensor>> AllReduce(ReduceOp op, std::span<const Tensor> tensors);
  absl::StatusOr<Tensor> AllReduce(ReduceOp op, const Tensor& tensor);

  /// INVALID_ARGUMENT for a variable of another strategy or without value.
  absl::StatusOr<Tensor> Read(const MirroredVariable& variable) const;
  /// This replica's value is another tensor of the same shape and dtype.
  absl::Status Assign(MirroredVariable& variable, const Tensor& value) const;

  /// What the mean loss over this replica's part of `batch` counts in the sum over all replicas: the part's
  /// share of the rows; 1 / count() with MirroredStrategyOptions::tensorflow_weights. With several processes
  /// `batch` comes from Split.
  double LossWeight(const PerReplica& batch) const;

 private:
  friend class internal::Replicas;
  Replica(internal::Replicas& replicas, int id) : replicas_(replicas), id_(id) {}
  internal::Replicas& replicas_;
  const int id_;
};

/// The processes that form one strategy: of one user and, where there is a daemon, of one lease (LGPU_LEASE).
/// Each has replicas of its own, equally many, and makes the same calls in the same order.
struct MirroredProcesses {
  int rank = 0;   // of this process; every process has another one, from 0 on
  int count = 1;  // of processes
  /// The path of a socket that process 0 makes, and removes when all have come; in a folder of the user's
  /// own.
  std::string meeting = {};
  /// How long a process waits for the others, at the meeting and in each sum.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

struct MirroredStrategyOptions {
  /// Names as CopyToDevice takes them. Empty: all logical GPUs, else all CPUs.
  std::vector<std::string> devices = {};
  /// Each replica counts the same in the loss, as in TensorFlow, also where the last batch is uneven; false:
  /// each row does. Default: whether the Context was made from a strict Config.
  std::optional<bool> tensorflow_weights = {};
  /// Replicas of several processes. Default: this process alone.
  std::optional<MirroredProcesses> processes = {};
};

/// A MirroredStrategy runs steps on several logical devices at once, a thread for each replica (the caller's
/// is that of replica 0).
///
/// Thread-safety: any thread; one step at a time, others wait. Owns its threads; variables may outlive it.
class LGPU_API MirroredStrategy {
 public:
  /// `context` outlives the strategy and stays where it is. INVALID_ARGUMENT: a device twice, or one that is
  /// not there. With `processes` it waits for all of them: DEADLINE_EXCEEDED names those that did not come,
  /// ALREADY_EXISTS: the rank is taken, INVALID_ARGUMENT: leases or numbers of replicas differ.
  static absl::StatusOr<MirroredStrategy> Create(const Context& context,
                                                 const MirroredStrategyOptions& options = {});
  ~MirroredStrategy();
  MirroredStrategy(MirroredStrategy&& other) noexcept;
  MirroredStrategy& operator=(MirroredStrategy&& other) noexcept;

  /// TensorFlow's num_replicas_in_sync: replicas in all processes.
  int replicas() const;
  /// Full names, by replica of this process.
  const std::vector<std::string>& devices() const;

  /// A variable with `initial` on every device; with several processes that of process 0. Not within a step.
  absl::StatusOr<MirroredVariable> Variable(const Tensor& initial) const;

  /// Parts of `batch` by its rows, each on its replica's device: sizes differ by one at most, the larger ones
  /// first. With several processes each has the whole batch here, and gets the parts of its own replicas.
  /// INVALID_ARGUMENT: a scalar, or fewer rows than replicas.
  absl::StatusOr<PerReplica> Split(const Tensor& batch) const;
  /// `value` on every device.
  absl::StatusOr<PerReplica> Broadcast(const Tensor& value) const;
  /// The sum or mean of the values, of this process alone, on the device of replica 0. Shapes and dtypes are
  /// equal.
  absl::StatusOr<Tensor> Reduce(ReduceOp op, const PerReplica& values) const;
  /// The values behind one another along their first dimension, on the device of replica 0.
  absl::StatusOr<Tensor> Gather(const PerReplica& values) const;

  /// Runs `step` once for each replica, at the same time, and waits for all of them, in all processes. Where
  /// one fails, the others end at their next AllReduce, and the error names the replica: RESOURCE_EXHAUSTED
  /// keeps its Refusal, in its own process. Variables that a replica assigned before stay assigned: assign
  /// after the last AllReduce. A process that dies, or does not come in time, ends the strategy of all:
  /// UNAVAILABLE or DEADLINE_EXCEEDED names it, now and from each later Run. FAILED_PRECONDITION: called
  /// within a step.
  absl::Status Run(const std::function<absl::Status(Replica&)>& step) const;

 private:
  explicit MirroredStrategy(std::shared_ptr<internal::Replicas> replicas);
  std::shared_ptr<internal::Replicas> replicas_;
};

}  // namespace lgpu

#endif  // LGPU_MIRRORED_STRATEGY_H_
