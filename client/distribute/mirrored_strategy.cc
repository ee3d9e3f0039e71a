#include "lgpu/mirrored_strategy.h"

#include <algorithm>
#include <utility>

#include "client/distribute/replicas.h"
#include "client/distribute/scalars.h"
#include "client/runtime/context_state.h"
#include "kernels/text.h"
#include "lgpu/device_scope.h"
#include "lgpu/ops.h"
#include "lgpu/status.h"

namespace lgpu {

namespace {

/// The sum of `count` tensors, or their mean, which is another op.
absl::StatusOr<Tensor> Finished(const Context& context, ReduceOp op, Tensor sum, int count) {
  if (op == ReduceOp::kSum || count == 1) return sum;
  LGPU_ASSIGN_OR_RETURN(const Tensor divisor, internal::Scalar(context, sum.dtype(), count));
  return Divide(sum, divisor);
}

std::string Quoted(const std::vector<std::string>& names) {
  std::string text = "(";
  for (std::size_t i = 0; i < names.size(); ++i) text += Cat(i == 0 ? "" : ", ", "'", names[i], "'");
  return text + (names.size() == 1 ? ",)" : ")");
}

const Tensor& NoTensor() {
  static const Tensor kNone;
  return kNone;
}

const Tensor& At(const std::vector<Tensor>& values, int replica) {
  const bool is_there = replica >= 0 && static_cast<std::size_t>(replica) < values.size();
  return is_there ? values[static_cast<std::size_t>(replica)] : NoTensor();
}

absl::Status CheckCount(const internal::Replicas& replicas, const PerReplica& values, std::string_view what) {
  if (values.size() == replicas.count()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      Cat(what, " takes a value of each of ", replicas.count(), " replicas; got ", values.size()));
}

}  // namespace

const Tensor& PerReplica::operator[](int replica) const { return At(values_, replica); }

const Tensor& MirroredVariable::value(int replica) const {
  return values_ == nullptr ? NoTensor() : At(*values_, replica);
}

int Replica::count() const { return replicas_.global_count(); }
const Context& Replica::context() const { return replicas_.context(); }
const std::string& Replica::device() const { return replicas_.device(id_); }

absl::StatusOr<std::vector<Tensor>> Replica::AllReduce(ReduceOp op, std::span<const Tensor> tensors) {
  LGPU_ASSIGN_OR_RETURN(std::vector<Tensor> reduced, replicas_.AllReduce(id_, tensors));
  for (Tensor& tensor : reduced) {
    LGPU_ASSIGN_OR_RETURN(tensor, Finished(context(), op, std::move(tensor), count()));
  }
  return reduced;
}

absl::StatusOr<Tensor> Replica::AllReduce(ReduceOp op, const Tensor& tensor) {
  LGPU_ASSIGN_OR_RETURN(std::vector<Tensor> reduced, AllReduce(op, std::span<const Tensor>(&tensor, 1)));
  return std::move(reduced.front());
}

absl::StatusOr<Tensor> Replica::Read(const MirroredVariable& variable) const {
  if (!variable.has_value()) return absl::InvalidArgumentError("this MirroredVariable has no value");
  if (variable.owner_ != replicas_.identity()) {
    return absl::InvalidArgumentError(
        "this MirroredVariable belongs to another MirroredStrategy; make it with this one's Variable");
  }
  return variable.value(id_);
}

absl::Status Replica::Assign(MirroredVariable& variable, const Tensor& value) const {
  LGPU_ASSIGN_OR_RETURN(const Tensor old, Read(variable));
  if (!value.has_value() || value.shape() != old.shape() || value.dtype() != old.dtype()) {
    return absl::InvalidArgumentError(
        Cat("a variable of ", DTypeName(old.dtype()), old.shape().ToString(), " cannot be assigned ",
            value.has_value() ? Cat(DTypeName(value.dtype()), value.shape().ToString())
                              : std::string("a Tensor without a value")));
  }
  LGPU_ASSIGN_OR_RETURN((*variable.values_)[static_cast<std::size_t>(id_)], CopyToDevice(value, device()));
  return absl::OkStatus();
}

double Replica::LossWeight(const PerReplica& batch) const {
  if (replicas_.tensorflow_weights()) return 1.0 / count();
  auto rows = static_cast<double>(batch.rows_);
  for (const Tensor& part : batch.values()) {
    rows += batch.rows_ > 0 ? 0.0 : static_cast<double>(part.shape()[0]);
  }
  return rows == 0 ? 0 : static_cast<double>(batch[id_].shape()[0]) / rows;
}

MirroredStrategy::MirroredStrategy(std::shared_ptr<internal::Replicas> replicas)
    : replicas_(std::move(replicas)) {}
MirroredStrategy::~MirroredStrategy() = default;
MirroredStrategy::MirroredStrategy(MirroredStrategy&& other) noexcept = default;
MirroredStrategy& MirroredStrategy::operator=(MirroredStrategy&& other) noexcept = default;

absl::StatusOr<MirroredStrategy> MirroredStrategy::Create(const Context& context,
                                                          const MirroredStrategyOptions& options) {
  const std::shared_ptr<internal::ContextState>& state = context.state_;
  if (state == nullptr) return absl::FailedPreconditionError("this Context was moved from, or never made");
  std::vector<std::string> asked = options.devices;
  for (const char* type : {"GPU", "CPU"}) {
    if (!asked.empty()) break;
    for (const LogicalDeviceName& device : context.ListLogicalDevices(type)) asked.push_back(device.name);
  }
  std::vector<std::string> devices;
  for (const std::string& name : asked) {
    LGPU_ASSIGN_OR_RETURN(const int position, state->placer().Lookup(name));
    devices.push_back(state->device(position).name());
  }
  std::vector<std::string> sorted = devices;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return absl::InvalidArgumentError(Cat("No duplicates allowed in `devices` argument: ", Quoted(devices)));
  }
  if (state->recorder().logging()) {
    state->recorder().Log(Cat("Using MirroredStrategy with devices ", Quoted(devices)));
  }
  std::unique_ptr<internal::ProcessGroup> processes;
  if (options.processes) {
    LGPU_ASSIGN_OR_RETURN(processes, internal::ProcessGroup::Join(
                                         *options.processes, {.replicas = static_cast<int>(devices.size()),
                                                              .lease = context.lease()}));
  }
  LGPU_ASSIGN_OR_RETURN(
      std::shared_ptr<internal::Replicas> replicas,
      internal::Replicas::Start(context, std::move(devices),
                                options.tensorflow_weights.value_or(state->strict()), std::move(processes)));
  return MirroredStrategy(std::move(replicas));
}

