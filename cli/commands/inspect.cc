#include <langinfo.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <clocale>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/event_lines.h"
#include "cli/lease_names.h"
#include "cli/ls_tables.h"
#include "cli/memory_map_text.h"
#include "cli/snapshot_record.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

constexpr std::size_t kShownEvents = 10;
constexpr std::size_t kMapColumns = 80;
// A stopped program holds inspect up this long at most.
constexpr std::int64_t kMostMapWaitMs = 1000;

/// Whether the terminal shows UTF-8, as its locale says.
bool IsUtf8Terminal() {
  std::setlocale(LC_CTYPE, "");
  return std::string_view(::nl_langinfo(CODESET)) == "UTF-8";
}

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
    verb->add_option("lease-or-gpu", what_, "Name or id of a lease, or index or UUID of a GPU")
        ->required()
        ->type_name("LEASE|GPU");
    verb->add_flag("--ascii", ascii_, "Draw the memory maps with ASCII characters only");
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
  absl::Status ShowLease(Connection& connection, const v1::StatsSnapshot& snapshot,
                         const v1::LeaseStats& lease, const CommonOptions& options) const {
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
    std::string text =
        absl::StrCat(FormatLease(lease, snapshot, options.out), MapsOf(connection, lease, options));
    if (!events.empty()) absl::StrAppend(&text, "\nLast events:\n");
    for (const v1::Event& event : events) absl::StrAppend(&text, FormatEvent(event));
    return WriteOut(text);
  }

  /// The maps of the lease's programs, or a line with the reason why there are none.
  std::string MapsOf(Connection& connection, const v1::LeaseStats& lease,
                     const CommonOptions& options) const {
    if (lease.sessions().empty()) return "";
    v1::GetMemorySnapshotRequest request;
    request.set_lease(lease.id());
    request.set_wait_ms(
        static_cast<std::uint64_t>(std::clamp<std::int64_t>(options.timeout.count() / 2, 1, kMostMapWaitMs)));
    const absl::StatusOr<SnapshotRecord> record = FetchSnapshot(connection, request);
    if (!record.ok()) {
      const std::string why(record.status().message());
      return absl::StrCat("\nNo memory map: ", Printable(why.substr(0, why.find('\n'))), "\n");
    }
    const std::size_t columns =
        options.out.width == 0 ? kMapColumns : std::min(options.out.width, kMapColumns);
    return FormatMemoryMaps(*record, columns, ascii_ || !IsUtf8Terminal());
  }

  std::string what_;
  bool ascii_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeInspectCommand() { return std::make_unique<InspectCommand>(); }

VerbPage InspectPage() {
  return {
      .description = "Shows one lease with its devices, processes, last events and memory maps, or one GPU.",
      .examples = {{"lgpu inspect train", "a lease"}, {"lgpu inspect 0", "GPU 0"}}};
}

}  // namespace lgpu::cli
