#include "tests/support/lease_program.h"

#include <optional>
#include <utility>

#include "client/control/control_client.h"
#include "client/session/endpoint.h"
#include "lgpu/status.h"

namespace lgpu::testing {
namespace {

constexpr std::chrono::seconds kOfItsGuarantee{30};  // it is served at once

}  // namespace

absl::StatusOr<std::unique_ptr<DaemonConnection>> ConnectTo(const std::string& directory,
                                                            DaemonConnection::Options options) {
  options.directory = directory;
  options.reconnect_path = SessionSocketPath(directory);
  return DaemonConnection::Connect(std::move(options));
}

absl::StatusOr<LeaseProgram> LeaseProgram::Start(const std::string& directory, int gpu,
                                                 DaemonConnection::Options options,
                                                 wire::Preemptible preemptible) {
  LeaseProgram program;
  LGPU_ASSIGN_OR_RETURN(program.connection, ConnectTo(directory, std::move(options)));
  LGPU_ASSIGN_OR_RETURN(DaemonSocket daemon, FindDaemon({.directories = {directory}}));
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<ControlClient> control,
                        ControlClient::Create(std::move(daemon.control), directory));
  control->UseToken(program.connection->token());
  LGPU_ASSIGN_OR_RETURN(const wire::ListPhysicalDevicesResponse machine, ListPhysicalDevices(*control));
  wire::LogicalDeviceSpec spec;
  for (const wire::CardStats& card : machine.devices) {
    if (static_cast<int>(card.index) == gpu) spec.card_uuid = card.uuid;
  }
  spec.mode = wire::LogicalDeviceSpec::Mode::kGrowth;
  wire::CreateLeaseRequest request;
  request.devices.push_back(spec);
  request.preemptible = preemptible;
  LGPU_ASSIGN_OR_RETURN(const wire::Lease lease, CreateLease(*control, request));
  program.lease = lease.id;
  program.device = lease.devices.at(0).id;
  // None of its memory is idle.
  DaemonConnection& session = *program.connection;
  session.StartMaintenance([&session](Maintenance::TimePoint) {
    for (const TrimOrder& order : session.TakeTrims()) session.AnswerTrim(order.id, /*pending=*/false);
    return std::optional<Maintenance::TimePoint>();
  });
  return program;
}

absl::Status LeaseProgram::Grow(Bytes bytes, std::chrono::nanoseconds timeout) {
  LGPU_ASSIGN_OR_RETURN(DaemonConnection::GrowCall call,
                        connection->Grow(device, {.at_least = bytes, .wanted = bytes, .timeout = timeout}));
  for (bool more = true; more;) {
    LGPU_ASSIGN_OR_RETURN(const DaemonConnection::GrantPage page, call.Next());
    for (const DaemonConnection::GrantedChunk& granted : page.chunks) chunks.push_back(granted.chunk);
    more = page.more;
  }
  return absl::OkStatus();
}

absl::Status LeaseProgram::Free(std::size_t count) {
  const auto from = chunks.end() - static_cast<std::ptrdiff_t>(count);
  std::vector<ChunkId> freed;
  for (auto chunk = from; chunk != chunks.end(); ++chunk) freed.push_back(chunk->id);
  chunks.erase(from, chunks.end());
  return connection->Return(device, freed);
}

Bytes LeaseProgram::held() const {
  Bytes sum;
  for (const Chunk& chunk : chunks) sum += chunk.bytes;
  return sum;
}

absl::Status MovingProgram::Start(const std::string& directory, int gpu, wire::Preemptible preemptible) {
  DaemonConnection::Options options;
  options.suspends_itself = true;
  LGPU_ASSIGN_OR_RETURN(program_, LeaseProgram::Start(directory, gpu, std::move(options), preemptible));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<DaemonConnection::SuspendOfDaemon>> MovingProgram::Order(bool resume) {
  for (DaemonConnection::SuspendOfDaemon& order : program_.connection->TakeSuspends()) {
    orders_.push_back(std::move(order));
  }
  if (orders_.empty()) return std::nullopt;
  const DaemonConnection::SuspendOfDaemon next = std::move(orders_.front());
  orders_.pop_front();
  if (next.order.resume == resume) return next;
  return absl::InternalError(resume ? "lgpud suspends a program that is suspended"
                                    : "lgpud resumes a program that is not suspended");
}

absl::StatusOr<std::optional<MovingProgram::TimePoint>> MovingProgram::GiveWayIfTold() {
  LGPU_ASSIGN_OR_RETURN(const std::optional<DaemonConnection::SuspendOfDaemon> order, Order(false));
  if (!order) return std::nullopt;
  program_.connection->NoteHasSuspended(true);
  away_ = program_.held();
  const TimePoint began = std::chrono::steady_clock::now();
  LGPU_RETURN_IF_ERROR(program_.Free(program_.chunks.size()));
  DaemonConnection::Suspension moved;
  moved.needs = {{.device_id = program_.device, .bytes = away_.count()}};
  LGPU_RETURN_IF_ERROR(program_.connection->AnswerSuspend(*order, moved));
  return began;
}

absl::StatusOr<bool> MovingProgram::ComeBackIfTold() {
  LGPU_ASSIGN_OR_RETURN(const std::optional<DaemonConnection::SuspendOfDaemon> order, Order(true));
  if (!order) return false;
  LGPU_RETURN_IF_ERROR(program_.Grow(away_, kOfItsGuarantee));
  program_.connection->NoteHasSuspended(false);
  LGPU_RETURN_IF_ERROR(program_.connection->AnswerSuspend(*order, {}));
  return true;
}

}  // namespace lgpu::testing
