#include <CLI/CLI.hpp>
#include <string>
#include <utility>

#include "cli/commands/commands.h"
#include "cli/ls_tables.h"
#include "cli/query.h"
#include "cli/stats_command.h"
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

class PsCommand final : public StatsCommand {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand(
        "ps", "Show the processes that are attached to leases, and other processes on the GPUs");
    filter().AddTo(*verb);
    repeat().AddTo(*verb);
    query().AddTo(*verb, SessionKeys());
    return verb;
  }

 private:
  nlohmann::json Json(const v1::StatsSnapshot& snapshot) const override { return SessionsToJson(snapshot); }

  std::string Tables(const v1::StatsSnapshot& snapshot, const Style& style) const override {
    return FormatSessions(snapshot, style);
  }

  absl::StatusOr<std::string> Rows(const QueryFlags& query,
                                   const v1::StatsSnapshot& snapshot) const override {
    return QuerySessions(query, snapshot);
  }
};

}  // namespace

std::unique_ptr<Command> MakePsCommand() { return std::make_unique<PsCommand>(); }

VerbPage PsPage() {
  return {.description =
              "Shows a row for every process that is attached to a lease, then the processes outside lgpu "
              "that use the GPUs, where the driver tells.",
          .examples = {{"lgpu ps --lease train", "the processes of one lease"}}};
}

}  // namespace lgpu::cli
