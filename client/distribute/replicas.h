#ifndef LGPU_CLIENT_DISTRIBUTE_REPLICAS_H_
#define LGPU_CLIENT_DISTRIBUTE_REPLICAS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/process_epoch.h"
#include "base/thread.h"
#include "client/distribute/meeting.h"
#include "client/distribute/process_group.h"
#include "client/distribute/reduction.h"
#include "lgpu/mirrored_strategy.h"

namespace lgpu::internal {

/// The Replicas of a strategy: their devices, their threads, and where they meet. Thread-safe; its destructor
/// ends the threads, and is not called within a step.
class Replicas {
 public:
  /// `devices`: full names, at least one. RESOURCE_EXHAUSTED when the system allows no more threads.
  static absl::StatusOr<std::shared_ptr<Replicas>> Start(const Context& context,
                                                         std::vector<std::string> devices,
                                                         bool tensorflow_weights,
                                                         std::unique_ptr<ProcessGroup> processes = nullptr);
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  /// Of this process.
  int count() const { return static_cast<int>(devices_.size()); }
  /// Of all processes.
  int global_count() const { return count() * (processes_ == nullptr ? 1 : processes_->count()); }
  /// The number of this process's replica 0 among all.
  int first_number() const { return processes_ == nullptr ? 0 : count() * processes_->rank(); }
  const Context& context() const { return context_; }
  const std::vector<std::string>& devices() const { return devices_; }
  const std::string& device(int replica) const { return devices_.at(static_cast<std::size_t>(replica)); }
  bool tensorflow_weights() const { return tensorflow_weights_; }
  /// Equal for no two strategies, whatever ends when.
  const std::shared_ptr<const void>& identity() const { return identity_; }

  using Step = std::function<absl::Status(Replica&)>;
  absl::Status Run(const Step& step);
  /// The tensor that process 0 calls this with, between steps; without other processes `tensor`.
  absl::StatusOr<Tensor> OfFirstProcess(const Tensor& tensor);
  /// Of a replica's thread, within a step.
  absl::StatusOr<std::vector<Tensor>> AllReduce(int replica, std::span<const Tensor> tensors);

 private:
  Replicas(const Context& context, std::vector<std::string> devices, bool tensorflow_weights,
           std::unique_ptr<ProcessGroup> processes);
  /// FAILED_PRECONDITION: this thread is in a step, or in a forked child; `what` was called.
  absl::Status CheckOutside(const char* what);
  void ServeReplica(int replica);
  void RunReplica(int replica, const Step& step);
  void SetRunner(int replica, std::thread::id thread);

  const Context& context_;
  const std::vector<std::string> devices_;
  const bool tensorflow_weights_;
  const ProcessEpoch epoch_;
  const std::shared_ptr<const void> identity_ = std::make_shared<char>();
  const std::unique_ptr<ProcessGroup> processes_;  // none: this process alone
  Meeting meeting_;
  AllReducer reducer_;
  Mutex one_step_;                        // held by the thread that runs a step
  std::atomic<bool> interrupted_{false};  // the program interrupted a replica of the step, or its caller

  Mutex mutex_;
  CondVar changed_;
  const Step* step_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null between steps
  std::uint64_t steps_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that have not ended the step
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread::id> runners_ ABSL_GUARDED_BY(mutex_);  // the threads of the step, by replica
  std::vector<Thread> threads_;                                   // of the replicas from 1 on
};

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_DISTRIBUTE_REPLICAS_H_
