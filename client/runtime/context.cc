#include "lgpu/context.h"

#include <utility>

#include "client/runtime/context_maker.h"
#include "client/runtime/context_state.h"
#include "client/runtime/device_choice.h"
#include "client/runtime/device_text.h"
#include "client/runtime/executor.h"
#include "client/runtime/explain.h"
#include "client/runtime/memory_report.h"
#include "client/runtime/memory_state.h"
#include "client/runtime/open_lease.h"
#include "client/runtime/scope_stack.h"
#include "client/session/fork_guard.h"
#include "kernels/text.h"
#include "lgpu/status.h"

namespace lgpu {

namespace {

absl::Status NoContext() {
  return absl::FailedPreconditionError("this Context was moved from; use the one that it was moved to");
}

/// The one device that `name` means, and that has a pool.
absl::StatusOr<internal::Device*> FindGpu(internal::ContextState& state, std::string_view name) {
  LGPU_ASSIGN_OR_RETURN(const int position, state.placer().FindOne(name));
  internal::Device& device = state.device(position);
  if (!device.is_gpu()) {
    return absl::InvalidArgumentError(Cat("Allocator stats not available for device '", name, "'"));
  }
  return &device;
}

}  // namespace

absl::StatusOr<Context> internal::ContextMaker::Make(std::unique_ptr<Lease> lease,
                                                     const ContextOptions& options,
                                                     const RuntimeOptions& runtime) {
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<ContextState> state,
                        ContextState::Create(std::move(lease), options, runtime));
  return Context(std::move(state));
}

absl::StatusOr<Context> Context::Create(const ContextOptions& options) {
  if (options.allocation_timeout < std::chrono::milliseconds(0)) {
    return absl::InvalidArgumentError(
        Cat("allocation_timeout is ", options.allocation_timeout.count(), " ms; it must be 0 or more"));
  }
  LGPU_RETURN_IF_ERROR(CheckDevices(options.logical_devices));
  LGPU_ASSIGN_OR_RETURN(std::unique_ptr<Lease> lease, OpenLease(options, Contents::kTensors));
  return internal::ContextMaker::Make(std::move(lease), options);
}

Context::Context(std::shared_ptr<internal::ContextState> state) : state_(std::move(state)) {}
Context::Context(Context&& other) noexcept = default;

Context& Context::operator=(Context&& other) noexcept {
  if (this != &other) {
    Retire();
    state_ = std::move(other.state_);
  }
  return *this;
}

Context::~Context() { Retire(); }

absl::Status Context::Close() { return state_ == nullptr ? absl::OkStatus() : state_->Close(); }

absl::Status Context::Suspend() const { return state_ == nullptr ? NoContext() : state_->Suspend(); }

absl::Status Context::Resume() const { return state_ == nullptr ? NoContext() : state_->Resume(); }

void Context::Retire() {
  if (state_ != nullptr) state_->Retire();
}

void Context::LetTensorsKeep(std::weak_ptr<void> owner) {
  if (state_ != nullptr) state_->LetTensorsKeep(std::move(owner));
}

Context::ExportCount Context::Exports() const {
  return state_ == nullptr ? ExportCount() : state_->exports();
}

const std::vector<LogicalDeviceInfo>& Context::logical_devices() const {
  static const std::vector<LogicalDeviceInfo> kNone;
  return state_ == nullptr ? kNone : state_->infos();
}

std::vector<LogicalDeviceName> Context::ListLogicalDevices(std::string_view device_type) const {
  std::vector<LogicalDeviceName> devices;
  if (state_ == nullptr) return devices;
  for (const DeviceType type : {DeviceType::kCpu, DeviceType::kGpu}) {
    const std::string_view word = DeviceTypeName(type);
    if (!device_type.empty() && device_type != word) continue;
    for (const auto& device : state_->devices()) {
      if (device->type() != type) continue;
      devices.push_back({Cat("/device:", word, ":", device->index()), std::string(word)});
    }
  }
  return devices;
}

