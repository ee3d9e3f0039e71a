#include "cli/commands/rm.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/connection.h"
#include "cli/lease_names.h"
#include "lgpu/bytes.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class RmCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("rm", "End leases; their programs lose their memory rights");
    verb->add_option("lease", leases_, "Names or ids of leases")->type_name("LEASE");
    verb->add_option("--request-id", request_id_, "In place of LEASE: the one that create made with this ID")
        ->type_name("ID");
    verb->add_flag("--if-exists", if_exists_, "A lease that is not there is as good as removed");
    verb->add_flag("--wait{forever}", wait_, "Until the memory of the leases is back (for so long)")
        ->type_name("DUR");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    if (leases_.empty() == request_id_.empty()) {
      return absl::InvalidArgumentError(
          "rm needs leases or a request\ntry: lgpu rm LEASE, or --request-id ID");
    }
    if (!wait_.empty() && wait_ != "forever") {
      LGPU_ASSIGN_OR_RETURN(const std::chrono::milliseconds patience, ParseDuration(wait_));
      deadline_ = Clock::now() + patience;
    }
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    std::vector<std::pair<std::string, v1::RemoveLeaseRequest>> wanted;
    for (const std::string& lease : leases_) {
      wanted.emplace_back(lease, v1::RemoveLeaseRequest()).second.set_lease(lease);
    }
    if (!request_id_.empty()) {
      wanted.emplace_back(request_id_, v1::RemoveLeaseRequest()).second.set_request_id(request_id_);
    }
    int code = kExitOk;
    for (const auto& [name, request] : wanted) {
      const absl::StatusOr<std::string> done = Remove(connection, name, request);
      if (!done.ok()) {
        options.Report(done.status(), ExitCode(done.status()));
        if (code == kExitOk) code = ExitCode(done.status());
      } else if (options.json) {
        LGPU_RETURN_IF_ERROR(WriteOut(JsonLine({{"schema", "lgpu.removed/v1"}, {"lease", name}})));
      } else {
        options.Note("lgpu: " + *done);
      }
    }
    return code;
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// What was done, for people.
  absl::StatusOr<std::string> Remove(Connection& connection, const std::string& name,
                                     const v1::RemoveLeaseRequest& request) {
    // A name finds one that ends already here alone, and its memory may not be back.
    std::string id;
    if (!wait_.empty() && !request.lease().empty()) {
      LGPU_ASSIGN_OR_RETURN(id, FindId(connection, request.lease()));
    }
    const absl::StatusOr<v1::RemoveLeaseResponse> removed = connection.Call(kRemoveLease, request);
    const bool ends_already = absl::IsNotFound(removed.status()) && !id.empty();
    if (absl::IsNotFound(removed.status()) && !ends_already && if_exists_) {
      return absl::StrCat("there is no lease ", Printable(name));
    }
    if (!ends_already) LGPU_RETURN_IF_ERROR(removed.status());
    if (id.empty() && !wait_.empty()) id = removed->lease_id();
    if (!id.empty()) LGPU_RETURN_IF_ERROR(AwaitEnd(connection, id));
    return absl::StrCat("lease ", Printable(name), " is removed");
  }

  /// Empty: there is none.
  static absl::StatusOr<std::string> FindId(Connection& connection, const std::string& name) {
    LGPU_ASSIGN_OR_RETURN(const v1::StatsSnapshot snapshot,
                          connection.Call(kGetStats, v1::GetStatsRequest()));
    LGPU_ASSIGN_OR_RETURN(const v1::LeaseStats* const lease, FindLease(snapshot, name, ::getuid()));
    return lease == nullptr ? "" : lease->id();
  }

  absl::Status AwaitEnd(Connection& connection, const std::string& id) const {
    constexpr std::chrono::milliseconds kPause{100};
    while (true) {
      LGPU_ASSIGN_OR_RETURN(const v1::StatsSnapshot snapshot,
                            connection.Call(kGetStats, v1::GetStatsRequest()));
      const auto lease = std::find_if(snapshot.leases().begin(), snapshot.leases().end(),
                                      [&id](const v1::LeaseStats& each) { return each.id() == id; });
      if (lease == snapshot.leases().end()) return absl::OkStatus();
      if (deadline_ && Clock::now() >= *deadline_) {
        std::uint64_t held = 0;
        for (const v1::LogicalDeviceStats& device : lease->devices()) held += device.held_bytes();
        return absl::ResourceExhaustedError(
            absl::StrCat("lease ", Printable(lease->name()), " is removed, and ", FormatBytes(Bytes(held)),
                         " are not back yet: ", lease->sessions_size(),
                         " of its processes have not ended\ntry: lgpu ps, or a longer --wait"));
      }
      std::this_thread::sleep_for(kPause);
    }
  }

  std::vector<std::string> leases_;
  std::string request_id_;
  bool if_exists_ = false;
  std::string wait_;
  std::optional<Clock::time_point> deadline_;
};

}  // namespace

std::unique_ptr<Command> MakeRmCommand() { return std::make_unique<RmCommand>(); }

}  // namespace lgpu::cli
