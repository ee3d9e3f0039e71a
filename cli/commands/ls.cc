#include "cli/commands/ls.h"

#include <CLI/CLI.hpp>
#include <string>
#include <utility>

#include "base/exit_codes.h"
#include "cli/connection.h"
#include "cli/ls_tables.h"
#include "cli/query.h"
#include "cli/repeat.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class LsCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("ls", "Show the GPUs and the leases with their logical devices");
    filter_.AddTo(*verb);
    auto* by_user =
        verb->add_flag("--by-user", by_user_, "A row for every user instead, with sums over his leases");
    repeat_.AddTo(*verb);
    query_.AddTo(*verb, DeviceKeys())->excludes(by_user);
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    LGPU_RETURN_IF_ERROR(query_.CheckAlone(options.json));
    if (query_.wanted()) LGPU_RETURN_IF_ERROR(QueryDevices(query_, {}).status());  // wrong keys
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    LGPU_RETURN_IF_ERROR(repeat_.Run([&] { return Print(connection, options); }));
    return kExitOk;
  }

 private:
  absl::Status Print(Connection& connection, const CommonOptions& options) {
    LGPU_ASSIGN_OR_RETURN(v1::StatsSnapshot all, connection.Call(kGetStats, v1::GetStatsRequest()));
    // Later on a lease may well have ended.
    if (!std::exchange(checked_, true)) LGPU_RETURN_IF_ERROR(filter_.Check(all));
    const v1::StatsSnapshot snapshot = filter_.Apply(std::move(all));
    if (by_user_) {
      return WriteOut(options.json ? JsonLine(UsersToJson(snapshot)) : FormatUsers(snapshot, options.out));
    }
    if (options.json) return WriteOut(JsonLine(ToJson(snapshot)));
    if (!query_.wanted()) return WriteOut(FormatSnapshot(snapshot, options.out));
    LGPU_ASSIGN_OR_RETURN(const std::string csv, QueryDevices(query_, snapshot));
    return WriteOut(csv);
  }

  FilterFlags filter_;
  RepeatFlags repeat_;
  QueryFlags query_;
  bool by_user_ = false;
  bool checked_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeLsCommand() { return std::make_unique<LsCommand>(); }

}  // namespace lgpu::cli
