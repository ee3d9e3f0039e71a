#include "client/runtime/device_choice.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "allocator/device/cuda/cuda_backend.h"
#include "client/runtime/environment_variable.h"
#include "client/runtime/logical_plan.h"
#include "lgpu/status.h"
#include "lgpu/visibility.h"
#include "proto/wire/pages.h"

namespace lgpu {
namespace {

using Cards = std::vector<const MachineCard*>;

std::string CardText(const MachineCard& card) {
  std::string text = "GPU " + std::to_string(card.index) + " (" + card.uuid + ")";
  if (!card.served) {
    text += ", not served" + (card.not_served_because.empty() ? "" : ": " + card.not_served_because);
  }
  return text;
}

template <typename List>
std::string ListText(const List& cards) {
  std::string text;
  for (const auto& card : cards) {
    if constexpr (std::is_pointer_v<std::decay_t<decltype(card)>>) {
      text += (text.empty() ? "" : ", ") + CardText(*card);
    } else {
      text += (text.empty() ? "" : ", ") + CardText(card);
    }
  }
  return text.empty() ? "none" : text;
}

/// The cards that this process can have, in its own order.
absl::StatusOr<Cards> UsableCards(const std::vector<MachineCard>& machine,
                                  const DeviceEnvironment& environment) {
  std::vector<std::string> uuids;
  std::vector<std::string> served_uuids;
  Cards served;
  for (const MachineCard& card : machine) {
    uuids.push_back(card.uuid);
    if (!card.served) continue;
    served_uuids.push_back(card.uuid);
    served.push_back(&card);
  }
  LGPU_ASSIGN_OR_RETURN(const std::vector<int> positions,
                        lgpu::UsableCards(uuids, served_uuids, environment));
  Cards usable;
  for (const int position : positions) usable.push_back(served[static_cast<std::size_t>(position)]);
  return usable;
}

/// The card that `wanted` names: an index among the machine's, or a unique prefix of a uuid.
absl::StatusOr<const MachineCard*> FindCard(const std::string& wanted,
                                            const std::vector<MachineCard>& machine) {
  int index = 0;
  const auto [end, error] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), index);
  const bool is_index = error == std::errc() && end == wanted.data() + wanted.size();
  const MachineCard* found = nullptr;
  for (const MachineCard& card : machine) {
    if (is_index ? card.index != index : !card.uuid.starts_with(wanted)) continue;
    if (found != nullptr) {
      return absl::InvalidArgumentError("physical_device \"" + wanted +
                                        "\" is the beginning of more than one UUID: " + ListText(machine) +
                                        "; write more of it");
    }
    found = &card;
  }
  if (found == nullptr) {
    return absl::NotFoundError("no GPU \"" + wanted + "\" on this machine, which has: " + ListText(machine) +
                               "; give an index or the beginning of a UUID");
  }
  return found;
}

/// Applies TF_FORCE_GPU_ALLOW_GROWTH to each device, with one note for all.
void ApplyGrowthVariable(const DeviceEnvironment& environment, DeviceChoice& choice) {
  std::string note;
  for (LogicalDeviceSpec& device : choice.devices) {
    const bool growth = !device.preallocate;
    GrowthSwitch forced = OverrideGrowth(environment.force_gpu_allow_growth, growth);
    if (note.empty()) note = std::move(forced.note);
    if (forced.growth == growth) continue;
    device.preallocate = !forced.growth;
    // A growing device gets the default guarantee, a preallocated one its limit.
    device.guarantee = Bytes();
  }
  if (!note.empty()) choice.notes.push_back(std::move(note));
}

}  // namespace

