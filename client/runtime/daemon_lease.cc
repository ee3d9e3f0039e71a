#include "client/runtime/daemon_lease.h"

#include <algorithm>
#include <utility>

#include "allocator/device/cuda/cuda_backend.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "client/runtime/lease_common.h"
#include "client/session/leased_region_source.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

// What a simulated device can have: pages of the machine, and regions that are aligned to 2 MiB.
constexpr std::uint64_t kLeastUnit = 4096;
constexpr std::uint64_t kMostUnit = std::uint64_t{2} << 20;

std::vector<MachineCard> CardsOf(const v1::ListPhysicalDevicesResponse& response) {
  std::vector<MachineCard> cards;
  for (const v1::CardStats& card : response.devices()) {
    cards.push_back({.index = static_cast<int>(card.index()),
                     .uuid = card.uuid(),
                     .served = card.served(),
                     .not_served_because = card.not_served_because(),
                     .available = SaturatingSub(Bytes(card.total_bytes()), Bytes(card.reserve_bytes()))});
  }
  std::sort(cards.begin(), cards.end(),
            [](const MachineCard& a, const MachineCard& b) { return a.index < b.index; });
  return cards;
}

bool HasRealCards(const v1::ListPhysicalDevicesResponse& response) {
  return std::any_of(response.devices().begin(), response.devices().end(),
                     [](const v1::CardStats& card) { return !card.simulated(); });
}

v1::LogicalDeviceSpec SpecOf(const ChosenDevice& chosen) {
  v1::LogicalDeviceSpec spec;
  if (chosen.cards.size() == 1) spec.set_card_uuid(chosen.cards.front());
  for (const std::string& uuid : chosen.cards) spec.add_candidate_uuids(uuid);
  spec.set_memory_limit_bytes(chosen.limit.count());
  spec.set_guarantee_bytes(chosen.guarantee.count());
  spec.set_mode(chosen.mode == MemoryMode::kPreallocate ? v1::LogicalDeviceSpec::MODE_PREALLOCATE
                                                        : v1::LogicalDeviceSpec::MODE_GROWTH);
  spec.set_name(chosen.name);
  return spec;
}

absl::StatusOr<v1::Lease> NewLease(ControlClient& control, const ContextOptions& options,
                                   const DeviceEnvironment& environment) {
  LGPU_ASSIGN_OR_RETURN(const v1::ListPhysicalDevicesResponse machine, control.ListPhysicalDevices());
  DeviceEnvironment asked = environment;
  if (HasRealCards(machine)) {
    std::vector<std::string> uuids;
    std::vector<std::string> served;
    for (const MachineCard& card : CardsOf(machine)) {
      uuids.push_back(card.uuid);
      if (card.served) served.push_back(card.uuid);
    }
    LGPU_ASSIGN_OR_RETURN(asked, AskDriver(environment, uuids, served));
  }
  LGPU_ASSIGN_OR_RETURN(const DeviceChoice choice,
                        ChooseDevices(options.logical_devices, CardsOf(machine), asked));
  for (const std::string& note : choice.notes) LogNote(options, note);
  v1::CreateLeaseRequest request;
  request.set_name(options.lease_name);
  for (const ChosenDevice& chosen : choice.devices) *request.add_devices() = SpecOf(chosen);
  return control.CreateLease(request);
}

LogicalDeviceInfo InfoOf(const v1::LogicalDevice& device) {
  LogicalDeviceInfo info;
  info.name = device.name();
  info.memory_limit = Bytes(device.memory_limit_bytes());
  info.guarantee = Bytes(device.guarantee_bytes());
  info.mode = device.mode() == v1::LogicalDeviceSpec::MODE_PREALLOCATE ? MemoryMode::kPreallocate
                                                                       : MemoryMode::kGrowth;
  info.card_uuid = device.card_uuid();
  info.card_name = device.card_name();
  info.pci_bus_id = device.pci_bus_id();
  info.card_index = static_cast<int>(device.card_index());
  info.compute_major = static_cast<int>(device.compute_major());
  info.compute_minor = static_cast<int>(device.compute_minor());
  info.simulated = device.simulated();
  return info;
}

/// The cards of a lease, each once, as this process's backend is to know them.
std::vector<PhysicalDevice> CardsOf(const v1::Lease& lease) {
  std::vector<PhysicalDevice> cards;
  for (const v1::LogicalDevice& device : lease.devices()) {
    const auto known = std::find_if(cards.begin(), cards.end(), [&](const PhysicalDevice& card) {
      return card.uuid == device.card_uuid();
    });
    if (known != cards.end()) continue;
    PhysicalDevice card;
    card.uuid = device.card_uuid();
    card.name = device.card_name();
    card.pci_bus_id = device.pci_bus_id();
    card.total = Bytes(device.card_total_bytes());
    card.granularity = Bytes(device.granularity_bytes());
    card.compute_major = static_cast<int>(device.compute_major());
    card.compute_minor = static_cast<int>(device.compute_minor());
    card.simulated = device.simulated();
    cards.push_back(std::move(card));
  }
  return cards;
}

