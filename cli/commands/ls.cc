#include "cli/commands/ls.h"

#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/connection.h"
#include "cli/json.h"
#include "cli/ls_tables.h"
#include "lgpu/status.h"
#include "proto/exit_codes.h"

namespace lgpu::cli {
namespace {

class LsCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    return app.add_subcommand("ls", "Show the GPUs and the leases with their logical devices");
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    LGPU_ASSIGN_OR_RETURN(v1::StatsSnapshot snapshot,
                          connection.Call(&v1::Control::Stub::GetStats, v1::GetStatsRequest()));
    LGPU_RETURN_IF_ERROR(
        WriteOut(options.json ? Line(ToJson(snapshot)) : FormatSnapshot(snapshot, options.out)));
    return kExitOk;
  }
};

}  // namespace

std::unique_ptr<Command> MakeLsCommand() { return std::make_unique<LsCommand>(); }

}  // namespace lgpu::cli
