#include "client/runtime/config_state.h"

#include <algorithm>
#include <utility>

#include "kernels/text.h"
#include "lgpu/device_name.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

constexpr std::string_view kPrefix = "/physical_device:";

/// The error for a name of no device: with Python's repr of the device, or with the text itself.
absl::Status Unrecognized(std::string_view name) {
  const std::string_view rest = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : std::string_view();
  const std::optional<DeviceName> parsed = ParseLocalName(rest);
  if (!parsed) return absl::InvalidArgumentError(Cat("Unrecognized device: '", name, "'"));
  return absl::InvalidArgumentError(
      Cat("Unrecognized device: PhysicalDevice(name='", name, "', device_type='", *parsed->type, "')"));
}

bool IsGpu(const PhysicalDeviceInfo& device) { return device.device_type == "GPU"; }

bool SameButForSizes(const LogicalDeviceConfiguration& a, const LogicalDeviceConfiguration& b) {
  return a.priority == b.priority && a.device_ordinal == b.device_ordinal;
}

}  // namespace

ConfigState::ConfigState(ConfigMode mode, std::vector<PhysicalDeviceInfo> devices)
    : mode_(mode), devices_(std::move(devices)) {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    visible_.push_back(i);
    if (IsGpu(devices_[i])) growth_[i] = std::nullopt;
  }
}

absl::StatusOr<std::size_t> ConfigState::Find(std::string_view name) const {
  std::string wanted(name);
  if (!name.starts_with(kPrefix)) {
    const absl::StatusOr<DeviceName> parsed = ParseLenientName(name);
    if (!parsed.ok() || !parsed->type || !parsed->id) return Unrecognized(name);
    wanted = Cat(kPrefix, *parsed->type, ":", *parsed->id);
  }
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].name == wanted) return i;
  }
  return Unrecognized(wanted);
}

bool ConfigState::IsVisible(std::size_t device) const {
  return std::find(visible_.begin(), visible_.end(), device) != visible_.end();
}

std::vector<std::size_t> ConfigState::Gpus() const {
  std::vector<std::size_t> gpus;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (IsGpu(devices_[i])) gpus.push_back(i);
  }
  return gpus;
}

absl::Status ConfigState::Initialized(std::string_view what) const {
  std::string text = Cat(what, " cannot be modified after being initialized");
  if (!strict()) text += "; close the Context first, or make another one from another Config";
  return absl::FailedPreconditionError(text);
}

absl::Status ConfigState::SetVisible(const std::vector<std::string>& names, std::string_view device_type) {
  std::vector<std::size_t> chosen;
  for (const std::string& name : names) {
    LGPU_ASSIGN_OR_RETURN(const std::size_t device, Find(name));
    if (!device_type.empty() && devices_[device].device_type != device_type) {
      return Unrecognized(devices_[device].name);
    }
    chosen.push_back(device);
  }
  std::vector<std::size_t> visible;
  if (!device_type.empty()) {
    for (const std::size_t device : visible_) {
      if (devices_[device].device_type != device_type) visible.push_back(device);
    }
  }
  visible.insert(visible.end(), chosen.begin(), chosen.end());
  if (visible == visible_) return absl::OkStatus();
  // TensorFlow compares lists: the CPUs set anew go behind the GPUs, which counts as another one.
  if (!strict() && std::is_permutation(visible.begin(), visible.end(), visible_.begin(), visible_.end())) {
    return absl::OkStatus();
  }
  if (initialized_) return Initialized("Visible devices");
  visible_ = std::move(visible);
  return absl::OkStatus();
}

std::vector<PhysicalDeviceInfo> ConfigState::Visible(std::string_view device_type) const {
  std::vector<PhysicalDeviceInfo> devices;
  for (const std::size_t device : visible_) {
    if (device_type.empty() || devices_[device].device_type == device_type) {
      devices.push_back(devices_[device]);
    }
  }
  return devices;
}

