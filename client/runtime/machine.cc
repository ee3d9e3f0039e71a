#include "client/runtime/machine.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "allocator/device/cuda/cuda_backend.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "client/control/control_client.h"
#include "client/control/lease_calls.h"
#include "client/session/lease_visibility.h"
#include "lgpu/status.h"
#include "lgpu/visibility.h"

namespace lgpu {
namespace {

PhysicalDeviceInfo DescriptionOf(const PhysicalDevice& device, bool simulated) {
  return {.name = {},
          .device_type = "GPU",
          .card_uuid = device.uuid,
          .card_name = device.name,
          .pci_bus_id = device.pci_bus_id,
          .total = device.total,
          .free = device.total,
          .compute_major = device.compute_major,
          .compute_minor = device.compute_minor,
          .multiprocessors = device.multiprocessors,
          .simulated = simulated};
}

std::vector<PhysicalDeviceInfo> CpuAlone() {
  return {{.name = "/physical_device:CPU:0", .device_type = "CPU"}};
}

std::string NoGpuNote(const absl::Status& why) { return "lgpu: note: no GPU: " + std::string(why.message()); }

// The cards that the driver shows this process. Where the driver does not start there is none, and `notes`
// says why.
void AppendReal(std::vector<PhysicalDeviceInfo>& cards, std::vector<std::string>& notes) {
  const absl::StatusOr<std::unique_ptr<DeviceBackend>> backend = OpenCudaBackend();
  if (!backend.ok()) {
    notes.push_back(NoGpuNote(backend.status()));
    return;
  }
  for (const PhysicalDevice& device : (*backend)->devices()) cards.push_back(DescriptionOf(device, false));
}

void AppendSimulated(const Endpoint& endpoint, std::vector<PhysicalDeviceInfo>& cards) {
  for (std::size_t i = 0; i < endpoint.simulated.size(); ++i) {
    const PhysicalDevice device = SimulatedDevice(static_cast<int>(i), endpoint.simulated[i], "local");
    cards.push_back(DescriptionOf(device, true));
  }
}

absl::StatusOr<std::shared_ptr<ControlClient>> ConnectTo(const Endpoint& endpoint) {
  LGPU_ASSIGN_OR_RETURN(DaemonSocket daemon, FindDaemon(endpoint));
  return ControlClient::Create(std::move(daemon.control), daemon.directory);
}

absl::Status AppendServed(ControlClient& control, std::vector<PhysicalDeviceInfo>& cards,
                          std::vector<bool>& served) {
  LGPU_ASSIGN_OR_RETURN(wire::ListPhysicalDevicesResponse response, ListPhysicalDevices(control));
  std::sort(response.devices.begin(), response.devices.end(),
            [](const wire::CardStats& a, const wire::CardStats& b) { return a.index < b.index; });
  for (const wire::CardStats& card : response.devices) {
    cards.push_back({.name = {},
                     .device_type = "GPU",
                     .card_uuid = card.uuid,
                     .card_name = card.name,
                     .pci_bus_id = card.pci_bus_id,
                     .total = Bytes(card.total_bytes),
                     .free = Bytes(card.free_bytes),
                     .coming_back = Bytes(card.draining_bytes),
                     .compute_major = static_cast<int>(card.compute_major),
                     .compute_minor = static_cast<int>(card.compute_minor),
                     .multiprocessors = static_cast<int>(card.multiprocessors.value_or(0)),
                     .simulated = card.simulated});
    served.push_back(card.served);
  }
  return absl::OkStatus();
}

/// The UUIDs of the lease's cards that this process may use. The driver is asked for real ones, and reads the
/// variable then.
absl::StatusOr<std::vector<std::string>> VisibleUuidsOf(const wire::Lease& lease, bool real,
                                                        const DeviceEnvironment& environment) {
  const std::vector<std::string> uuids = CardUuidsOf(lease);
  LGPU_ASSIGN_OR_RETURN(const std::vector<int> visible,
                        VisibleCardsOfLease(environment.cuda_visible_devices, uuids));
  std::vector<std::string> shown;
  for (const int card : visible) shown.push_back(uuids[static_cast<std::size_t>(card)]);
  if (!real) return shown;
  SetVisibleDevices(shown);
  LGPU_ASSIGN_OR_RETURN(std::vector<std::string> driver_cards, CudaEnumeration());
  std::erase_if(driver_cards, [&](const std::string& uuid) {
    return std::find(shown.begin(), shown.end(), uuid) == shown.end();
  });
  if (driver_cards.empty()) {
    return absl::NotFoundError(
        "the CUDA driver was started in this process before, and shows it none of the lease's GPUs");
  }
  return driver_cards;
}

absl::StatusOr<std::vector<PhysicalDeviceInfo>> ListLease(ControlClient& control,
                                                          const std::vector<PhysicalDeviceInfo>& cards,
                                                          const DeviceEnvironment& environment,
                                                          std::vector<std::string>& notes) {
  LGPU_ASSIGN_OR_RETURN(const wire::Lease lease, GetLease(control, {.lease = environment.lease}));
  const bool real = std::any_of(lease.devices.begin(), lease.devices.end(),
                                [](const wire::LogicalDevice& device) { return !device.simulated; });
  std::vector<PhysicalDeviceInfo> devices = CpuAlone();
  const absl::StatusOr<std::vector<std::string>> visible = VisibleUuidsOf(lease, real, environment);
  if (!visible.ok()) {
    notes.push_back(NoGpuNote(visible.status()));
    return devices;
  }
  for (const int index : DevicesOnCards(lease, *visible)) {
    const wire::LogicalDevice& leased = lease.devices[static_cast<std::size_t>(index)];
    const auto card = std::find_if(cards.begin(), cards.end(), [&](const PhysicalDeviceInfo& known) {
      return known.card_uuid == leased.card_uuid;
    });
    if (card == cards.end()) continue;
    PhysicalDeviceInfo& device = devices.emplace_back(*card);
    device.name = "/physical_device:GPU:" + std::to_string(devices.size() - 2);
    device.total = Bytes(leased.memory_limit_bytes);
    const Bytes set_aside = leased.mode == wire::LogicalDeviceSpec::Mode::kPreallocate
                                ? device.total
                                : Bytes(leased.guarantee_bytes);
    device.free = std::min(device.total, SaturatingAdd(set_aside, card->free.value_or(Bytes())));
  }
  return devices;
}

}  // namespace

std::vector<PhysicalDeviceInfo> VisibleDevicesOf(const std::vector<PhysicalDeviceInfo>& cards,
                                                 const std::vector<bool>& served,
                                                 const DeviceEnvironment& environment,
                                                 std::vector<std::string>& notes) {
  std::vector<std::string> machine;
  std::vector<std::string> served_uuids;
  std::vector<std::size_t> served_cards;
  for (std::size_t i = 0; i < cards.size(); ++i) {
    machine.push_back(cards[i].card_uuid);
    if (!served[i]) continue;
    served_uuids.push_back(cards[i].card_uuid);
    served_cards.push_back(i);
  }
  const bool real =
      std::any_of(cards.begin(), cards.end(), [](const PhysicalDeviceInfo& card) { return !card.simulated; });
  absl::StatusOr<DeviceEnvironment> asked = environment;
  if (real) asked = AskDriver(environment, machine, served_uuids);
  const absl::StatusOr<std::vector<int>> visible =
      asked.ok() ? UsableCards(machine, served_uuids, *asked) : asked.status();
  std::vector<PhysicalDeviceInfo> devices = CpuAlone();
  if (!visible.ok()) {
    notes.push_back(NoGpuNote(visible.status()));
    return devices;
  }
  for (std::size_t i = 0; i < visible->size(); ++i) {
    devices.push_back(cards[served_cards[static_cast<std::size_t>((*visible)[i])]]);
    devices.back().name = "/physical_device:GPU:" + std::to_string(i);
  }
  return devices;
}

absl::StatusOr<std::vector<PhysicalDeviceInfo>> ListMachine(const Endpoint& endpoint,
                                                            const DeviceEnvironment& environment,
                                                            std::vector<std::string>& notes) {
  std::vector<PhysicalDeviceInfo> cards;
  std::vector<bool> served;
  if (endpoint.local) {
    if (endpoint.simulated.empty()) AppendReal(cards, notes);
    AppendSimulated(endpoint, cards);
    served.assign(cards.size(), true);
  } else {
    LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<ControlClient> control, ConnectTo(endpoint));
    LGPU_RETURN_IF_ERROR(AppendServed(*control, cards, served));
    if (!environment.lease.empty()) return ListLease(*control, cards, environment, notes);
  }
  return VisibleDevicesOf(cards, served, environment, notes);
}

}  // namespace lgpu
