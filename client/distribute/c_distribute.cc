// MirroredStrategy in C.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/runtime/c_handles.h"
#include "lgpu/c/distribute.h"
#include "lgpu/mirrored_strategy.h"
#include "lgpu/status.h"

using lgpu::c::Deliver;
using lgpu::c::Missing;
using lgpu::c::Report;

struct lgpu_strategy {
  lgpu::MirroredStrategy strategy;
};
struct lgpu_replica {
  lgpu::Replica& replica;
};
struct lgpu_per_replica {
  lgpu::PerReplica values;
};
struct lgpu_variable {
  lgpu::MirroredVariable variable;
  int replicas;
};

namespace {

absl::StatusOr<lgpu::ReduceOp> OpCalled(lgpu_reduce_op op) {
  switch (op) {
    case LGPU_REDUCE_OP_SUM:
      return lgpu::ReduceOp::kSum;
    case LGPU_REDUCE_OP_MEAN:
      return lgpu::ReduceOp::kMean;
  }
  return absl::InvalidArgumentError("there is no reduction " + std::to_string(static_cast<int>(op)) +
                                    "; lgpu/c/distribute.h lists them at lgpu_reduce_op");
}

absl::StatusOr<std::vector<lgpu::Tensor>> TensorsOf(const lgpu_tensor* const* tensors, size_t count) {
  if (tensors == nullptr && count > 0) return absl::InvalidArgumentError("the list of tensors is NULL");
  std::vector<lgpu::Tensor> all;
  for (size_t i = 0; i < count; ++i) {
    if (tensors[i] == nullptr) {
      return absl::InvalidArgumentError("tensor " + std::to_string(i) + " of the list is NULL");
    }
    all.push_back(tensors[i]->tensor);
  }
  return all;
}

absl::Status CheckReplica(int replica, size_t count) {
  if (replica >= 0 && static_cast<size_t>(replica) < count) return absl::OkStatus();
  return absl::InvalidArgumentError("there is no replica " + std::to_string(replica) + "; there are " +
                                    std::to_string(count) + ", and their numbers begin at 0");
}

lgpu_code Deliver(absl::StatusOr<lgpu::PerReplica> values, lgpu_per_replica** to, lgpu_status* status) {
  if (values.ok()) *to = std::make_unique<lgpu_per_replica>(lgpu_per_replica{*std::move(values)}).release();
  return Report(values.status(), status);
}

/// What a step failed with: its status with all that is in there, where it is of the code that it returned.
absl::Status Failure(lgpu_code code, const lgpu_status& status) {
  if (status.status.raw_code() == static_cast<int>(code)) return status.status;
  return {static_cast<absl::StatusCode>(code), "the step returned the code " + std::to_string(code)};
}

}  // namespace

lgpu_code lgpu_distribute_create(const lgpu_context* context, const char* const* devices, size_t count,
                                 lgpu_strategy** strategy, lgpu_status* status) {
  if (context == nullptr) return Missing("the context", status);
  if (strategy == nullptr) return Missing("the place for the strategy", status);
  if (devices == nullptr && count > 0) return Missing("the list of devices", status);
  lgpu::MirroredStrategyOptions options;
  for (size_t i = 0; i < count; ++i) {
    if (devices[i] == nullptr) return Missing("a device of the list", status);
    options.devices.emplace_back(devices[i]);
  }
  absl::StatusOr<lgpu::MirroredStrategy> made = lgpu::MirroredStrategy::Create(context->context, options);
  if (made.ok()) *strategy = std::make_unique<lgpu_strategy>(lgpu_strategy{*std::move(made)}).release();
  return Report(made.status(), status);
}

void lgpu_distribute_delete(lgpu_strategy* strategy) { const std::unique_ptr<lgpu_strategy> owned(strategy); }

int lgpu_distribute_replicas(const lgpu_strategy* strategy) {
  return strategy == nullptr ? 0 : strategy->strategy.replicas();
}