absl::Status ConfigState::SetGrowth(std::string_view name, bool growth) {
  LGPU_ASSIGN_OR_RETURN(const std::size_t device, Find(name));
  if (strict() && logical_.contains(device)) {
    return absl::InvalidArgumentError("Cannot set memory growth on device when virtual devices configured");
  }
  if (!IsGpu(devices_[device])) {
    return absl::InvalidArgumentError("Cannot set memory growth on non-GPU and non-Pluggable devices");
  }
  if (growth_.at(device) == growth) return absl::OkStatus();
  if (initialized_) return Initialized("Physical devices");
  growth_[device] = growth;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<bool>> ConfigState::Growth(std::string_view name) const {
  LGPU_ASSIGN_OR_RETURN(const std::size_t device, Find(name));
  const auto growth = growth_.find(device);
  return growth == growth_.end() ? std::nullopt : growth->second;
}

absl::Status ConfigState::CheckLogical(const PhysicalDeviceInfo& device,
                                       const std::vector<LogicalDeviceConfiguration>& parts) const {
  for (const LogicalDeviceConfiguration& part : parts) {
    if (device.device_type == "CPU") {
      if (part.memory_limit) {
        return absl::InvalidArgumentError(
            "Setting memory limit on CPU virtual devices is currently not supported");
      }
      if (part.priority) {
        return absl::InvalidArgumentError(
            "Setting experimental_priority on CPU virtual  devices is currently not supported");
      }
      if (part.device_ordinal) {
        return absl::InvalidArgumentError(
            "Setting experimental_device_ordinal on CPU virtual  devices is currently not supported");
      }
    } else if (strict() && !part.memory_limit) {
      return absl::InvalidArgumentError("Setting memory limit is required for GPU virtual devices");
    }
    if (!part.guarantee.is_zero() && (strict() || !IsGpu(device))) {
      return absl::InvalidArgumentError(strict()
                                            ? "a guarantee is not TensorFlow's: it needs ConfigMode::kNative"
                                            : "a CPU has no memory limit, and so no guarantee");
    }
    if (part.memory_limit && part.guarantee > *part.memory_limit) {
      return absl::InvalidArgumentError(Cat("the guarantee of ", FormatBytes(part.guarantee),
                                            " is more than the memory_limit of ",
                                            FormatBytes(*part.memory_limit)));
    }
    if (part.memory_limit && *part.memory_limit < 1_MiB && strict()) {
      return absl::InvalidArgumentError(
          Cat("a memory_limit of ", FormatBytes(*part.memory_limit), " is 0 MB; write at least 1 MiB"));
    }
    if (part.memory_limit && part.memory_limit->is_zero()) {
      return absl::InvalidArgumentError(
          "a memory_limit of 0 allows nothing; leave it out for the whole card");
    }
  }
  return absl::OkStatus();
}

absl::Status ConfigState::SetLogical(std::string_view name,
                                     const std::vector<LogicalDeviceConfiguration>& parts) {
  LGPU_ASSIGN_OR_RETURN(const std::size_t device, Find(name));
  LGPU_RETURN_IF_ERROR(CheckLogical(devices_[device], parts));
  const auto now = logical_.find(device);
  if (now != logical_.end() && now->second == parts) return absl::OkStatus();  // TensorFlow's shortcut
  if (initialized_ && !IsResize(name, parts)) return Initialized("Virtual devices");
  logical_[device] = parts;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<LogicalDeviceConfiguration>> ConfigState::Logical(std::string_view name) const {
  LGPU_ASSIGN_OR_RETURN(const std::size_t device, Find(name));
  const auto parts = logical_.find(device);
  return parts == logical_.end() ? std::vector<LogicalDeviceConfiguration>() : parts->second;
}

bool ConfigState::IsResize(std::string_view name,
                           const std::vector<LogicalDeviceConfiguration>& parts) const {
  const absl::StatusOr<std::size_t> device = Find(name);
  if (strict() || !device.ok() || !IsGpu(devices_[*device]) || !IsVisible(*device)) return false;
  // A GPU that is not split is one logical device.
  const auto now = logical_.find(*device);
  const std::vector<LogicalDeviceConfiguration> whole(1);
  const auto& before = now == logical_.end() || now->second.empty() ? whole : now->second;
  return std::equal(before.begin(), before.end(), parts.begin(), parts.end(), SameButForSizes);
}

void ConfigState::SetFree(const std::vector<PhysicalDeviceInfo>& now) {
  for (PhysicalDeviceInfo& device : devices_) {
    if (!IsGpu(device)) continue;
    // A lease may have several devices on one card.
    const PhysicalDeviceInfo* found = nullptr;
    for (const PhysicalDeviceInfo& other : now) {
      if (other.card_uuid != device.card_uuid) continue;
      if (found == nullptr || other.name == device.name) found = &other;
    }
    if (found == nullptr) continue;
    device.free = found->free;
    device.coming_back = found->coming_back;
  }
}

absl::Status ConfigState::SetFraction(double fraction) {
  if (!(fraction >= 0)) {
    return absl::InvalidArgumentError(
        Cat("per_process_gpu_memory_fraction is ", fraction, "; it must be 0 or more"));
  }
  if (!strict() && fraction > 1) {
    return absl::InvalidArgumentError(Cat("per_process_gpu_memory_fraction is ", fraction,
                                          "; a limit cannot be more than its card, write at most 1"));
  }
  if (fraction == fraction_) return absl::OkStatus();
  if (initialized_) return Initialized("Physical devices");
  fraction_ = fraction;
  return absl::OkStatus();
}

absl::StatusOr<GpuOptions> ConfigState::ToGpuOptions() const {
  GpuOptions options;
  options.device_count = 0;
  options.per_process_gpu_memory_fraction = fraction_;
  std::vector<std::optional<bool>> growths;
  int gpu = -1;
  for (const std::size_t device : Gpus()) {
    ++gpu;
    const auto parts = logical_.find(device);
    if (!IsVisible(device)) continue;
    *options.device_count += parts == logical_.end() ? 1 : static_cast<int>(parts->second.size());
    growths.push_back(growth_.at(device));
    options.visible_device_list += Cat(options.visible_device_list.empty() ? "" : ",", gpu);
    if (logical_.empty()) continue;
    // As soon as anything is split, a CPU too, there is an entry for each GPU.
    VirtualDevices& entry = options.virtual_devices.emplace_back();
    if (parts == logical_.end()) continue;
    for (const LogicalDeviceConfiguration& part : parts->second) {
      entry.memory_limit_mb.push_back(static_cast<float>(part.memory_limit->count() >> 20));
      if (part.priority) entry.priority.push_back(*part.priority);
      if (part.device_ordinal) entry.device_ordinal.push_back(*part.device_ordinal);
    }
    if (!entry.priority.empty() && entry.priority.size() != parts->second.size()) {
      return absl::InvalidArgumentError("priority must be specified for all virtual devices");
    }
    if (!entry.device_ordinal.empty() && entry.device_ordinal.size() != parts->second.size()) {
      return absl::InvalidArgumentError("device_ordinals must be specified for all virtual devices");
    }
  }
  if (!options.virtual_devices.empty() || growths.empty()) return options;
  for (const std::optional<bool>& growth : growths) {
    if (growth != growths.front()) {
      return absl::InvalidArgumentError("Memory growth cannot differ between GPU devices");
    }
  }
  options.allow_growth = growths.front().value_or(false);
  return options;
}

absl::StatusOr<int> ConfigState::CountCpus() const {
  int count = 0;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].device_type != "CPU" || !IsVisible(i)) continue;
    const auto parts = logical_.find(i);
    count += parts == logical_.end() ? 1 : static_cast<int>(parts->second.size());
  }
  if (count == 0) return absl::NotFoundError("No CPU devices are available in this process");
  return count;
}

