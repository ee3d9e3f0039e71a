#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/placement_tables.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class PlacementsCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb =
        app.add_subcommand("placements", "Show on which device every op of a lease ran, and what was copied");
    verb->add_option("lease", lease_, "Name or id of the lease")->required()->type_name("LEASE");
    auto* follow = verb->add_flag("-f,--follow", follow_,
                                  "Print every op and copy, the kept ones and then new ones as they run");
    verb->add_option("--records", records_,
                     "How many of the last ops and copies to list, 0: all that are kept")
        ->type_name("N")
        ->default_val(20)
        ->excludes(follow);
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    v1::GetPlacementsRequest request;
    request.set_lease(lease_);
    if (follow_) {
      const auto print = [&](const v1::PlacementRecord& record) {
        return WriteOut(options.json ? JsonLine(ToJson(record)) : FormatRecord(record) + "\n");
      };
      LGPU_RETURN_IF_ERROR((connection.Follow(kWatchPlacements, request, print)));
      return kExitOk;
    }
    request.set_max_records(records_);
    LGPU_ASSIGN_OR_RETURN(const v1::PlacementReport report, connection.Call(kGetPlacements, request));
    LGPU_RETURN_IF_ERROR(
        WriteOut(options.json ? JsonLine(ToJson(report)) : FormatReport(report, options.out)));
    return kExitOk;
  }

 private:
  std::string lease_;
  bool follow_ = false;
  std::uint32_t records_ = 20;
};

}  // namespace

std::unique_ptr<Command> MakePlacementsCommand() { return std::make_unique<PlacementsCommand>(); }

VerbPage PlacementsPage() {
  return {.description = "Shows on which device the ops of a lease ran, as the daemon recorded them.",
          .examples = {{"lgpu placements train --follow", "every op, as it runs"}}};
}

}  // namespace lgpu::cli
