#include "cli/verification.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/driver_shim.h"
#include "cli/helper_process.h"
#include "lgpu/bytes.h"
#include "lgpu/refusal.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

// Filling a large card takes a while.
constexpr std::chrono::minutes kFillPatience{5};

std::string Size(std::uint64_t bytes) { return FormatBytes(Bytes(bytes)); }

absl::StatusOr<v1::LeaseStats> FindStats(Connection& connection, const std::string& lease_id) {
  LGPU_ASSIGN_OR_RETURN(const v1::StatsSnapshot snapshot, connection.Call(kGetStats, v1::GetStatsRequest()));
  for (const v1::LeaseStats& lease : snapshot.leases()) {
    if (lease.id() == lease_id) return lease;
  }
  return absl::NotFoundError(absl::StrCat("lease ", lease_id, " has ended meanwhile"));
}

/// Asks the daemon itself for one chunk more than the device may hold. The result is its answer, in words; a
/// grant adds a problem.
absl::StatusOr<std::string> AskPastTheLibrary(Connection& connection, const v1::Lease& lease,
                                              const v1::LogicalDevice& device, const CommonOptions& options,
                                              DeviceVerdict& verdict) {
  LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<DaemonConnection> session,
                        OpenSession(connection.runtime_dir(), "lgpu verify", options.timeout));
  LGPU_ASSIGN_OR_RETURN(Connection attached, Connection::Open(options));
  attached.SetSessionToken(session->token());
  v1::AttachLeaseRequest request;
  request.set_lease(lease.id());
  LGPU_RETURN_IF_ERROR(attached.Call(kAttachLease, request).status());
  const Bytes chunk(device.granularity_bytes());
  // A limit that is too small for any block leaves room in its last chunk, which the second session asks for
  // too.
  const Bytes room = SaturatingSub(RoundUp(Bytes(verdict.daemon_limit_bytes), chunk),
                                   RoundUp(Bytes(verdict.daemon_held_bytes), chunk));
  const Bytes asked = room + chunk;
  LGPU_ASSIGN_OR_RETURN(DaemonConnection::GrowCall call,
                        session->Grow(device.id(), {.at_least = asked, .wanted = asked}));
  const absl::Status answer = call.Next().status();
  session->Close().IgnoreError();  // which returns the grant
  const std::optional<Refusal> refusal = GetRefusal(answer);
  if (answer.ok()) {
    verdict.problems.push_back(
        absl::StrCat("the daemon granted ", FormatBytes(asked), " more to a second session"));
    return std::string("nothing");
  }
  if (!refusal || refusal->reason != RefusalReason::kLimit) {
    verdict.problems.push_back(absl::StrCat("the daemon refused ", FormatBytes(asked),
                                            " more, but not for the limit: ", std::string(answer.message())));
  }
  return absl::StrCat("the daemon: it refused ", FormatBytes(asked),
                      " more to a second session of the lease");
}

void Compare(const nlohmann::json& filled, pid_t helper, const v1::LeaseStats& stats,
             DeviceVerdict& verdict) {
  const auto device = std::find_if(stats.devices().begin(), stats.devices().end(),
                                   [&](const auto& entry) { return entry.name() == verdict.device; });
  if (device == stats.devices().end()) {
    verdict.problems.push_back("the daemon does not know this device");
    return;
  }
  verdict.daemon_limit_bytes = device->limit_bytes();
  verdict.daemon_held_bytes = device->held_bytes();
  verdict.daemon_used_bytes = device->used_bytes();
  const auto differ = [&](const char* what, std::uint64_t seen, std::uint64_t told) {
    if (seen == told) return;
    verdict.problems.push_back(
        absl::StrCat("the program ", what, " ", Size(seen), ", the daemon says ", Size(told)));
  };
  differ("has a limit of", verdict.total_bytes, device->limit_bytes());
  // Memory of the lease's other sessions counts against the same limit.
  std::uint64_t mine = 0;
  std::uint64_t others = 0;
  for (const v1::SessionStats& session : stats.sessions()) {
    (session.pid() == helper ? mine : others) += session.held_bytes();
  }
  if (others == 0) {
    differ("uses", filled.value("used_bytes", std::uint64_t{0}), device->used_bytes());
    if (stats.devices_size() == 1) differ("holds", filled.value("held_bytes", std::uint64_t{0}), mine);
  }
  if (device->held_bytes() > RoundUp(Bytes(device->limit_bytes()), Bytes(verdict.chunk_bytes)).count()) {
    verdict.problems.push_back(
        absl::StrCat(Size(device->held_bytes()), " are held, above the limit in whole chunks"));
  }
  if (device->used_bytes() > device->limit_bytes()) {
    verdict.problems.push_back(absl::StrCat(Size(device->used_bytes()), " are used, above the limit"));
  }
  if (verdict.allocatable_bytes + 512 < verdict.total_bytes && others == 0) {
    verdict.problems.push_back(
        absl::StrCat("only ", Size(verdict.allocatable_bytes), " of the limit could be had"));
  }
}

}  // namespace

bool Verification::holds() const {
  return !devices.empty() && std::all_of(devices.begin(), devices.end(), [](const DeviceVerdict& verdict) {
    return verdict.problems.empty();
  });
}

