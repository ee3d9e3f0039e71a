#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/control/control_client.h"
#include "client/control/lease_calls.h"
#include "client/runtime/open_lease.h"
#include "client/session/daemon_lease.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

std::vector<MachineCard> CardsOf(const wire::ListPhysicalDevicesResponse& response) {
  std::vector<MachineCard> cards;
  for (const wire::CardStats& card : response.devices) {
    cards.push_back({.index = static_cast<int>(card.index),
                     .uuid = card.uuid,
                     .served = card.served,
                     .not_served_because = card.not_served_because,
                     .available = SaturatingSub(Bytes(card.total_bytes), Bytes(card.reserve_bytes))});
  }
  std::sort(cards.begin(), cards.end(),
            [](const MachineCard& a, const MachineCard& b) { return a.index < b.index; });
  return cards;
}

bool HasRealCards(const wire::ListPhysicalDevicesResponse& response) {
  return std::any_of(response.devices.begin(), response.devices.end(),
                     [](const wire::CardStats& card) { return !card.simulated; });
}

wire::LogicalDeviceSpec SpecOf(const LogicalDeviceSpec& chosen) {
  wire::LogicalDeviceSpec spec;
  if (chosen.cards.size() == 1) spec.card_uuid = chosen.cards.front();
  spec.candidate_uuids = chosen.cards;
  if (chosen.limit) spec.memory_limit_bytes = chosen.limit->count();  // a message without it: the whole card
  spec.guarantee_bytes = chosen.guarantee.count();
  spec.mode = chosen.preallocate ? wire::LogicalDeviceSpec::Mode::kPreallocate
                                 : wire::LogicalDeviceSpec::Mode::kGrowth;
  spec.name = chosen.name;
  return spec;
}

absl::StatusOr<wire::Lease> NewLease(ControlClient& control, const ContextOptions& options,
                                     const DeviceEnvironment& environment) {
  LGPU_ASSIGN_OR_RETURN(const wire::ListPhysicalDevicesResponse machine, ListPhysicalDevices(control));
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
  wire::CreateLeaseRequest request;
  request.name = options.lease_name;
  for (const LogicalDeviceSpec& chosen : choice.devices) request.devices.push_back(SpecOf(chosen));
  return CreateLease(control, request);
}

absl::StatusOr<std::shared_ptr<ControlClient>> ControlOf(const std::string& directory,
                                                         const std::string& token) {
  LGPU_ASSIGN_OR_RETURN(DaemonSocket daemon, FindDaemon({.directories = {directory}}));
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<ControlClient> control,
                        ControlClient::Create(std::move(daemon.control), daemon.directory));
  control->UseToken(token);
  return control;
}

absl::Status Resize(const std::string& directory, const std::string& token,
                    const wire::ResizeLeaseRequest& request) {
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<ControlClient> control, ControlOf(directory, token));
  return ResizeLease(*control, request).status();
}

// The answer of an lgpud that is busy may take longer than the wait.
constexpr std::chrono::milliseconds kAnswer = std::chrono::seconds(10);

DaemonLease::Resizer ResizerOf(std::string directory, std::string lease) {
  return [directory = std::move(directory), lease = std::move(lease)](
             const std::string& token, int i, Bytes limit, std::optional<Bytes> guarantee) {
    wire::ResizeLeaseRequest::Device device;
    device.index = static_cast<std::uint32_t>(i);
    device.whole_card = limit == Lease::kWholeCard;
    if (!device.whole_card) device.memory_limit_bytes = limit.count();
    if (guarantee) device.guarantee_bytes = guarantee->count();
    return Resize(directory, token, {.lease = lease, .devices = {device}});
  };
}

DaemonLease::Calls CallsOf(const std::string& directory, const std::string& lease) {
  return {.resize = ResizerOf(directory, lease),
          .suspend = [directory, lease](const std::string& token, Bytes bytes) -> absl::Status {
            LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<ControlClient> control, ControlOf(directory, token));
            return SuspendLease(*control, {.lease = lease, .own_bytes = bytes.count()});
          },
          .resume = [directory, lease](const std::string& token,
                                       std::chrono::nanoseconds timeout) -> absl::Status {
            LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<ControlClient> control, ControlOf(directory, token));
            const auto wait = std::chrono::ceil<std::chrono::milliseconds>(timeout);
            return ResumeLease(
                *control, {.lease = lease, .wait_ms = static_cast<std::uint64_t>(wait.count()), .own = true},
                wait + kAnswer);
          }};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Lease>> OpenDaemonLease(const Endpoint& endpoint,
                                                       const ContextOptions& options,
                                                       const std::string& attach_to,
                                                       const DeviceEnvironment& environment,
                                                       Contents contents) {
  LGPU_ASSIGN_OR_RETURN(DaemonSocket daemon, FindDaemon(endpoint));
  ControlClient::Starting starting = ControlClient::Start(std::move(daemon.control), daemon.directory);
  LGPU_ASSIGN_OR_RETURN(std::unique_ptr<DaemonConnection> connection,
                        DaemonConnection::Connect({.directory = daemon.directory,
                                                   .reconnect_path = SessionSocketPath(daemon.directory),
                                                   .answers_snapshots = true,
                                                   .suspends_itself = contents == Contents::kTensors}));
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<ControlClient> control, starting.Wait());
  control->UseToken(connection->token());
  absl::StatusOr<wire::Lease> granted;
  if (attach_to.empty()) {
    granted = NewLease(*control, options, environment);
  } else {
    granted = AttachLease(*control, {.lease = attach_to});
  }
  connection->DropLater(std::move(control));
  if (!granted.ok()) return granted.status();
  return DaemonLease::Open(std::move(connection), *granted, CallsOf(daemon.directory, granted->id));
}

}  // namespace lgpu
