#include "client/runtime/logical_plan.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "base/whole_number.h"
#include "kernels/text.h"
#include "lgpu/status.h"
#include "lgpu/visibility.h"

namespace lgpu {
namespace {

constexpr int kPascal = 6;

/// The bytes that TensorFlow leaves to the system and the libraries.
Bytes SystemReserve(Bytes free, int compute_major) {
  if (free < 2_GiB) return 225_MiB;
  if (compute_major <= 6) return 500_MiB;
  if (compute_major == 7) return 1050_MiB;
  return compute_major == 8 ? 1536_MiB : 1800_MiB;
}

/// A limit in whole MiB from a float of any value, without undefined conversions.
Bytes LimitOf(float megabytes) {
  if (!(megabytes >= 1)) return Bytes();
  constexpr float kMost = 16.0F * 1024 * 1024 * 1024;  // 2^34 MiB are 2^54 bytes
  return Bytes(static_cast<std::uint64_t>(std::min(megabytes, kMost)) << 20);
}

absl::Status CheckOrdinals(const VirtualDevices& first, const VirtualDevices& entry, std::size_t gpu) {
  if (first.device_ordinal.empty() && !entry.device_ordinal.empty()) {
    return absl::InvalidArgumentError(Cat(
        "Device ordinals must be set for all virtual devices or none. But the device_ordinal is specified "
        "for ",
        gpu, " while previous devices didn't have any set."));
  }
  if (!first.device_ordinal.empty() && entry.device_ordinal.size() != entry.memory_limit_mb.size()) {
    return absl::InvalidArgumentError(Cat(
        "Number of virtual device ordinals specified doesn't match with number of memory_limit_mb specified "
        "for GPU# ",
        gpu, " memory_limit_mb size: ", entry.memory_limit_mb.size(),
        " and device_ordinal size: ", entry.device_ordinal.size()));
  }
  return absl::OkStatus();
}

struct PriorityCheck {
  const VirtualDevices& first;
  const VirtualDevices& entry;
  std::size_t gpu;
  int card;
  const PlanCard& range;
};

absl::Status CheckPriorities(const PriorityCheck& check) {
  const auto& [first, entry, gpu, card, range] = check;
  if (first.priority.empty() && !entry.priority.empty()) {
    return absl::InvalidArgumentError(
        Cat("Priority must be set for all virtual devices or none. But the priority is specified for ", gpu,
            " while previous devices didn't have any set."));
  }
  if (!first.priority.empty() && entry.priority.size() != entry.memory_limit_mb.size()) {
    return absl::InvalidArgumentError(
        Cat("Number of virtual device priorities specified doesn't match with number of memory_limit_mb "
            "specified for GPU# ",
            gpu, " memory_limit_mb size: ", entry.memory_limit_mb.size(),
            " and priority size: ", entry.priority.size()));
  }
  for (const int priority : entry.priority) {
    if (priority >= range.priority_greatest && priority <= range.priority_least) continue;
    return absl::InvalidArgumentError(
        Cat("Priority ", priority, " is outside the range of supported priorities [", range.priority_greatest,
            ",", range.priority_least, "] for virtual device ", gpu, " on GPU# ", card));
  }
  return absl::OkStatus();
}

/// The cards of the visible_device_list, and the valid ones of them.
struct VisibleGpus {
  std::vector<int> listed;
  std::vector<int> valid;
};

/// `count`: how many of the valid cards are used.
absl::Status CheckVirtualDevices(const PlanRequest& request, const VisibleGpus& gpus, std::size_t count) {
  const GpuOptions& options = request.options;
  const std::size_t entries = options.virtual_devices.size();
  if (options.per_process_gpu_memory_fraction > 0) {
    return absl::InvalidArgumentError(
        "It's invalid to set per_process_gpu_memory_fraction when virtual_devices is set.");
  }
  if (count < entries) {
    return absl::UnknownError(Cat("Not enough GPUs to create virtual devices. num_gpus_to_use: ", count,
                                  " #virtual_devices: ", entries));
  }
  if (!options.visible_device_list.empty() && gpus.listed.size() != entries) {
    return absl::InvalidArgumentError(
        Cat("The number of GPUs in visible_device_list doesn't match the number of elements in the "
            "virtual_devices list. #GPUs in visible_device_list: ",
            gpus.listed.size(), " virtual_devices.size(): ", entries));
  }
  if (gpus.valid.size() != entries) {
    return absl::UnknownError(
        Cat("The number of valid GPUs doesn't match the number of elements in the virtual_devices list. "
            "#valid GPUs: ",
            gpus.valid.size(), " virtual_devices.size(): ", entries));
  }
  const VirtualDevices& first = options.virtual_devices.front();
  for (std::size_t i = 0; i < entries; ++i) {
    const VirtualDevices& entry = options.virtual_devices[i];
    LGPU_RETURN_IF_ERROR(CheckOrdinals(first, entry, i));
    LGPU_RETURN_IF_ERROR(CheckPriorities(
        {first, entry, i, gpus.valid[i], request.cards[static_cast<std::size_t>(gpus.valid[i])]}));
  }
  return absl::OkStatus();
}

/// The multiprocessors that a card must have: as many as the largest visible one has, but no more than 8; or
/// the number in the variable.
int MinMultiprocessors(const PlanRequest& request, std::span<const int> visible,
                       std::vector<std::string>& notes) {
  int least = 0;
  for (const int card : visible) {
    least = std::max(least, request.cards[static_cast<std::size_t>(card)].multiprocessors);
  }
  least = std::min(least, 8);
  if (!request.min_multiprocessors || request.min_multiprocessors->empty()) return least;
  const std::optional<std::int32_t> wanted = ParseWholeNumber<std::int32_t>(*request.min_multiprocessors);
  if (wanted && *wanted >= 0) return *wanted;
  notes.push_back(Cat("E Invalid minimum GPU multiprocessor count: [", *request.min_multiprocessors,
                      "]. Using the default value: ", least));
  return least;
}

/// Appends the logical devices of one visible card; `entry` is null where the options do not split it.
absl::Status AppendDevices(const PlanRequest& request, int card, const VirtualDevices* entry,
                           std::vector<PlannedDevice>& devices, std::vector<std::string>& notes) {
  if (entry == nullptr || entry->memory_limit_mb.empty()) {
    LGPU_ASSIGN_OR_RETURN(const Bytes limit, DefaultMemoryLimit(request, card, notes));
    const int shares = std::max(request.options.num_virtual_devices_per_gpu, 1);
    for (int i = 0; i < shares; ++i) {
      devices.push_back({card, Bytes(limit.count() / static_cast<std::uint64_t>(shares)), 0, 0,
                         static_cast<std::size_t>(i)});
    }
    return absl::OkStatus();
  }
  for (std::size_t i = 0; i < entry->memory_limit_mb.size(); ++i) {
    devices.push_back({card, LimitOf(entry->memory_limit_mb[i]),
                       entry->priority.empty() ? 0 : entry->priority[i],
                       entry->device_ordinal.empty() ? 0 : entry->device_ordinal[i], i});
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<int> ValidCards(const PlanRequest& request, std::span<const int> visible,
                            std::vector<std::string>& notes) {
  constexpr std::pair kLeastCapability(3, 5);
  const int least = MinMultiprocessors(request, visible, notes);
  std::vector<int> valid;
  for (const int position : visible) {
    const PlanCard& card = request.cards[static_cast<std::size_t>(position)];
    const std::string ignoring = Cat("I Ignoring visible gpu device (", card.description, ") with ");
    if (card.compute_major > 0 && std::pair(card.compute_major, card.compute_minor) < kLeastCapability) {
      notes.push_back(Cat(ignoring, "Cuda compute capability ", card.compute_major, ".", card.compute_minor,
                          ". The minimum required Cuda capability is ", kLeastCapability.first, ".",
                          kLeastCapability.second, "."));
    } else if (card.multiprocessors > 0 && card.multiprocessors < least) {
      notes.push_back(Cat(ignoring, "core count: ", card.multiprocessors, ". The minimum required count is ",
                          least,
                          ". You can adjust this requirement with the env var "
                          "TF_MIN_GPU_MULTIPROCESSOR_COUNT."));
    } else {
      valid.push_back(position);
    }
  }
  return valid;
}

absl::StatusOr<std::vector<PlannedDevice>> PlanDevices(const PlanRequest& request,
                                                       std::vector<std::string>& notes) {
  const GpuOptions& options = request.options;
  std::size_t count = std::numeric_limits<int>::max();
  if (options.device_count) count = static_cast<std::size_t>(std::max(*options.device_count, 0));
  VisibleGpus gpus;
  if (count > 0) {
    LGPU_ASSIGN_OR_RETURN(gpus.listed, ParseVisibleDeviceList(options.visible_device_list,
                                                              static_cast<int>(request.cards.size())));
    gpus.valid = ValidCards(request, gpus.listed, notes);
  }
  count = std::min(count, gpus.valid.size());
  if (!options.virtual_devices.empty()) {
    LGPU_RETURN_IF_ERROR(CheckVirtualDevices(request, gpus, count));
    count = options.virtual_devices.size();
  }
  std::vector<PlannedDevice> devices;
  for (std::size_t i = 0; i < count; ++i) {
    const VirtualDevices* entry = options.virtual_devices.empty() ? nullptr : &options.virtual_devices[i];
    LGPU_RETURN_IF_ERROR(AppendDevices(request, gpus.valid[i], entry, devices, notes));
  }
  std::stable_sort(devices.begin(), devices.end(), [](const PlannedDevice& a, const PlannedDevice& b) {
    return a.device_ordinal < b.device_ordinal;
  });
  return devices;
}

absl::StatusOr<Bytes> DefaultMemoryLimit(const PlanRequest& request, int card_position,
                                         std::vector<std::string>& notes) {
  const PlanCard& card = request.cards[static_cast<std::size_t>(card_position)];
  const GpuOptions& options = request.options;
  if (!card.free) return absl::UnknownError(Cat("Failed to query available memory for GPU ", card_position));
  const Bytes free = *card.free;
  const double fraction = options.per_process_gpu_memory_fraction;
  if ((fraction > 1 || options.use_unified_memory) && card.compute_major < kPascal) {
    return absl::InternalError(
        "Unified memory on GPUs with compute capability lower than 6.0 (pre-Pascal class GPUs) does not "
        "support oversubscription.");
  }
  Bytes limit = free;
  if (fraction == 0) {
    const Bytes reserve = SystemReserve(free, card.compute_major);
    if (reserve < free) limit = free - reserve;
  } else {
    const double bytes = static_cast<double>(card.total.count()) * fraction;
    constexpr double kMost = 9e18;
    limit = Bytes(static_cast<std::uint64_t>(std::clamp(bytes, 0.0, kMost)));
  }
  const auto reserve_megabytes = [&](std::int64_t megabytes) {
    const auto amount = static_cast<std::uint64_t>(megabytes);
    const bool fits = amount <= (free.count() >> 20);
    if (fits) {
      limit = free - Bytes(amount << 20);
      return;
    }
    const Bytes asked(amount > (~std::uint64_t{0} >> 20) ? ~std::uint64_t{0} : amount << 20);
    notes.push_back(Cat("W The requested reserved device memory ", FormatBytes(asked),
                        " is larger than the available memory of ", FormatBytes(free),
                        ". The request is ignored."));
  };
  if (options.gpu_system_memory_size_in_mb > 0) reserve_megabytes(options.gpu_system_memory_size_in_mb);
  if (request.min_system_memory_mb && !request.min_system_memory_mb->empty()) {
    const std::optional<std::int64_t> asked = ParseWholeNumber<std::int64_t>(*request.min_system_memory_mb);
    if (asked && *asked >= 0) {
      reserve_megabytes(*asked);
    } else {
      notes.push_back(Cat("W The requested reserved device memory ", *request.min_system_memory_mb,
                          " is invalid. The request will be ignored."));
    }
  }
  return limit;
}

GrowthSwitch OverrideGrowth(std::optional<std::string_view> variable, bool growth) {
  if (!variable) return {growth, {}};
  const int original = growth ? 1 : 0;
  if (*variable != "true" && *variable != "false") {
    return {growth,
            Cat("E The TF_FORCE_GPU_ALLOW_GROWTH environment variable is set but could not be parsed: \"",
                *variable, "\". Valid values are \"true\" or \"false\". Using original config value of ",
                original, ".")};
  }
  const bool forced = *variable == "true";
  if (forced == growth) return {growth, {}};
  return {forced, Cat("W Overriding allow_growth setting because the TF_FORCE_GPU_ALLOW_GROWTH environment "
                      "variable is set. Original config value was ",
                      original, ".")};
}

absl::Status DeviceIdMap::Insert(int logical, int card) {
  const auto [place, inserted] = cards_.emplace(logical, card);
  if (inserted || place->second == card) return absl::OkStatus();
  return absl::AlreadyExistsError(
      Cat("TensorFlow device (GPU:", logical, ") is being mapped to multiple devices (", card, " now, and ",
          place->second,
          " previously), which is not supported. This may be the result of providing different GPU "
          "configurations (ConfigProto.gpu_options, for example different visible_device_list) when creating "
          "multiple Sessions in the same process. This is not currently supported, see "
          "https://github.com/tensorflow/tensorflow/issues/19083"));
}

absl::StatusOr<int> DeviceIdMap::Find(int logical) const {
  const auto found = cards_.find(logical);
  if (found == cards_.end()) {
    return absl::NotFoundError(Cat("TensorFlow device GPU:", logical, " was not registered"));
  }
  return found->second;
}

}  // namespace lgpu
