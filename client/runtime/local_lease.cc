#include "client/runtime/local_lease.h"

#include <algorithm>
#include <utility>

#include "allocator/device/cuda/cuda_backend.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "client/runtime/lease_common.h"
#include "client/session/fork_guard.h"
#include "client/session/local_region_source.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

absl::Status NoGpu(const absl::Status& why) {
  return absl::Status(why.code(),
                      "endpoint `local` partitions a GPU of this machine, and there is none that lgpu can "
                      "use: " +
                          std::string(why.message()) +
                          "\n  try: LGPU_ENDPOINT=local:2x1GiB simulates two GPUs of 1 GiB in this program");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Lease>> LocalLease::Open(const Endpoint& endpoint,
                                                        const ContextOptions& options,
                                                        const DeviceEnvironment& environment) {
  if (!options.lease.empty()) {
    return absl::InvalidArgumentError("lease \"" + options.lease +
                                      "\" cannot be attached to: endpoint `local` has no leases\n"
                                      "  try: the endpoint of the lgpud that has it, or no lease");
  }
  std::unique_ptr<LocalLease> lease(new LocalLease());
  lease->name_ = options.lease_name;
  DeviceEnvironment asked = environment;
  if (endpoint.simulated.empty()) {
    absl::StatusOr<std::unique_ptr<DeviceBackend>> backend = OpenCudaBackend({});
    if (!backend.ok()) return NoGpu(backend.status());
    lease->backend_ = *std::move(backend);
    LGPU_ASSIGN_OR_RETURN(asked.driver_cards, CudaEnumeration());
  } else {
    SimulatedBackendOptions simulated;
    for (std::size_t i = 0; i < endpoint.simulated.size(); ++i) {
      simulated.devices.push_back(SimulatedDevice(static_cast<int>(i), endpoint.simulated[i], "local"));
    }
    lease->backend_ = MakeSimulatedBackend(std::move(simulated));
  }
  LGPU_ASSIGN_OR_RETURN(lease->broker_, LocalBroker::Create(*lease->backend_, &lease->maintenance_));
  lease->page_ = std::make_unique<ClientPage>();
  lease->page_->magic.store(ClientPage::kMagic, std::memory_order_relaxed);

  std::vector<MachineCard> machine;
  for (const PhysicalDevice& device : lease->backend_->devices()) {
    machine.push_back({.index = static_cast<int>(machine.size()),
                       .uuid = device.uuid,
                       .served = true,
                       .not_served_because = {},
                       .available = device.total});
  }
  LGPU_ASSIGN_OR_RETURN(const DeviceChoice choice, ChooseDevices(options.logical_devices, machine, asked));
  for (const std::string& note : choice.notes) LogNote(options, note);
  for (const ChosenDevice& chosen : choice.devices) {
    LGPU_RETURN_IF_ERROR(lease->AddDevice(chosen));
  }
  return lease;
}

absl::Status LocalLease::AddDevice(const ChosenDevice& chosen) {
  // The first card that takes it; where none does, the error of the first says why.
  const std::vector<PhysicalDevice>& cards = backend_->devices();
  absl::Status first_error;
  for (const std::string& uuid : chosen.cards) {
    const auto card =
        std::find_if(cards.begin(), cards.end(), [&](const PhysicalDevice& c) { return c.uuid == uuid; });
    LocalBroker::DeviceSpec spec;
    spec.card = static_cast<int>(card - cards.begin());
    spec.limit = chosen.limit.is_zero() ? card->total : chosen.limit;
    spec.guarantee = chosen.guarantee;
    spec.preallocate = chosen.mode == MemoryMode::kPreallocate;
    spec.index = static_cast<int>(devices_.size());
    absl::StatusOr<LogicalId> device = broker_->AddDevice(spec);
    if (!device.ok()) {
      first_error.Update(device.status());
      continue;
    }
    LGPU_ASSIGN_OR_RETURN(std::unique_ptr<RegionSource> source,
                          LocalRegionSource::Create(*broker_, *device, *backend_, spec.card));
    sources_.push_back(std::move(source));
    backend_devices_.push_back(spec.card);
    logical_ids_.push_back(*device);
    LogicalDeviceInfo info;
    info.name = FullDeviceName(spec.index);
    info.memory_limit = spec.limit;
    info.guarantee = spec.preallocate ? spec.limit : spec.guarantee;
    info.mode = chosen.mode;
    info.card_uuid = card->uuid;
    info.card_name = card->name;
    info.pci_bus_id = card->pci_bus_id;
    info.card_index = spec.card;
    info.compute_major = card->compute_major;
    info.compute_minor = card->compute_minor;
    info.simulated = card->simulated;
    devices_.push_back(std::move(info));
    return absl::OkStatus();
  }
  return first_error;
}

std::vector<Lease::TrimOrder> LocalLease::TakeTrims() {
  std::vector<TrimOrder> orders;
  for (const LocalBroker::TrimOrder& order : broker_->TakeTrims()) {
    orders.push_back({.id = order.id.value, .device = order.index, .bytes = order.bytes});
  }
  return orders;
}

absl::Status LocalLease::Resize(int i, Bytes limit, std::optional<Bytes> guarantee) {
  if (epoch_.IsForked()) return ForkedError();
  const Bytes total =
      backend_->devices()[static_cast<std::size_t>(backend_device(i))].total;  // there is no reserve here
  return broker_->Resize(logical_ids_.at(static_cast<std::size_t>(i)), limit == kWholeCard ? total : limit,
                         guarantee);
}

absl::Status LocalLease::Close() {
  if (epoch_.IsForked()) return ForkedError();
  sources_.clear();
  {
    MutexLock lock(mutex_);
    if (closed_) return absl::OkStatus();
    closed_ = true;
  }
  return broker_->CheckAllReturned();
}

absl::Status LocalLease::status() const {
  if (epoch_.IsForked()) return ForkedError();
  MutexLock lock(mutex_);
  return closed_ ? absl::FailedPreconditionError("the Context is closed; open a new one") : absl::OkStatus();
}

}  // namespace lgpu
