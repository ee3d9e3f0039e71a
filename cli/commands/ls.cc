#include "cli/commands/ls.h"

#include <CLI/CLI.hpp>
#include <string>

#include "cli/connection.h"
#include "cli/ls_tables.h"
#include "cli/query.h"
#include "cli/repeat.h"
#include "lgpu/status.h"
#include "proto/exit_codes.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class LsCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("ls", "Show the GPUs and the leases with their logical devices");
    filter_.AddTo(*verb);
    repeat_.AddTo(*verb);
    query_.AddTo(*verb, DeviceKeys());
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    if (query_.wanted()) LGPU_RETURN_IF_ERROR(QueryDevices(query_, {}).status());  // wrong keys
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    LGPU_RETURN_IF_ERROR(repeat_.Run([&] { return Print(connection, options); }));
    return kExitOk;
  }

 private:
  absl::Status Print(Connection& connection, const CommonOptions& options) const {
    LGPU_ASSIGN_OR_RETURN(v1::StatsSnapshot all,
                          connection.Call(&v1::Control::Stub::GetStats, v1::GetStatsRequest()));
    const v1::StatsSnapshot snapshot = filter_.Apply(std::move(all));
    if (options.json) return WriteOut(JsonLine(ToJson(snapshot)));
    if (!query_.wanted()) return WriteOut(FormatSnapshot(snapshot, options.out));
    LGPU_ASSIGN_OR_RETURN(const std::string csv, QueryDevices(query_, snapshot));
    return WriteOut(csv);
  }

  FilterFlags filter_;
  RepeatFlags repeat_;
  QueryFlags query_;
};

}  // namespace

std::unique_ptr<Command> MakeLsCommand() { return std::make_unique<LsCommand>(); }

}  // namespace lgpu::cli
