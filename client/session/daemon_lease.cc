#include "client/session/daemon_lease.h"

#include <algorithm>
#include <optional>

#include "allocator/device/cuda/cuda_backend.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "client/session/lease_visibility.h"
#include "client/session/leased_region_source.h"
#include "lgpu/status.h"
#include "lgpu/visibility.h"

namespace lgpu {
namespace {

// The units of a simulated device: pages of the machine, and regions that are aligned to 2 MiB.
constexpr std::uint64_t kLeastUnit = 4096;
constexpr std::uint64_t kMostUnit = std::uint64_t{2} << 20;

LeasedDevice LeasedFrom(const wire::LogicalDevice& device) {
  LeasedDevice leased;
  leased.id = LogicalId{device.id};
  leased.memory_limit = Bytes(device.memory_limit_bytes);
  leased.guarantee = Bytes(device.guarantee_bytes);
  leased.preallocated = device.mode == wire::LogicalDeviceSpec::Mode::kPreallocate;
  leased.card.uuid = device.card_uuid;
  leased.card.name = device.card_name;
  leased.card.pci_bus_id = device.pci_bus_id;
  leased.card.total = Bytes(device.card_total_bytes);
  leased.card.granularity = Bytes(device.granularity_bytes);
  leased.card.compute_major = static_cast<int>(device.compute_major);
  leased.card.compute_minor = static_cast<int>(device.compute_minor);
  leased.card.simulated = device.simulated;
  leased.card_index = static_cast<int>(device.card_index);
  return leased;
}

/// The lease's devices that this process may use.
absl::StatusOr<std::vector<LeasedDevice>> UsableDevices(const wire::Lease& granted) {
  std::vector<LeasedDevice> all;
  for (const wire::LogicalDevice& device : granted.devices) {
    all.push_back(LeasedFrom(device));
    all.back().lease_index = static_cast<int>(all.size()) - 1;
  }
  if (!IsInsideLease(granted)) return all;
  const std::vector<std::string> uuids = CardUuidsOf(granted);
  const std::optional<std::string> value = VisibleDevicesVariable();
  LGPU_ASSIGN_OR_RETURN(const std::vector<int> visible, VisibleCardsOfLease(value, uuids));
  std::vector<std::string> shown;
  for (const int card : visible) shown.push_back(uuids[static_cast<std::size_t>(card)]);
  std::vector<LeasedDevice> usable;
  for (const int index : DevicesOnCards(granted, shown)) {
    usable.push_back(all[static_cast<std::size_t>(index)]);
  }
  // A lease on simulated cards leaves the variable to the driver.
  if (!usable.front().card.simulated) SetVisibleDevices(shown);
  return usable;
}

absl::Status CannotResize(const std::string& /*token*/, int /*i*/, Bytes /*limit*/,
                          std::optional<Bytes> /*guarantee*/) {
  return absl::UnimplementedError(
      "this program attached to its lease without gRPC and cannot resize it\n  try: lgpu resize");
}

/// Each card once.
std::vector<PhysicalDevice> CardsOf(const std::vector<LeasedDevice>& devices) {
  std::vector<PhysicalDevice> cards;
  for (const LeasedDevice& device : devices) {
    const bool known = std::any_of(cards.begin(), cards.end(),
                                   [&](const PhysicalDevice& card) { return card.uuid == device.card.uuid; });
    if (!known) cards.push_back(device.card);
  }
  return cards;
}

/// The driver's GPUs; the cards of the lease have to be among them.
absl::StatusOr<std::unique_ptr<DeviceBackend>> CudaBackendFor(const std::string& lease,
                                                              const std::vector<PhysicalDevice>& cards) {
  absl::StatusOr<std::unique_ptr<DeviceBackend>> backend = OpenCudaBackend();
  if (!backend.ok()) {
    return absl::Status(backend.status().code(),
                        "lease " + lease + " has a device on " + cards.front().name +
                            ", which this process cannot use: " + std::string(backend.status().message()));
  }
  const std::vector<PhysicalDevice>& shown = (*backend)->devices();
  for (const PhysicalDevice& card : cards) {
    const auto found = std::find_if(shown.begin(), shown.end(),
                                    [&](const PhysicalDevice& device) { return device.uuid == card.uuid; });
    if (found == shown.end()) {
      std::string text = "lease " + lease + " has a device on " + card.name + " (" + card.uuid +
                         "), which the CUDA driver does not show this process; it shows:";
      for (const PhysicalDevice& device : shown) text += "\n  " + device.uuid + " " + device.name;
      return absl::FailedPreconditionError(
          text + "\n  try: CUDA_VISIBLE_DEVICES with that UUID in it, or without the variable");
    }
    if (found->granularity != card.granularity) {
      return absl::InternalError("lgpud grants chunks of " + card.uuid + " in units of " +
                                 FormatBytes(card.granularity) + ", and the driver has units of " +
                                 FormatBytes(found->granularity));
    }
  }
  return backend;
}

absl::StatusOr<std::unique_ptr<DeviceBackend>> BackendFor(const std::string& lease,
                                                          const std::vector<LeasedDevice>& devices) {
  std::vector<PhysicalDevice> cards = CardsOf(devices);
  const auto real =
      std::count_if(cards.begin(), cards.end(), [](const PhysicalDevice& card) { return !card.simulated; });
  if (real != 0 && static_cast<std::size_t>(real) == cards.size()) return CudaBackendFor(lease, cards);
  for (const PhysicalDevice& card : cards) {
    const std::uint64_t unit = card.granularity.count();
    if (!card.simulated || unit < kLeastUnit || unit > kMostUnit || (unit & (unit - 1)) != 0) {
      return absl::InternalError("lgpud says that " + card.uuid + " has chunks in units of " +
                                 std::to_string(unit) + " bytes; are liblgpu and lgpud of one version?");
    }
  }
  return MakeSimulatedBackend({.devices = std::move(cards)});
}

}  // namespace

DaemonLease::DaemonLease(std::unique_ptr<DaemonConnection> connection, const wire::Lease& granted,
                         std::vector<LeasedDevice> devices, Calls calls)
    : id_(granted.id),
      name_(granted.name),
      devices_(std::move(devices)),
      calls_(std::move(calls)),
      connection_(std::move(connection)) {}

absl::StatusOr<std::unique_ptr<Lease>> DaemonLease::Attach(const Endpoint& endpoint,
                                                           const std::string& lease) {
  LGPU_ASSIGN_OR_RETURN(const DaemonSocket daemon, FindDaemon(endpoint));
  LGPU_ASSIGN_OR_RETURN(std::unique_ptr<DaemonConnection> connection,
                        DaemonConnection::Connect({.directory = daemon.directory,
                                                   .reconnect_path = SessionSocketPath(daemon.directory),
                                                   .answers_snapshots = true}));
  LGPU_ASSIGN_OR_RETURN(const wire::Lease granted, connection->Attach(lease));
  return Open(std::move(connection), granted, {.resize = CannotResize});
}

absl::StatusOr<std::unique_ptr<Lease>> DaemonLease::Open(std::unique_ptr<DaemonConnection> connection,
                                                         const wire::Lease& granted, Calls calls) {
  LGPU_ASSIGN_OR_RETURN(std::vector<LeasedDevice> usable, UsableDevices(granted));
  std::unique_ptr<DaemonLease> lease(
      new DaemonLease(std::move(connection), granted, std::move(usable), std::move(calls)));
  LGPU_ASSIGN_OR_RETURN(lease->backend_, BackendFor(lease->name_, lease->devices_));
  const std::vector<PhysicalDevice>& cards = lease->backend_->devices();
  for (LeasedDevice& device : lease->devices_) {
    const auto card = std::find_if(cards.begin(), cards.end(),
                                   [&](const PhysicalDevice& c) { return c.uuid == device.card.uuid; });
    device.backend_device = static_cast<int>(card - cards.begin());
    LGPU_ASSIGN_OR_RETURN(std::unique_ptr<RegionSource> source,
                          LeasedRegionSource::Create(*lease->connection_, *lease->backend_,
                                                     {.device_id = device.id.value,
                                                      .backend_device = device.backend_device,
                                                      .granularity = card->granularity,
                                                      .limit = device.memory_limit,
                                                      .known_by_descriptor = card->simulated}));
    lease->sources_.push_back(std::move(source));
  }
  return lease;
}

std::vector<Lease::SuspensionOrder> DaemonLease::TakeSuspensionOrders() {
  std::vector<SuspensionOrder> orders;
  for (const DaemonConnection::SuspendOfDaemon& suspend : connection_->TakeSuspends()) {
    orders.push_back({.id = suspend.order.order_id,
                      .daemon = suspend.generation,
                      .resume = suspend.order.resume,
                      .limit = std::chrono::milliseconds(suspend.order.limit_ms)});
  }
  return orders;
}

absl::Status DaemonLease::AnswerSuspension(const SuspensionOrder& order, const absl::Status& status,
                                           const std::map<LogicalId, Bytes>& needs) {
  DaemonConnection::SuspendOfDaemon suspend;
  suspend.order.order_id = order.id;
  suspend.generation = order.daemon;
  DaemonConnection::Suspension answer{.status = status};
  for (const auto& [device, bytes] : needs) {
    answer.needs.push_back({.device_id = device.value, .bytes = bytes.count()});
  }
  return connection_->AnswerSuspend(suspend, answer);
}

absl::Status DaemonLease::Close() {
  sources_.clear();
  return connection_->Close();
}

}  // namespace lgpu
