#include "cli/commands/inspect.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/connection.h"
#include "cli/event_lines.h"
#include "cli/lease_names.h"
#include "cli/ls_tables.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

constexpr std::size_t kShownEvents = 10;

/// Null: none. INVALID_ARGUMENT: the start of several UUIDs.
absl::StatusOr<const v1::CardStats*> FindCard(const v1::StatsSnapshot& snapshot, const std::string& name) {
  std::vector<const v1::CardStats*> begin;
  for (const v1::CardStats& card : snapshot.cards()) {
    if (absl::StrCat(card.index()) == name || card.pci_bus_id() == name || card.uuid() == name) return &card;
    if (name.size() >= 5 && absl::StartsWith(card.uuid(), name)) begin.push_back(&card);
  }
  if (begin.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("\"", Printable(name), "\" is the start of ", begin.size(),
                                                   " UUIDs\ntry: the index of the GPU (lgpu ls)"));
  }
  return begin.empty() ? nullptr : begin.front();
}

class InspectCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("inspect", "Show everything about one lease or one GPU");
    verb->add_option("what", what_, "Name or id of a lease, or index or UUID of a GPU")
        ->required()
        ->type_name("LEASE|GPU");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    LGPU_ASSIGN_OR_RETURN(const v1::StatsSnapshot snapshot,
                          connection.Call(kGetStats, v1::GetStatsRequest()));
    LGPU_ASSIGN_OR_RETURN(const v1::LeaseStats* const lease, FindLease(snapshot, what_, ::getuid()));
    if (lease != nullptr) {
      LGPU_RETURN_IF_ERROR(ShowLease(connection, snapshot, *lease, options));
      return kExitOk;
    }
    LGPU_ASSIGN_OR_RETURN(const v1::CardStats* const card, FindCard(snapshot, what_));
    if (card != nullptr) {
      LGPU_RETURN_IF_ERROR(
          WriteOut(options.json ? JsonLine(ToJson(*card)) : FormatCard(*card, snapshot, options.out)));
      return kExitOk;
    }
    return absl::NotFoundError(absl::StrCat("there is no lease of yours and no GPU \"", Printable(what_),
                                            "\"\ntry: lgpu ls shows both"));
  }

 private:
  static absl::Status ShowLease(Connection& connection, const v1::StatsSnapshot& snapshot,
                                const v1::LeaseStats& lease, const CommonOptions& options) {
    v1::WatchEventsRequest request;
    request.set_lease(lease.id());
    request.set_kept_only(true);
    std::vector<v1::Event> events;
    LGPU_RETURN_IF_ERROR((connection.Watch(kWatchEvents, request, [&](const v1::Event& event) {
      events.push_back(event);
      return absl::OkStatus();
    })));
    if (events.size() > kShownEvents) events.erase(events.begin(), events.end() - kShownEvents);
    if (options.json) {
      nlohmann::json json = ToJson(lease);
      json["events"] = nlohmann::json::array();
      for (const v1::Event& event : events) json["events"].push_back(ToJson(event));
      return WriteOut(JsonLine(json));
    }
    std::string text = FormatLease(lease, snapshot, options.out);
    if (!events.empty()) absl::StrAppend(&text, "\nLast events:\n");
    for (const v1::Event& event : events) absl::StrAppend(&text, FormatEvent(event));
    return WriteOut(text);
  }

  std::string what_;
};

}  // namespace

std::unique_ptr<Command> MakeInspectCommand() { return std::make_unique<InspectCommand>(); }

}  // namespace lgpu::cli
