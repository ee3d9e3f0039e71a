#include "client/distribute/replicas.h"

#include <algorithm>
#include <utility>

#include "base/interrupt.h"
#include "client/runtime/memory_report.h"
#include "kernels/text.h"
#include "lgpu/device_scope.h"
#include "lgpu/status.h"

namespace lgpu::internal {

namespace {

/// Of user code and of libraries.
constexpr std::size_t kStackBytes = std::size_t{8} << 20;

}  // namespace

Replicas::Replicas(const Context& context, std::vector<std::string> devices, bool tensorflow_weights,
                   std::unique_ptr<ProcessGroup> processes)
    : context_(context),
      devices_(std::move(devices)),
      tensorflow_weights_(tensorflow_weights),
      processes_(std::move(processes)),
      meeting_(static_cast<int>(devices_.size())),
      reducer_(static_cast<int>(devices_.size()), context, processes_.get()),
      runners_(devices_.size()) {}

absl::StatusOr<std::shared_ptr<Replicas>> Replicas::Start(const Context& context,
                                                          std::vector<std::string> devices,
                                                          bool tensorflow_weights,
                                                          std::unique_ptr<ProcessGroup> processes) {
  std::shared_ptr<Replicas> replicas(
      new Replicas(context, std::move(devices), tensorflow_weights, std::move(processes)));
  for (int replica = 1; replica < replicas->count(); ++replica) {
    LGPU_ASSIGN_OR_RETURN(
        Thread thread,
        Thread::Start(
            "lgpu-replica", [self = replicas.get(), replica] { self->ServeReplica(replica); }, kStackBytes));
    replicas->threads_.push_back(std::move(thread));
  }
  return replicas;
}

Replicas::~Replicas() {
  if (epoch_.IsForked()) {  // the threads are the parent's
    [[maybe_unused]] const auto* leaked = new std::vector<Thread>(std::move(threads_));
    return;
  }
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  threads_.clear();
}

absl::Status Replicas::CheckOutside(const char* what) {
  if (epoch_.IsForked()) {
    return absl::FailedPreconditionError(
        "this MirroredStrategy belongs to the process that this one was forked from; make another one here");
  }
  const MutexLock lock(mutex_);
  if (std::find(runners_.begin(), runners_.end(), std::this_thread::get_id()) == runners_.end()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      Cat(what, " was called within a step of the same strategy; one runs at a time"));
}

absl::StatusOr<Tensor> Replicas::OfFirstProcess(const Tensor& tensor) {
  if (processes_ == nullptr || processes_->count() == 1) return tensor;
  LGPU_RETURN_IF_ERROR(CheckOutside("MirroredStrategy::Variable, with several processes,"));
  if (!tensor.has_value()) return absl::InvalidArgumentError("this Tensor has no value");
  const MutexLock one_step(one_step_);
  LGPU_RETURN_IF_ERROR(processes_->StartStep());
  std::vector<Tensor> tensors = {tensor};
  const absl::Status ended = processes_->EndStep(processes_->CopyFirst(context_, tensors));
  if (!ended.ok()) return ended;
  return tensors.front();
}

absl::Status Replicas::Run(const Step& step) {
  LGPU_RETURN_IF_ERROR(CheckOutside("MirroredStrategy::Run"));
  const MutexLock one_step(one_step_);
  if (processes_ != nullptr) LGPU_RETURN_IF_ERROR(processes_->StartStep());
  meeting_.Restart();
  interrupted_ = false;
  {
    const MutexLock lock(mutex_);
    step_ = &step;
    ++steps_;
    running_ = count() - 1;
    changed_.NotifyAll();
  }
  RunReplica(0, step);
  {
    const MutexLock lock(mutex_);
    while (running_ > 0) {
      if (interrupted_) {
        changed_.Wait(mutex_);
      } else if (!Interrupt::Wait(changed_, mutex_)) {
        interrupted_ = true;
      }
    }
    step_ = nullptr;
  }
  reducer_.Clear();
  return processes_ == nullptr ? meeting_.error() : processes_->EndStep(meeting_.error());
}

void Replicas::ServeReplica(int replica) {
  std::uint64_t seen = 0;
  for (;;) {
    const Step* step = nullptr;
    {
      const MutexLock lock(mutex_);
      while (steps_ == seen && !stopping_) changed_.Wait(mutex_);
      if (stopping_) return;
      seen = steps_;
      step = step_;
    }
    {
      const InterruptScope waits_end_with_those_of_the_caller([this] { return interrupted_.load(); });
      RunReplica(replica, *step);
    }
    const MutexLock lock(mutex_);
    if (--running_ == 0) changed_.NotifyAll();
  }
}

void Replicas::RunReplica(int replica, const Step& step) {
  const DeviceScope scope(context_, device(replica));
  SetRunner(replica, std::this_thread::get_id());
  Replica view(*this, replica);
  const absl::Status status = step(view);
  SetRunner(replica, {});
  if (absl::IsCancelled(status)) interrupted_ = true;
  if (status.ok()) {
    meeting_.End();
  } else {
    meeting_.Break(PrefixedStatus(status, Cat("replica ", replica, " (", device(replica), "): ")));
  }
}

void Replicas::SetRunner(int replica, std::thread::id thread) {
  const MutexLock lock(mutex_);
  runners_[static_cast<std::size_t>(replica)] = thread;
}

absl::StatusOr<std::vector<Tensor>> Replicas::AllReduce(int replica, std::span<const Tensor> tensors) {
  const DevicePolicyScope copies_are_meant(context_, DevicePolicy::kSilent);
  absl::StatusOr<std::vector<Tensor>> reduced = reducer_.Run(replica, meeting_, tensors);
  if (!reduced.ok()) {
    // What another process did names that process, and is no error of this replica.
    const bool is_others = replica == 0 && processes_ != nullptr && processes_->failure().has_value();
    if (is_others) meeting_.Break(*processes_->failure());
    meeting_.Break(PrefixedStatus(reduced.status(), Cat("replica ", replica, " (", device(replica), "): ")));
  }
  return reduced;
}

}  // namespace lgpu::internal
