#include "cli/stats_command.h"

#include <utility>

#include "base/exit_codes.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {

absl::StatusOr<int> StatsCommand::Run(const CommonOptions& options) {
  LGPU_RETURN_IF_ERROR(query_.CheckAlone(options.json));
  LGPU_RETURN_IF_ERROR(CheckFlags(options));
  if (query_.wanted()) LGPU_RETURN_IF_ERROR(Rows(query_, {}).status());  // wrong keys
  LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
  LGPU_RETURN_IF_ERROR(repeat_.Run([&] { return Print(connection, options); }));
  return kExitOk;
}

absl::Status StatsCommand::CheckFlags(const CommonOptions&) { return absl::OkStatus(); }

absl::Status StatsCommand::Show(const std::string& tables) const { return WriteOut(tables); }

absl::Status StatsCommand::Print(Connection& connection, const CommonOptions& options) {
  LGPU_ASSIGN_OR_RETURN(v1::StatsSnapshot all, connection.Call(kGetStats, v1::GetStatsRequest()));
  if (!std::exchange(checked_, true)) LGPU_RETURN_IF_ERROR(filter_.Check(all));
  const v1::StatsSnapshot snapshot = filter_.Apply(std::move(all));
  if (options.json) return WriteOut(JsonLine(Json(snapshot)));
  if (!query_.wanted()) return Show(Tables(snapshot, options.out));
  LGPU_ASSIGN_OR_RETURN(const std::string csv, Rows(query_, snapshot));
  return WriteOut(csv);
}

}  // namespace lgpu::cli
