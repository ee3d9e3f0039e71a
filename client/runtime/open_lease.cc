#include "client/runtime/open_lease.h"

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "allocator/device/cuda/cuda_backend.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "allocator/device/simulated/simulated_spec.h"
#include "client/session/local_lease.h"
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

/// The machine's GPUs, or the simulated ones of `endpoint`.
absl::StatusOr<std::unique_ptr<DeviceBackend>> LocalBackend(const Endpoint& endpoint) {
  if (endpoint.simulated.empty()) {
    absl::StatusOr<std::unique_ptr<DeviceBackend>> backend = OpenCudaBackend();
    if (!backend.ok()) return NoGpu(backend.status());
    return backend;
  }
  SimulatedBackendOptions simulated;
  for (std::size_t i = 0; i < endpoint.simulated.size(); ++i) {
    simulated.devices.push_back(SimulatedDevice(static_cast<int>(i), endpoint.simulated[i], "local"));
  }
  return MakeSimulatedBackend(std::move(simulated));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Lease>> OpenLocalLease(const Endpoint& endpoint, const ContextOptions& options,
                                                      const DeviceEnvironment& environment) {
  if (!options.lease.empty()) {
    return absl::InvalidArgumentError("lease \"" + options.lease +
                                      "\" cannot be attached to: endpoint `local` has no leases\n"
                                      "  try: the endpoint of the lgpud that has it, or no lease");
  }
  LGPU_ASSIGN_OR_RETURN(std::unique_ptr<DeviceBackend> backend, LocalBackend(endpoint));
  DeviceEnvironment asked = environment;
  if (endpoint.simulated.empty()) {
    LGPU_ASSIGN_OR_RETURN(asked.driver_cards, CudaEnumeration());
  }
  std::vector<MachineCard> machine;
  for (const PhysicalDevice& device : backend->devices()) {
    machine.push_back({.index = static_cast<int>(machine.size()),
                       .uuid = device.uuid,
                       .served = true,
                       .not_served_because = {},
                       .available = device.total});
  }
  LGPU_ASSIGN_OR_RETURN(const DeviceChoice choice, ChooseDevices(options.logical_devices, machine, asked));
  for (const std::string& note : choice.notes) LogNote(options, note);
  const std::string too_much = MoreThanTheMachineHas(endpoint.simulated);
  if (!too_much.empty()) LogNote(options, "lgpu: warning: " + too_much);
  return LocalLease::Open(std::move(backend), options.lease_name, choice.devices);
}

absl::StatusOr<std::unique_ptr<Lease>> OpenLease(const ContextOptions& options, Contents contents) {
  if (!options.lease.empty() && !options.logical_devices.empty()) {
    return absl::InvalidArgumentError(
        "lease \"" + options.lease +
        "\" has its own logical devices; give `lease` or `logical_devices`, not both");
  }
  LGPU_ASSIGN_OR_RETURN(const Endpoint endpoint,
                        ResolveEndpoint(options.endpoint, EndpointEnvironment::OfThisProcess()));
  const DeviceEnvironment environment = DeviceEnvironment::OfThisProcess();
  if (endpoint.local) return OpenLocalLease(endpoint, options, environment);
  std::string attach_to = options.lease;
  const char* variable = std::getenv("LGPU_LEASE");
  if (attach_to.empty() && variable != nullptr && *variable != '\0') {
    attach_to = variable;
    if (!options.logical_devices.empty()) {
      LogNote(options, "lgpu: note: LGPU_LEASE is set: this program runs inside lease " + attach_to +
                           "; the logical devices that it asks for itself are not made");
    }
  }
  return OpenDaemonLease(endpoint, options, attach_to, environment, contents);
}

void LogNote(const ContextOptions& options, std::string_view line) {
  if (options.log_sink) {
    options.log_sink(line);
  } else {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  }
}

}  // namespace lgpu