absl::StatusOr<ConfigState::Plan> ConfigState::MakePlan(const Variables& variables,
                                                        std::vector<std::string>& notes) const {
  LGPU_ASSIGN_OR_RETURN(Plan plan, strict() ? StrictPlan(variables, notes) : NativePlan());
  LGPU_ASSIGN_OR_RETURN(plan.cpus, CountCpus());
  return plan;
}

absl::StatusOr<ConfigState::Plan> ConfigState::StrictPlan(const Variables& variables,
                                                          std::vector<std::string>& notes) const {
  LGPU_ASSIGN_OR_RETURN(const GpuOptions options, ToGpuOptions());
  const std::vector<std::size_t> gpus = Gpus();
  std::vector<PlanCard> cards;
  for (const std::size_t gpu : gpus) {
    const PhysicalDeviceInfo& device = devices_[gpu];
    cards.push_back({.total = device.total,
                     .free = device.free,
                     .compute_major = device.compute_major,
                     .compute_minor = device.compute_minor,
                     .multiprocessors = device.multiprocessors,
                     .description = Cat("device: ", cards.size(), ", name: ", device.card_name,
                                        ", pci bus id: ", device.pci_bus_id, ", compute capability: ",
                                        device.compute_major, ".", device.compute_minor)});
  }
  LGPU_ASSIGN_OR_RETURN(const std::vector<PlannedDevice> devices,
                        PlanDevices({.options = options,
                                     .cards = cards,
                                     .min_system_memory_mb = variables.min_system_memory_mb,
                                     .min_multiprocessors = variables.min_multiprocessors},
                                    notes));
  Plan plan;
  for (const PlannedDevice& planned : devices) {
    Plan::Gpu& gpu = plan.gpus.emplace_back();
    gpu.device = gpus[static_cast<std::size_t>(planned.card)];
    gpu.part = planned.part;
    gpu.options.memory_limit = planned.memory_limit;
    gpu.options.priority = planned.priority;
    gpu.options.mode = options.allow_growth ? MemoryMode::kGrowth : MemoryMode::kPreallocate;
    gpu.options.physical_device = devices_[gpu.device].card_uuid;
  }
  return plan;
}