int MirroredStrategy::replicas() const { return replicas_->global_count(); }
const std::vector<std::string>& MirroredStrategy::devices() const { return replicas_->devices(); }

absl::StatusOr<MirroredVariable> MirroredStrategy::Variable(const Tensor& initial) const {
  LGPU_ASSIGN_OR_RETURN(const Tensor first, replicas_->OfFirstProcess(initial));
  LGPU_ASSIGN_OR_RETURN(const PerReplica values, Broadcast(first));
  MirroredVariable variable;
  variable.values_ = std::make_shared<std::vector<Tensor>>(values.values());
  variable.owner_ = replicas_->identity();
  return variable;
}

absl::StatusOr<PerReplica> MirroredStrategy::Split(const Tensor& batch) const {
  if (!batch.has_value()) return absl::InvalidArgumentError("this Tensor has no value");
  const std::int64_t rows = batch.shape().rank() == 0 ? 0 : batch.shape()[0];
  if (rows < replicas()) {
    return absl::InvalidArgumentError(Cat("a batch of shape ", batch.shape().ToString(),
                                          " has fewer rows than the ", replicas(),
                                          " replicas; use a larger batch or fewer devices"));
  }
  std::vector<Tensor> values;
  for (int replica = 0; replica < replicas_->count(); ++replica) {
    const std::int64_t number = replicas_->first_number() + replica;
    const std::int64_t more = rows % replicas();  // parts that have one row more
    const std::int64_t count = rows / replicas() + (number < more ? 1 : 0);
    const std::int64_t begin = rows / replicas() * number + std::min(number, more);
    LGPU_ASSIGN_OR_RETURN(const Tensor part, SliceRows(batch, begin, count));
    LGPU_ASSIGN_OR_RETURN(Tensor there, CopyToDevice(part, replicas_->device(replica)));
    values.push_back(std::move(there));
  }
  PerReplica parts(std::move(values));
  parts.rows_ = rows;
  return parts;
}

absl::StatusOr<PerReplica> MirroredStrategy::Broadcast(const Tensor& value) const {
  std::vector<Tensor> copies;
  for (const std::string& device : devices()) {
    LGPU_ASSIGN_OR_RETURN(Tensor copy, CopyToDevice(value, device));
    copies.push_back(std::move(copy));
  }
  return PerReplica(std::move(copies));
}

absl::StatusOr<Tensor> MirroredStrategy::Reduce(ReduceOp op, const PerReplica& values) const {
  LGPU_RETURN_IF_ERROR(CheckCount(*replicas_, values, "Reduce"));
  const DeviceScope scope(replicas_->context(), devices().front());
  const DevicePolicyScope copies_are_meant(replicas_->context(), DevicePolicy::kSilent);
  LGPU_ASSIGN_OR_RETURN(Tensor sum, AddN(values.values()));
  return Finished(replicas_->context(), op, std::move(sum), replicas_->count());
}

absl::StatusOr<Tensor> MirroredStrategy::Gather(const PerReplica& values) const {
  LGPU_RETURN_IF_ERROR(CheckCount(*replicas_, values, "Gather"));
  const DeviceScope scope(replicas_->context(), devices().front());
  const DevicePolicyScope copies_are_meant(replicas_->context(), DevicePolicy::kSilent);
  return Concat(values.values());
}

absl::Status MirroredStrategy::Run(const std::function<absl::Status(Replica&)>& step) const {
  return replicas_->Run(step);
}

}  // namespace lgpu