absl::StatusOr<Verification> VerifyLease(Connection& connection, const std::string& name,
                                         const CommonOptions& options) {
  v1::GetLeaseRequest request;
  request.set_lease(name);
  LGPU_ASSIGN_OR_RETURN(const v1::Lease lease, connection.Call(kGetLease, request));
  LGPU_ASSIGN_OR_RETURN(const v1::GetVersionResponse daemon,
                        connection.Call(kGetVersion, v1::GetVersionRequest()));
  LGPU_ASSIGN_OR_RETURN(HelperProcess helper,
                        HelperProcess::Start({"fill"}, {{"LGPU_LEASE", lease.id()},
                                                        {"LGPU_ENDPOINT", connection.runtime_dir()},
                                                        // All devices, in the lease's order.
                                                        {"CUDA_VISIBLE_DEVICES", CardUuids(lease)}}));
  Verification verification{.lease = lease.name()};
  for (const v1::LogicalDevice& device : lease.devices()) {
    LGPU_ASSIGN_OR_RETURN(const nlohmann::json filled, helper.Read(kFillPatience));
    if (filled.contains("error")) {
      return absl::FailedPreconditionError(
          absl::StrCat("the program that fills the lease failed: ", filled["error"].value("message", "")));
    }
    DeviceVerdict verdict{.device = filled.value("device", ""),
                          .total_bytes = filled.value("limit_bytes", std::uint64_t{0}),
                          .allocatable_bytes = filled.value("allocated_bytes", std::uint64_t{0}),
                          .blocks = filled.value("blocks", std::uint64_t{0}),
                          .refused_because = filled["refused"].value("reason", "unknown"),
                          .chunk_bytes = device.granularity_bytes()};
    LGPU_ASSIGN_OR_RETURN(const v1::LeaseStats stats, FindStats(connection, lease.id()));
    if (verdict.refused_because == "limit") {
      Compare(filled, helper.pid(), stats, verdict);
      LGPU_ASSIGN_OR_RETURN(const std::string who,
                            AskPastTheLibrary(connection, lease, device, options, verdict));
      verdict.enforced_by = absl::StrCat("lgpud ", daemon.version(), " (pid ", daemon.pid(), ", ",
                                         daemon.backend(), "), ", who);
    } else {
      verdict.problems.push_back(absl::StrCat("the limit could not be reached, it was refused for ",
                                              verdict.refused_because, " before"));
      verdict.enforced_by = std::string("-");
    }
    verification.devices.push_back(std::move(verdict));
    LGPU_RETURN_IF_ERROR(helper.Continue());
  }
  return verification;
}

std::string FormatVerification(const Verification& verification, const Style& style) {
  std::string text;
  for (const DeviceVerdict& verdict : verification.devices) {
    absl::StrAppend(&text, style.Bold(Printable(verdict.device)), "\n  total        ",
                    Size(verdict.total_bytes), ", the limit in lease ", Printable(verification.lease),
                    "\n  allocatable  ", Size(verdict.allocatable_bytes), " in ", verdict.blocks,
                    " blocks, then refused (", Printable(verdict.refused_because), ")\n  enforced by  ",
                    Printable(verdict.enforced_by), "\n  daemon says  limit ",
                    Size(verdict.daemon_limit_bytes), ", held ", Size(verdict.daemon_held_bytes), ", used ",
                    Size(verdict.daemon_used_bytes), verdict.problems.empty() ? ": agrees\n" : "\n");
    if (verdict.daemon_held_bytes > verdict.daemon_limit_bytes) {
      absl::StrAppend(&text, "  in chunks    memory comes in chunks of ", Size(verdict.chunk_bytes),
                      ": a limit of ", Size(verdict.daemon_limit_bytes), " may hold ",
                      Size(RoundUp(Bytes(verdict.daemon_limit_bytes), Bytes(verdict.chunk_bytes)).count()),
                      "; caps count whole chunks\n");
    }
    for (const std::string& problem : verdict.problems) {
      absl::StrAppend(&text, "  ", style.Red("problem"), "      ", Printable(problem), "\n");
    }
  }
  absl::StrAppend(&text, verification.holds()
                             ? "The limit holds. Programs that bypass lgpu are not limited.\n"
                             : "The limit does NOT hold, or could not be verified.\n");
  return text;
}

nlohmann::json ToJson(const Verification& verification) {
  nlohmann::json json = {{"schema", "lgpu.verification/v1"},
                         {"lease", verification.lease},
                         {"holds", verification.holds()},
                         {"devices", nlohmann::json::array()}};
  for (const DeviceVerdict& verdict : verification.devices) {
    json["devices"].push_back({{"device", verdict.device},
                               {"total_bytes", verdict.total_bytes},
                               {"allocatable_bytes", verdict.allocatable_bytes},
                               {"blocks", verdict.blocks},
                               {"refused_because", verdict.refused_because},
                               {"enforced_by", verdict.enforced_by},
                               {"chunk_bytes", verdict.chunk_bytes},
                               {"daemon",
                                {{"memory_limit_bytes", verdict.daemon_limit_bytes},
                                 {"held_bytes", verdict.daemon_held_bytes},
                                 {"used_bytes", verdict.daemon_used_bytes}}},
                               {"problems", verdict.problems}});
  }
  return json;
}

}  // namespace lgpu::cli