/// The driver's GPUs, of which the lease's cards have to be some.
absl::StatusOr<std::unique_ptr<DeviceBackend>> CudaBackendFor(const v1::Lease& lease,
                                                              const std::vector<PhysicalDevice>& cards) {
  absl::StatusOr<std::unique_ptr<DeviceBackend>> backend = OpenCudaBackend({});
  if (!backend.ok()) {
    return absl::Status(backend.status().code(),
                        "lease " + lease.name() + " has a device on " + cards.front().name +
                            ", which this process cannot use: " + std::string(backend.status().message()));
  }
  const std::vector<PhysicalDevice>& shown = (*backend)->devices();
  for (const PhysicalDevice& card : cards) {
    const auto found = std::find_if(shown.begin(), shown.end(),
                                    [&](const PhysicalDevice& device) { return device.uuid == card.uuid; });
    if (found == shown.end()) {
      std::string text = "lease " + lease.name() + " has a device on " + card.name + " (" + card.uuid +
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

absl::StatusOr<std::unique_ptr<DeviceBackend>> BackendFor(const v1::Lease& lease) {
  std::vector<PhysicalDevice> cards = CardsOf(lease);
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

absl::StatusOr<std::unique_ptr<Lease>> DaemonLease::Open(const Endpoint& endpoint,
                                                         const ContextOptions& options,
                                                         const std::string& attach_to,
                                                         const DeviceEnvironment& environment) {
  LGPU_ASSIGN_OR_RETURN(DaemonSocket daemon, FindDaemon(endpoint));
  ControlClient::Starting starting = ControlClient::Start(std::move(daemon.control), daemon.directory);
  LGPU_ASSIGN_OR_RETURN(SessionChannel channel, SessionChannel::Connect(SessionSocketPath(daemon.directory)));
  LGPU_ASSIGN_OR_RETURN(
      std::unique_ptr<DaemonConnection> connection,
      DaemonConnection::Open(std::move(channel), {.directory = daemon.directory,
                                                  .reconnect_path = SessionSocketPath(daemon.directory)}));
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<ControlClient> control, starting.Wait());
  control->UseToken(connection->token());
  absl::StatusOr<v1::Lease> granted;
  if (attach_to.empty()) {
    granted = NewLease(*control, options, environment);
  } else {
    v1::AttachLeaseRequest request;
    request.set_lease(attach_to);
    granted = control->AttachLease(request);
  }
  connection->DropLater(std::move(control));
  if (!granted.ok()) return granted.status();
  std::unique_ptr<DaemonLease> lease(new DaemonLease(std::move(connection)));
  lease->directory_ = daemon.directory;
  LGPU_RETURN_IF_ERROR(lease->TakeDevices(*granted));
  return lease;
}

absl::Status DaemonLease::TakeDevices(const v1::Lease& lease) {
  id_ = lease.id();
  name_ = lease.name();
  LGPU_ASSIGN_OR_RETURN(backend_, BackendFor(lease));
  const std::vector<PhysicalDevice>& cards = backend_->devices();
  for (const v1::LogicalDevice& device : lease.devices()) {
    const auto card = std::find_if(cards.begin(), cards.end(),
                                   [&](const PhysicalDevice& c) { return c.uuid == device.card_uuid(); });
    LeasedRegionSource::Options options;
    options.device_id = device.id();
    options.backend_device = static_cast<int>(card - cards.begin());
    options.granularity = card->granularity;
    options.limit = Bytes(device.memory_limit_bytes());
    options.known_by_descriptor = card->simulated;
    LGPU_ASSIGN_OR_RETURN(std::unique_ptr<RegionSource> source,
                          LeasedRegionSource::Create(*connection_, *backend_, options));
    sources_.push_back(std::move(source));
    backend_devices_.push_back(options.backend_device);
    device_ids_.push_back(options.device_id);
    devices_.push_back(InfoOf(device));
  }
  return absl::OkStatus();
}

std::vector<Lease::TrimOrder> DaemonLease::TakeTrims() {
  std::vector<TrimOrder> orders;
  for (const DaemonConnection::TrimOrder& order : connection_->TakeTrims()) {
    const auto device = std::find(device_ids_.begin(), device_ids_.end(), order.device);
    if (device == device_ids_.end()) {
      connection_->AnswerTrim(order.id, /*pending=*/false);  // of a later daemon: nothing of it is here
      continue;
    }
    orders.push_back(
        {.id = order.id, .device = static_cast<int>(device - device_ids_.begin()), .bytes = order.bytes});
  }
  return orders;
}

absl::Status DaemonLease::Resize(int i, Bytes limit, std::optional<Bytes> guarantee) {
  LGPU_ASSIGN_OR_RETURN(DaemonSocket daemon, FindDaemon({.directories = {directory_}}));
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<ControlClient> control,
                        ControlClient::Create(std::move(daemon.control), daemon.directory));
  control->UseToken(connection_->token());
  v1::ResizeLeaseRequest request;
  request.set_lease(id_);
  v1::ResizeLeaseRequest::Device& device = *request.add_devices();
  device.set_index(static_cast<std::uint32_t>(i));
  if (limit == kWholeCard) {
    device.set_whole_card(true);
  } else {
    device.set_memory_limit_bytes(limit.count());
  }
  if (guarantee) device.set_guarantee_bytes(guarantee->count());
  return control->ResizeLease(request).status();
}

absl::Status DaemonLease::Close() {
  sources_.clear();
  return connection_->Close();
}

}  // namespace lgpu