std::vector<DeviceAttributes> Context::ListDeviceAttributes() const {
  if (state_ == nullptr || state_->IsForked()) return {};
  const internal::GatePass pass(state_->free_gate());
  return pass ? state_->Attributes() : std::vector<DeviceAttributes>();
}

absl::Status Context::ResizeDevice(std::string_view device, const ResizeOptions& options) const {
  if (state_ == nullptr) return NoContext();
  LGPU_ASSIGN_OR_RETURN(const int position, state_->placer().Lookup(device));
  const internal::Device& gpu = state_->device(position);
  if (!gpu.is_gpu()) return absl::InvalidArgumentError(Cat(gpu.name(), " has no memory limit"));
  LGPU_RETURN_IF_ERROR(internal::CheckResize(options));
  return state_->ResizeGpu(gpu.index(), options.memory_limit, options.guarantee);
}

absl::StatusOr<LogicalMemory> Context::Memory(std::string_view device) const {
  if (state_ == nullptr) return NoContext();
  if (state_->IsForked()) return ForkedError();
  LGPU_ASSIGN_OR_RETURN(const int position, state_->placer().Lookup(device));
  const internal::Device& gpu = state_->device(position);
  if (!gpu.is_gpu()) return absl::InvalidArgumentError(Cat(gpu.name(), " has no memory of lgpu's"));
  const internal::GatePass pass = state_->Pass();
  if (!pass) return state_->ClosedError();
  return LogicalMemory(internal::MemoryOfContext(state_, gpu.index()));
}

std::string Context::DeviceMapping() const { return internal::DeviceMappingText(logical_devices()); }

absl::StatusOr<PlacementExplanation> Context::Explain(std::string_view op, std::span<const Tensor> inputs,
                                                      const ExplainOptions& options) const {
  if (state_ == nullptr) return NoContext();
  if (state_->IsForked()) return ForkedError();
  LGPU_ASSIGN_OR_RETURN(const Op* found, internal::FindOpToExplain(op));
  std::vector<TensorSpec> specs;
  std::vector<int> devices;
  for (const Tensor& input : inputs) {
    const auto& buffer = internal::TensorBuffer::Of(input);
    if (buffer == nullptr || buffer->state() != state_) {
      return absl::InvalidArgumentError(Cat("input #", specs.size(), " is no Tensor of this Context"));
    }
    specs.push_back(buffer->spec());
    devices.push_back(state_->PositionOf(buffer->device()));
  }
  const OpAttributes attributes{.transpose_a = options.transpose_a,
                                .transpose_b = options.transpose_b,
                                .cast_to = options.cast_to,
                                .axes = {.all = true}};
  const std::string node = state_->recorder().NextNodeName(*found);
  return internal::Explain(state_->placer(), {.op = *found,
                                              .inputs = specs,
                                              .devices = devices,
                                              .attributes = attributes,
                                              .request = internal::CurrentRequest(*state_),
                                              .soft = state_->soft_placement(),
                                              .policy = internal::CurrentPolicy(*state_),
                                              .pin_small_ops = state_->pin_small_ops(),
                                              .node = node});
}

void Context::SetDevicePolicy(DevicePolicy policy) const {
  if (state_ != nullptr) state_->set_policy(policy);
}

const std::string& Context::lease() const {
  static const std::string kNone;
  return state_ == nullptr ? kNone : state_->lease_id();
}

const std::string& Context::lease_name() const {
  static const std::string kNone;
  return state_ == nullptr ? kNone : state_->lease_name();
}

absl::StatusOr<Tensor> Context::ConstantBytes(DType dtype, const Shape& shape,
                                              std::span<const std::byte> values) const {
  if (state_ == nullptr) return NoContext();
  return internal::MakeConstant(state_, {dtype, shape}, values);
}

absl::StatusOr<Tensor> Context::ScalarBeside(const Tensor& tensor, std::span<const std::byte> value) {
  const auto& buffer = internal::TensorBuffer::Of(tensor);
  if (buffer == nullptr) return absl::InvalidArgumentError("the Tensor beside the number has no value");
  return internal::MakeConstant(buffer->state(), {tensor.dtype(), Shape{}}, value);
}