const char* lgpu_distribute_device(const lgpu_strategy* strategy, int replica) {
  if (strategy == nullptr || !CheckReplica(replica, strategy->strategy.devices().size()).ok()) return nullptr;
  return strategy->strategy.devices()[static_cast<size_t>(replica)].c_str();
}

lgpu_code lgpu_distribute_split(const lgpu_strategy* strategy, const lgpu_tensor* batch,
                                lgpu_per_replica** parts, lgpu_status* status) {
  if (strategy == nullptr) return Missing("the strategy", status);
  if (batch == nullptr) return Missing("the batch", status);
  if (parts == nullptr) return Missing("the place for the parts", status);
  return Deliver(strategy->strategy.Split(batch->tensor), parts, status);
}

lgpu_code lgpu_distribute_broadcast(const lgpu_strategy* strategy, const lgpu_tensor* value,
                                    lgpu_per_replica** values, lgpu_status* status) {
  if (strategy == nullptr) return Missing("the strategy", status);
  if (value == nullptr) return Missing("the value", status);
  if (values == nullptr) return Missing("the place for the values", status);
  return Deliver(strategy->strategy.Broadcast(value->tensor), values, status);
}

lgpu_code lgpu_distribute_reduce(const lgpu_strategy* strategy, lgpu_reduce_op op,
                                 const lgpu_per_replica* values, lgpu_tensor** result, lgpu_status* status) {
  if (strategy == nullptr) return Missing("the strategy", status);
  if (values == nullptr) return Missing("the values", status);
  const absl::StatusOr<lgpu::ReduceOp> called = OpCalled(op);
  if (!called.ok()) return Report(called.status(), status);
  return Deliver(strategy->strategy.Reduce(*called, values->values), result, status);
}

lgpu_code lgpu_distribute_gather(const lgpu_strategy* strategy, const lgpu_per_replica* values,
                                 lgpu_tensor** result, lgpu_status* status) {
  if (strategy == nullptr) return Missing("the strategy", status);
  if (values == nullptr) return Missing("the values", status);
  return Deliver(strategy->strategy.Gather(values->values), result, status);
}

lgpu_code lgpu_distribute_variable(const lgpu_strategy* strategy, const lgpu_tensor* initial,
                                   lgpu_variable** variable, lgpu_status* status) {
  if (strategy == nullptr) return Missing("the strategy", status);
  if (initial == nullptr) return Missing("the initial value", status);
  if (variable == nullptr) return Missing("the place for the variable", status);
  absl::StatusOr<lgpu::MirroredVariable> made = strategy->strategy.Variable(initial->tensor);
  if (made.ok()) {
    const auto replicas = static_cast<int>(strategy->strategy.devices().size());
    *variable = std::make_unique<lgpu_variable>(lgpu_variable{*std::move(made), replicas}).release();
  }
  return Report(made.status(), status);
}

lgpu_code lgpu_distribute_run(const lgpu_strategy* strategy, lgpu_step step, void* user,
                              lgpu_status* status) {
  if (strategy == nullptr) return Missing("the strategy", status);
  if (step == nullptr) return Missing("the step", status);
  const absl::Status done = strategy->strategy.Run([step, user](lgpu::Replica& replica) -> absl::Status {
    lgpu_replica of_step{replica};
    lgpu_status own{};
    const lgpu_code code = step(&of_step, &own, user);
    return code == LGPU_OK ? absl::OkStatus() : Failure(code, own);
  });
  return Report(done, status);
}

int lgpu_replica_id(const lgpu_replica* replica) { return replica == nullptr ? -1 : replica->replica.id(); }
int lgpu_replica_count(const lgpu_replica* replica) {
  return replica == nullptr ? 0 : replica->replica.count();
}
const char* lgpu_replica_device(const lgpu_replica* replica) {
  return replica == nullptr ? nullptr : replica->replica.device().c_str();
}

