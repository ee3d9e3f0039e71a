#include "cli/commands/ps.h"

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

nlohmann::json SessionsToJson(const v1::StatsSnapshot& snapshot) {
  nlohmann::json json = {{"schema", "lgpu.sessions/v1"},
                         {"taken_at", FormatIso8601(snapshot.taken_at())},
                         {"sessions", nlohmann::json::array()}};
  for (const v1::LeaseStats& lease : snapshot.leases()) {
    for (const v1::SessionStats& session : lease.sessions()) {
      nlohmann::json entry = ToJson(session);
      entry["lease"] = {{"id", lease.id()}, {"name", lease.name()}};
      entry["user"] = lease.owner();
      json["sessions"].push_back(std::move(entry));
    }
  }
  json["foreign_processes"] = nlohmann::json::array();
  for (const v1::CardStats& card : snapshot.cards()) {
    const nlohmann::json its = ToJson(card);
    for (nlohmann::json process : its["foreign_processes"]) {
      process["gpu"] = card.index();
      json["foreign_processes"].push_back(std::move(process));
    }
  }
  return json;
}

class PsCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand(
        "ps", "Show the processes that are attached to leases, and other processes on the GPUs");
    filter_.AddTo(*verb);
    repeat_.AddTo(*verb);
    query_.AddTo(*verb, SessionKeys());
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    LGPU_RETURN_IF_ERROR(query_.CheckAlone(options.json));
    if (query_.wanted()) LGPU_RETURN_IF_ERROR(QuerySessions(query_, {}).status());  // wrong keys
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
    if (options.json) return WriteOut(JsonLine(SessionsToJson(snapshot)));
    if (!query_.wanted()) return WriteOut(FormatSessions(snapshot, options.out));
    LGPU_ASSIGN_OR_RETURN(const std::string csv, QuerySessions(query_, snapshot));
    return WriteOut(csv);
  }

  FilterFlags filter_;
  RepeatFlags repeat_;
  QueryFlags query_;
  bool checked_ = false;
};

}  // namespace

std::unique_ptr<Command> MakePsCommand() { return std::make_unique<PsCommand>(); }

}  // namespace lgpu::cli