absl::StatusOr<MemoryStats> Context::GetMemoryStats(std::string_view device) const {
  if (state_ == nullptr) return NoContext();
  if (state_->IsForked()) return state_->ClosedError();
  const internal::GatePass pass(state_->free_gate());
  if (!pass) return state_->ClosedError();
  LGPU_ASSIGN_OR_RETURN(internal::Device * gpu, FindGpu(*state_, device));
  gpu->memory().PublishStats();
  return gpu->memory().stats();
}

absl::StatusOr<MemoryInfo> Context::GetMemoryInfo(std::string_view device) const {
  if (state_ == nullptr) return NoContext();
  if (state_->IsForked()) return state_->ClosedError();
  const internal::GatePass pass(state_->free_gate());
  if (!pass) return state_->ClosedError();
  LGPU_ASSIGN_OR_RETURN(const int position, state_->placer().FindOne(device));
  internal::Device& found = state_->device(position);
  if (!found.is_gpu()) return MemoryInfo{};
  found.memory().PublishStats();
  const MemoryStats stats = found.memory().stats();
  return MemoryInfo{stats.used, stats.peak_used};
}

absl::StatusOr<AllocatorStats> Context::GetAllocatorStats(std::string_view device) const {
  if (state_ == nullptr) return NoContext();
  if (state_->IsForked()) return state_->ClosedError();
  const internal::GatePass pass(state_->free_gate());
  if (!pass) return state_->ClosedError();
  LGPU_ASSIGN_OR_RETURN(const internal::Device* gpu, FindGpu(*state_, device));
  return internal::AllocatorStatsOf(*gpu);
}

std::string Context::MemorySummary() const {
  if (state_ == nullptr || state_->IsForked()) return "";
  const internal::GatePass pass(state_->free_gate());
  return pass ? internal::MemorySummaryOf(state_->devices(), state_->recorder()) : "";
}

absl::Status Context::ResetMemoryStats(std::string_view device) const {
  if (state_ == nullptr) return NoContext();
  if (state_->IsForked()) return state_->ClosedError();
  const internal::GatePass pass(state_->free_gate());
  if (!pass) return state_->ClosedError();
  LGPU_ASSIGN_OR_RETURN(const int position, state_->placer().FindOne(device));
  if (internal::Device& found = state_->device(position); found.is_gpu()) found.memory().ResetStats();
  return absl::OkStatus();
}

absl::StatusOr<Bytes> Context::Trim() const {
  if (state_ == nullptr) return NoContext();
  if (state_->IsForked()) return state_->ClosedError();
  const internal::GatePass pass = state_->Pass();
  if (!pass) return state_->ClosedError();
  Bytes total;
  for (const auto& device : state_->devices()) {
    if (!device->is_gpu()) continue;
    LGPU_ASSIGN_OR_RETURN(const Bytes trimmed, device->memory().Trim());
    total += trimmed;
  }
  return total;
}

void Context::SetLogDevicePlacement(bool on) const {
  if (state_ != nullptr) state_->recorder().set_logging(on);
}

void Context::SetSoftDevicePlacement(bool on) const {
  if (state_ != nullptr) state_->set_soft_placement(on);
}

std::vector<Context::OpCount> Context::OpCounts() const {
  std::vector<OpCount> counts;
  if (state_ == nullptr) return counts;
  for (const auto& device : state_->devices()) {
    counts.push_back({device->name(), device->ops(), device->soft_placed()});
  }
  return counts;
}

std::vector<Context::CopyRoute> Context::CopyRoutes() const {
  std::vector<CopyRoute> routes;
  if (state_ == nullptr || state_->IsForked()) return routes;
  for (auto& [route, count] : state_->recorder().copy_routes()) {
    routes.push_back({route.first, route.second, {count.first, Bytes(count.second)}});
  }
  return routes;
}

Context::CopyCount Context::CopyCounts() const {
  if (state_ == nullptr) return {};
  return {state_->recorder().copies(), state_->recorder().copied_bytes()};
}

}  // namespace lgpu