bool ConfigState::IsEarly(const Plan& plan) const {
  return strict() && std::any_of(plan.gpus.begin(), plan.gpus.end(), [this](const Plan::Gpu& gpu) {
           const auto parts = logical_.find(gpu.device);
           const bool is_split = parts != logical_.end() && !parts->second.empty();
           const PhysicalDeviceInfo& device = devices_[gpu.device];
           return !is_split && !device.coming_back.is_zero() && device.free.value_or(Bytes()) < device.total;
         });
}

absl::Status ConfigState::CheckPlan(const Plan& plan) const {
  if (!strict()) return absl::OkStatus();
  for (std::size_t i = 0; i < plan.gpus.size(); ++i) {
    if (plan.gpus[i].options.memory_limit != Bytes()) continue;
    const PhysicalDeviceInfo& card = devices_[plan.gpus[i].device];
    return absl::ResourceExhaustedError(Cat(
        "GPU:", i, " would have a memory limit of 0 bytes: of ", FormatBytes(card.total), " of ",
        card.card_name, " (", card.card_uuid, "), ", FormatBytes(card.free.value_or(Bytes())),
        " are free, and TensorFlow's rules take the limit from the free memory\n"
        "  try: end a program that holds memory of the card (lgpu ls), or set a memory_limit for the GPU"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ConfigState::Plan> ConfigState::NativePlan() const {
  Plan plan;
  std::vector<int> ordinals;
  for (const std::size_t device : Gpus()) {
    if (!IsVisible(device)) continue;
    const auto found = logical_.find(device);
    const std::vector<LogicalDeviceConfiguration> whole(1);
    const auto& parts = found == logical_.end() || found->second.empty() ? whole : found->second;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Plan::Gpu& gpu = plan.gpus.emplace_back();
      gpu.device = device;
      gpu.part = i;
      gpu.options.memory_limit = parts[i].memory_limit;
      if (!gpu.options.memory_limit && fraction_ > 0) {
        const double part = static_cast<double>(devices_[device].total.count()) * fraction_;
        gpu.options.memory_limit = Bytes(static_cast<std::uint64_t>(part));
      }
      gpu.options.guarantee = parts[i].guarantee;
      gpu.options.mode = growth_.at(device).value_or(true) ? MemoryMode::kGrowth : MemoryMode::kPreallocate;
      if (gpu.options.mode == MemoryMode::kPreallocate) gpu.options.guarantee = Bytes();  // it is the limit
      gpu.options.priority = parts[i].priority.value_or(0);
      gpu.options.physical_device = devices_[device].card_uuid;
      ordinals.push_back(parts[i].device_ordinal.value_or(0));
    }
  }
  std::vector<std::size_t> order(plan.gpus.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return ordinals[a] < ordinals[b]; });
  Plan sorted;
  for (const std::size_t i : order) sorted.gpus.push_back(plan.gpus[i]);
  return sorted;
}

}  // namespace lgpu