lgpu_code lgpu_replica_all_reduce(lgpu_replica* replica, lgpu_reduce_op op, const lgpu_tensor* const* tensors,
                                  size_t count, lgpu_tensor** results, lgpu_status* status) {
  if (replica == nullptr) return Missing("the replica", status);
  if (results == nullptr && count > 0) return Missing("the place for the results", status);
  const absl::StatusOr<lgpu::ReduceOp> called = OpCalled(op);
  if (!called.ok()) return Report(called.status(), status);
  const absl::StatusOr<std::vector<lgpu::Tensor>> given = TensorsOf(tensors, count);
  if (!given.ok()) return Report(given.status(), status);
  absl::StatusOr<std::vector<lgpu::Tensor>> sums = replica->replica.AllReduce(*called, *given);
  if (sums.ok()) {
    for (size_t i = 0; i < count; ++i) {
      results[i] = std::make_unique<lgpu_tensor>(lgpu_tensor{std::move((*sums)[i])}).release();
    }
  }
  return Report(sums.status(), status);
}

lgpu_code lgpu_replica_read(const lgpu_replica* replica, const lgpu_variable* variable, lgpu_tensor** value,
                            lgpu_status* status) {
  if (replica == nullptr) return Missing("the replica", status);
  if (variable == nullptr) return Missing("the variable", status);
  return Deliver(replica->replica.Read(variable->variable), value, status);
}

lgpu_code lgpu_replica_assign(const lgpu_replica* replica, lgpu_variable* variable, const lgpu_tensor* value,
                              lgpu_status* status) {
  if (replica == nullptr) return Missing("the replica", status);
  if (variable == nullptr) return Missing("the variable", status);
  if (value == nullptr) return Missing("the value", status);
  return Report(replica->replica.Assign(variable->variable, value->tensor), status);
}

double lgpu_replica_loss_weight(const lgpu_replica* replica, const lgpu_per_replica* batch) {
  if (replica == nullptr || batch == nullptr) return 0;
  for (const lgpu::Tensor& part : batch->values.values()) {
    if (part.shape().rank() == 0) return 0;
  }
  return replica->replica.id() < batch->values.size() ? replica->replica.LossWeight(batch->values) : 0;
}

lgpu_code lgpu_per_replica_create(const lgpu_tensor* const* tensors, size_t count, lgpu_per_replica** values,
                                  lgpu_status* status) {
  if (values == nullptr) return Missing("the place for the values", status);
  absl::StatusOr<std::vector<lgpu::Tensor>> given = TensorsOf(tensors, count);
  if (!given.ok()) return Report(given.status(), status);
  return Deliver(lgpu::PerReplica(*std::move(given)), values, status);
}

void lgpu_per_replica_delete(lgpu_per_replica* values) {
  const std::unique_ptr<lgpu_per_replica> owned(values);
}

size_t lgpu_per_replica_count(const lgpu_per_replica* values) {
  return values == nullptr ? 0 : values->values.values().size();
}

lgpu_code lgpu_per_replica_at(const lgpu_per_replica* values, int replica, lgpu_tensor** value,
                              lgpu_status* status) {
  if (values == nullptr) return Missing("the values", status);
  const absl::Status there = CheckReplica(replica, values->values.values().size());
  if (!there.ok()) return Report(there, status);
  return Deliver(values->values[replica], value, status);
}

void lgpu_variable_delete(lgpu_variable* variable) { const std::unique_ptr<lgpu_variable> owned(variable); }

lgpu_code lgpu_variable_value(const lgpu_variable* variable, int replica, lgpu_tensor** value,
                              lgpu_status* status) {
  if (variable == nullptr) return Missing("the variable", status);
  const absl::Status there = CheckReplica(replica, static_cast<size_t>(variable->replicas));
  if (!there.ok()) return Report(there, status);
  return Deliver(variable->variable.value(replica), value, status);
}
