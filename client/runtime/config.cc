#include "lgpu/config.h"

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "allocator/device/simulated/simulated_backend.h"
#include "base/interrupt.h"
#include "client/runtime/config_impl.h"
#include "client/runtime/context_maker.h"
#include "client/runtime/device_choice.h"
#include "client/runtime/environment_variable.h"
#include "client/runtime/machine.h"
#include "client/runtime/open_lease.h"
#include "client/session/local_lease.h"
#include "client/session/split_lease.h"
#include "kernels/text.h"
#include "lgpu/status.h"

namespace lgpu {

namespace {

// How long a Context waits for memory on its way back before its limits are taken from what is free, as lgpud
// lets the request for a guarantee wait, and how often it looks.
constexpr std::chrono::seconds kReturnPatience{2};
constexpr std::chrono::milliseconds kLookEvery{20};

/// The variable's meaning for a Context.
bool SwitchOr(const char* name, bool otherwise) {
  const std::optional<std::string> value = EnvironmentVariable(name);
  return value == "1" || (value != "0" && otherwise);
}

bool IsSame(const Endpoint& a, const Endpoint& b) {
  return a.local == b.local && a.simulated == b.simulated && a.directories == b.directories;
}

std::string LocalName(std::string_view type, std::size_t index) { return Cat("/device:", type, ":", index); }

}  // namespace

Config::Config(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Config::~Config() = default;
Config::Config(Config&&) noexcept = default;
Config& Config::operator=(Config&&) noexcept = default;

absl::StatusOr<Config> Config::Create(const ConfigOptions& options) {
  LGPU_ASSIGN_OR_RETURN(Endpoint endpoint,
                        ResolveEndpoint(options.endpoint, EndpointEnvironment::OfThisProcess()));
  std::vector<std::string> notes;
  LGPU_ASSIGN_OR_RETURN(std::vector<PhysicalDeviceInfo> devices,
                        ListMachine(endpoint, DeviceEnvironment::OfThisProcess(), notes));
  auto impl = std::make_unique<Impl>(ConfigState(options.mode, std::move(devices)));
  impl->endpoint = std::move(endpoint);
  impl->options.endpoint = options.endpoint;
  impl->options.log_sink = options.log_sink;
  impl->Log(notes);
  return Config(std::move(impl));
}

void Config::Impl::Log(const std::vector<std::string>& notes) const {
  for (const std::string& note : notes) LogNote(options, note);
}

absl::Status Config::Impl::CheckOptions(const ContextOptions& given) const {
  if (!given.logical_devices.empty() || !given.lease.empty()) {
    return absl::InvalidArgumentError(
        "a Context of a Config has the devices of the Config; leave out the logical devices and the lease");
  }
  if (given.allocation_timeout < std::chrono::milliseconds(0)) {
    return absl::InvalidArgumentError(
        Cat("allocation_timeout is ", given.allocation_timeout.count(), " ms; it must be 0 or more"));
  }
  if (given.endpoint == options.endpoint) return absl::OkStatus();
  LGPU_ASSIGN_OR_RETURN(const Endpoint other,
                        ResolveEndpoint(given.endpoint, EndpointEnvironment::OfThisProcess()));
  if (IsSame(other, endpoint)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      Cat("endpoint \"", given.endpoint,
          "\" is another one than that of the Config, whose devices the Context gets\n"
          "  try: a Config that is made with this endpoint"));
}

std::shared_ptr<internal::ContextState> Config::Impl::LiveContext() const {
  std::shared_ptr<internal::ContextState> context = live.lock();
  return context != nullptr && context->gate().is_closed() ? nullptr : context;
}

std::shared_ptr<internal::ContextState> Config::Impl::Live() {
  std::shared_ptr<internal::ContextState> context = LiveContext();
  // A strict one stays as it is after its first Context, as a process of TensorFlow's does.
  state.set_initialized(context != nullptr || (state.mode() == ConfigMode::kStrict && state.initialized()));
  return context;
}

absl::StatusOr<ConfigState::Plan> Config::Impl::MakePlan(std::vector<std::string>& notes) const {
  return state.MakePlan({.min_system_memory_mb = EnvironmentVariable("TF_DEVICE_MIN_SYS_MEMORY_IN_MB"),
                         .min_multiprocessors = EnvironmentVariable("TF_MIN_GPU_MULTIPROCESSOR_COUNT")},
                        notes);
}

bool Config::Impl::IsInLease() const {
  return !endpoint.local && !EnvironmentVariable("LGPU_LEASE").value_or("").empty();
}

// The GPUs of the Config are the lease's devices. Of those on one card both lists have the lease's order.
absl::StatusOr<std::unique_ptr<Lease>> Config::Impl::OpenSplitLease(const ConfigState::Plan& plan,
                                                                    const ContextOptions& given) const {
  LGPU_ASSIGN_OR_RETURN(std::unique_ptr<Lease> lease, OpenLease(given, Contents::kTensors));
  const std::vector<PhysicalDeviceInfo>& gpus = state.devices();
  std::vector<SplitLease::Part> parts;
  for (const ConfigState::Plan::Gpu& gpu : plan.gpus) {
    if (!gpu.options.guarantee.is_zero()) return SplitLease::NoGuarantee();
    const std::string& card = gpus[gpu.device].card_uuid;
    const auto before =
        std::count_if(gpus.begin(), gpus.begin() + static_cast<std::ptrdiff_t>(gpu.device),
                      [&](const PhysicalDeviceInfo& other) { return other.card_uuid == card; });
    std::ptrdiff_t seen = 0;
    const auto& leased = lease->devices();
    const auto found = std::find_if(leased.begin(), leased.end(), [&](const LeasedDevice& device) {
      return device.card.uuid == card && seen++ == before;
    });
    if (found == leased.end()) {
      return absl::FailedPreconditionError(
          Cat(gpus[gpu.device].name, " is no GPU of lease ", lease->name(),
              " any more\n  try: another Config, which sees the lease as it is now"));
    }
    std::optional<Bytes> limit = gpu.options.memory_limit;
    const auto of_device =
        std::count_if(plan.gpus.begin(), plan.gpus.end(),
                      [&](const ConfigState::Plan::Gpu& other) { return other.device == gpu.device; });
    if (limit && *limit >= found->memory_limit && of_device == 1) limit.reset();  // the whole device
    parts.push_back(
        {static_cast<int>(found - leased.begin()), limit, gpu.options.mode == MemoryMode::kPreallocate});
  }
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24);
  return SplitLease::Open(std::move(lease), std::move(parts), std::min(given.allocation_timeout, kLongest));
}

absl::StatusOr<ConfigState::Plan> Config::Impl::MakePlanOfNow() {
  const auto deadline = std::chrono::steady_clock::now() + kReturnPatience;
  while (true) {
    std::vector<std::string> notes;
    LGPU_ASSIGN_OR_RETURN(const std::vector<PhysicalDeviceInfo> now,
                          ListMachine(endpoint, DeviceEnvironment::OfThisProcess(), notes));
    state.SetFree(now);
    notes.clear();  // they were said when the Config was made
    LGPU_ASSIGN_OR_RETURN(ConfigState::Plan plan, MakePlan(notes));
    if (state.IsEarly(plan) && std::chrono::steady_clock::now() < deadline) {
      if (!Interrupt::SleepUntil(std::chrono::steady_clock::now() + kLookEvery)) return Interrupt::Error();
      continue;
    }
    LGPU_RETURN_IF_ERROR(state.CheckPlan(plan));
    Log(notes);
    return plan;
  }
}

std::vector<PhysicalDeviceInfo> Config::ListPhysicalDevices(std::string_view device_type) const {
  std::vector<PhysicalDeviceInfo> devices;
  for (const PhysicalDeviceInfo& device : impl_->state.devices()) {
    if (device_type.empty() || device.device_type == device_type) devices.push_back(device);
  }
  return devices;
}

absl::StatusOr<std::vector<LogicalDeviceName>> Config::ListLogicalDevices(
    std::string_view device_type) const {
  std::vector<LogicalDeviceName> devices;
  const auto append = [&](std::string_view type, std::size_t count) {
    if (!device_type.empty() && device_type != type) return;
    for (std::size_t i = 0; i < count; ++i) devices.push_back({LocalName(type, i), std::string(type)});
  };
  if (const auto context = impl_->Live(); context != nullptr) {
    append("CPU", static_cast<std::size_t>(context->cpu_count()));
    append("GPU", context->infos().size());
    return devices;
  }
  std::vector<std::string> notes;
  LGPU_ASSIGN_OR_RETURN(const ConfigState::Plan plan, impl_->MakePlan(notes));
  append("CPU", static_cast<std::size_t>(plan.cpus));
  append("GPU", plan.gpus.size());
  return devices;
}

absl::StatusOr<DeviceDetails> Config::GetDeviceDetails(std::string_view name) const {
  const absl::StatusOr<std::size_t> found = impl_->state.Find(name);
  if (!found.ok()) {
    return absl::InvalidArgumentError(Cat(
        "The PhysicalDevice must be one obtained from calling `tf.config.list_physical_devices`, but got: ",
        name, " (Config::ListPhysicalDevices)"));
  }
  const PhysicalDeviceInfo& device = impl_->state.devices()[*found];
  if (device.device_type != "GPU") return DeviceDetails();
  return DeviceDetails{device.card_name, std::pair(device.compute_major, device.compute_minor)};
}

absl::Status Config::SetVisibleDevices(const std::vector<std::string>& devices,
                                       std::string_view device_type) {
  impl_->Live();
  return impl_->state.SetVisible(devices, device_type);
}

std::vector<PhysicalDeviceInfo> Config::GetVisibleDevices(std::string_view device_type) const {
  return impl_->state.Visible(device_type);
}

absl::Status Config::SetMemoryGrowth(std::string_view device, bool growth) {
  impl_->Live();
  return impl_->state.SetGrowth(device, growth);
}

absl::StatusOr<std::optional<bool>> Config::GetMemoryGrowth(std::string_view device) const {
  return impl_->state.Growth(device);
}

absl::Status Config::SetLogicalDeviceConfiguration(std::string_view device,
                                                   const std::vector<LogicalDeviceConfiguration>& devices) {
  const std::shared_ptr<internal::ContextState> context = impl_->Live();
  ConfigState changed = impl_->state;
  LGPU_RETURN_IF_ERROR(changed.SetLogical(device, devices));
  if (context != nullptr) LGPU_RETURN_IF_ERROR(impl_->Resize(*context, changed));
  impl_->state = std::move(changed);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<LogicalDeviceConfiguration>> Config::GetLogicalDeviceConfiguration(
    std::string_view device) const {
  return impl_->state.Logical(device);
}

absl::Status Config::Impl::Resize(internal::ContextState& context, const ConfigState& changed) const {
  std::vector<std::string> notes;
  LGPU_ASSIGN_OR_RETURN(const ConfigState::Plan before, MakePlan(notes));
  LGPU_ASSIGN_OR_RETURN(const ConfigState::Plan after, changed.MakePlan({}, notes));
  const std::vector<LogicalDeviceInfo>& now = context.infos();
  if (now.size() != after.gpus.size()) {
    return absl::FailedPreconditionError(Cat("the Context has ", now.size(), " GPUs, this asks for ",
                                             after.gpus.size(),
                                             "; the GPUs of a running Context can only be resized"));
  }
  // The current limit may come from Context::ResizeDevice, or from the maker of the lease, and not from this
  // Config.
  const auto size = [&](const ConfigState::Plan& plan, std::size_t i) {
    const std::optional<Bytes> limit = plan.gpus[i].options.memory_limit;
    // A plan without a limit means all of the card; the device may have less, by the daemon's reserve.
    const Bytes total = changed.devices()[plan.gpus[i].device].total;
    const bool never_said = limit == before.gpus[i].options.memory_limit && (!limit || *limit >= total);
    ResizeOptions sizes{limit.value_or(Lease::kWholeCard), std::nullopt};
    if (&plan == &before || never_said) sizes.memory_limit = context.limit(static_cast<int>(i));
    // Of a preallocated one it is its limit.
    if (now[i].mode != MemoryMode::kPreallocate) sizes.guarantee = plan.gpus[i].options.guarantee;
    return sizes;
  };
  std::vector<ResizeOptions> all_from, all_to;
  for (std::size_t i = 0; i < after.gpus.size(); ++i) {
    all_from.push_back(size(before, i));
    all_to.push_back(size(after, i));
  }
  // Devices that shrink go first: growing devices may need the memory that they free.
  std::vector<std::size_t> order;
  for (const bool shrinking : {true, false}) {
    for (std::size_t i = 0; i < after.gpus.size(); ++i) {
      const ResizeOptions& from = all_from[i];
      const ResizeOptions& to = all_to[i];
      if (from.memory_limit == to.memory_limit && from.guarantee == to.guarantee) continue;
      if ((to.memory_limit < from.memory_limit) == shrinking) order.push_back(i);
    }
  }
  for (std::size_t done = 0; done < order.size(); ++done) {
    const ResizeOptions& to = all_to[order[done]];
    const absl::Status resized =
        context.ResizeGpu(static_cast<int>(order[done]), to.memory_limit, to.guarantee);
    if (resized.ok()) continue;
    while (done-- > 0) {
      const ResizeOptions& from = all_from[order[done]];
      context.ResizeGpu(static_cast<int>(order[done]), from.memory_limit, from.guarantee).IgnoreError();
    }
    return resized;
  }
  return absl::OkStatus();
}

absl::Status Config::SetPerProcessGpuMemoryFraction(double fraction) {
  impl_->Live();
  return impl_->state.SetFraction(fraction);
}

void Config::SetPlacementLogFormat(PlacementLogFormat format) {
  impl_->options.placement_log_format = format;
}

void Config::SetSoftDevicePlacement(bool on) {
  impl_->options.soft_device_placement = on;
  if (const auto context = impl_->Live()) context->set_soft_placement(on);
}
bool Config::GetSoftDevicePlacement() const {
  if (const auto context = impl_->LiveContext()) return context->soft_placement();
  return impl_->options.soft_device_placement.value_or(SwitchOr("LGPU_SOFT_PLACEMENT", true));
}

void Config::SetLogDevicePlacement(bool on) {
  impl_->options.log_device_placement = on;
  if (const auto context = impl_->Live()) context->recorder().set_logging(on);
}
bool Config::GetLogDevicePlacement() const {
  if (const auto context = impl_->LiveContext()) return context->recorder().logging();
  return impl_->options.log_device_placement.value_or(SwitchOr("LGPU_LOG_DEVICE_PLACEMENT", false));
}

absl::Status Config::SetDevicePolicy(std::optional<std::string_view> word) {
  LGPU_ASSIGN_OR_RETURN(const DevicePolicy policy, ParseDevicePolicy(word.value_or("silent")));
  impl_->options.device_policy = policy;
  if (const auto context = impl_->Live()) context->set_policy(policy);
  return absl::OkStatus();
}
std::string_view Config::GetDevicePolicy() const {
  const auto context = impl_->LiveContext();
  return DevicePolicyWord(context != nullptr ? context->policy() : impl_->options.device_policy);
}

ContextOptions Config::GetContextOptions() const { return impl_->options; }

absl::StatusOr<Context> Context::Create(Config& config) { return Create(config, config.GetContextOptions()); }

absl::StatusOr<Context> Context::Create(Config& config, const ContextOptions& options) {
  Config::Impl& impl = *config.impl_;
  LGPU_RETURN_IF_ERROR(impl.CheckOptions(options));
  if (impl.Live() != nullptr || impl.state.initialized()) {
    return absl::FailedPreconditionError(
        impl.state.mode() == ConfigMode::kStrict
            ? "this strict Config has made its Context, and TensorFlow's rules allow one; make another Config"
            : "this Config has a Context already; close that first, or make another Config");
  }
  LGPU_ASSIGN_OR_RETURN(const ConfigState::Plan plan, impl.MakePlanOfNow());
  ContextOptions with_devices = options;
  for (const ConfigState::Plan::Gpu& gpu : plan.gpus) with_devices.logical_devices.push_back(gpu.options);
  if (impl.state.mode() == ConfigMode::kNative) {
    LGPU_RETURN_IF_ERROR(CheckDevices(with_devices.logical_devices));
  }
  std::unique_ptr<Lease> lease;
  if (plan.gpus.empty()) {
    LGPU_ASSIGN_OR_RETURN(lease, LocalLease::Open(MakeSimulatedBackend({}), /*name=*/"", /*specs=*/{}));
  } else if (impl.IsInLease()) {
    LGPU_ASSIGN_OR_RETURN(lease, impl.OpenSplitLease(plan, options));
  } else {
    LGPU_ASSIGN_OR_RETURN(lease, OpenLease(with_devices, Contents::kTensors));
  }
  LGPU_ASSIGN_OR_RETURN(Context context,
                        internal::ContextMaker::Make(
                            std::move(lease), with_devices,
                            {.cpu_count = plan.cpus, .strict = impl.state.mode() == ConfigMode::kStrict}));
  impl.live = context.state_;
  impl.state.set_initialized(true);
  return context;
}

}  // namespace lgpu