absl::StatusOr<std::vector<int>> UsableCards(std::span<const std::string> machine,
                                             std::span<const std::string> served,
                                             const DeviceEnvironment& environment) {
  const absl::StatusOr<std::vector<int>> parsed =
      VisibleCards({.value = environment.cuda_visible_devices, .machine = machine, .served = served});
  if (!environment.driver_cards) return parsed;
  std::vector<int> cards;
  for (const std::string& uuid : *environment.driver_cards) {
    const auto found = std::find(served.begin(), served.end(), uuid);
    if (found != served.end()) cards.push_back(static_cast<int>(found - served.begin()));
  }
  if (!cards.empty()) return cards;
  if (!parsed.ok()) return parsed.status();
  std::string shown;
  for (const std::string& uuid : *environment.driver_cards) shown += (shown.empty() ? "" : ", ") + uuid;
  std::string has;
  for (const std::string& uuid : served) has += (has.empty() ? "" : ", ") + uuid;
  return absl::NotFoundError("no GPU is visible to this process\n  the CUDA driver shows it: " + shown +
                             "\n  the daemon serves: " + has +
                             "\n  try: unset CUDA_VISIBLE_DEVICES, or name a GPU of the daemon by its UUID");
}

absl::StatusOr<DeviceEnvironment> AskDriver(DeviceEnvironment environment,
                                            std::span<const std::string> machine,
                                            std::span<const std::string> served) {
  absl::StatusOr<std::vector<std::string>> cards = CudaEnumeration();
  if (cards.ok()) {
    environment.driver_cards = *std::move(cards);
  } else if (UsableCards(machine, served, environment).ok()) {
    return cards.status();
  }
  return environment;
}

DeviceEnvironment DeviceEnvironment::OfThisProcess() {
  return {EnvironmentVariable("CUDA_VISIBLE_DEVICES"), EnvironmentVariable("CUDA_DEVICE_ORDER"),
          EnvironmentVariable("TF_FORCE_GPU_ALLOW_GROWTH"), EnvironmentVariable("LGPU_LEASE").value_or("")};
}

absl::Status CheckDevices(const std::vector<LogicalDeviceOptions>& devices) {
  constexpr std::size_t kMost = StatsPage::kMaxDevices;
  if (devices.size() > kMost) {
    return absl::InvalidArgumentError(
        std::to_string(devices.size()) + " logical devices were asked for; a lease has 1 to " +
        std::to_string(kMost) + "\n  try: fewer devices; the memory of each is its memory_limit");
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (!devices[i].memory_limit || *devices[i].memory_limit >= kSmallestLimit) continue;
    return absl::InvalidArgumentError(
        "memory_limit of logical device " + std::to_string(i) + " is " +
        FormatBytes(*devices[i].memory_limit) + "; the smallest is " + FormatBytes(kSmallestLimit) +
        ", one chunk of a card\n  try: a number of bytes (2_GiB, \"2GiB\"), or no memory_limit for all that "
        "the card can give");
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceChoice> ChooseDevices(const std::vector<LogicalDeviceOptions>& options,
                                           const std::vector<MachineCard>& machine,
                                           const DeviceEnvironment& environment) {
  LGPU_ASSIGN_OR_RETURN(const Cards usable, UsableCards(machine, environment));

  DeviceChoice choice;
  for (const LogicalDeviceOptions& option : options) {
    if (option.memory_limit == Bytes()) {
      return absl::InvalidArgumentError(
          "a memory_limit of 0 allows nothing; leave it out for all that the card can give");
    }
    LogicalDeviceSpec device{.limit = option.memory_limit,
                             .guarantee = option.guarantee,
                             .preallocate = option.mode == MemoryMode::kPreallocate,
                             .name = option.name};
    if (option.physical_device.empty()) {
      for (const MachineCard* card : usable) device.cards.push_back(card->uuid);
    } else {
      LGPU_ASSIGN_OR_RETURN(const MachineCard* card, FindCard(option.physical_device, machine));
      if (std::find(usable.begin(), usable.end(), card) == usable.end()) {
        return absl::NotFoundError("physical_device \"" + option.physical_device + "\" is " +
                                   CardText(*card) + ", which this program cannot use; CUDA_VISIBLE_DEVICES" +
                                   (environment.cuda_visible_devices.has_value()
                                        ? "=\"" + *environment.cuda_visible_devices + "\""
                                        : " is not set") +
                                   " and the served GPUs leave " + ListText(usable));
      }
      device.cards = {card->uuid};
    }
    choice.devices.push_back(std::move(device));
  }
  if (options.empty()) choice.devices.push_back({.cards = {usable.front()->uuid}});
  ApplyGrowthVariable(environment, choice);
  return choice;
}

}  // namespace lgpu
