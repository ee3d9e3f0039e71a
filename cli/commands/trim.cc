#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/output.h"
#include "lgpu/bytes.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

/// "2 answered, 1 busy, 1 without an answer (pid 12)"
std::string Answers(const v1::LeaseTrim& trim) {
  std::map<v1::LeaseTrim::Answer, std::vector<std::string>> pids;
  for (const v1::LeaseTrim::Session& session : trim.sessions()) {
    pids[session.answer()].push_back(absl::StrCat(session.pid()));
  }
  std::vector<std::string> parts;
  for (const auto& [answer, of] : pids) {
    const char* const what = answer == v1::LeaseTrim::ANSWER_DONE   ? " answered"
                             : answer == v1::LeaseTrim::ANSWER_BUSY ? " busy"
                             : answer == v1::LeaseTrim::ANSWER_NONE ? " without an answer"
                                                                    : " not asked";
    parts.push_back(absl::StrCat(of.size(), what));
    if (answer == v1::LeaseTrim::ANSWER_NONE) absl::StrAppend(&parts.back(), " (pid ", of.front(), ")");
  }
  return absl::StrJoin(parts, ", ");
}

/// A row for each lease.
std::string FormatTrims(const std::vector<v1::LeaseTrim>& trims, const Style& style) {
  Table table({{"LEASE"},
               {"OWNER"},
               {"RETURNED", Table::Align::kRight},
               {"HELD", Table::Align::kRight},
               {"PROCESSES"}});
  for (const v1::LeaseTrim& trim : trims) {
    table.AddRow({Printable(trim.lease_name()), Printable(trim.owner()),
                  FormatBytes(Bytes(trim.returned_bytes())), FormatBytes(Bytes(trim.held_bytes())),
                  Answers(trim)});
  }
  return table.empty() ? "No lease was asked.\n" : table.Format(style);
}

class TrimCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("trim", "Ask the programs of leases to give back idle memory");
    verb->add_option("lease", leases_, "Names or ids of leases; default: all that you see (lgpu ls)")
        ->type_name("LEASE");
    verb->add_option("--idle-for", idle_for_,
                     "Only leases that have been idle for this long; leases whose idle time is unknown are "
                     "left out")
        ->type_name("DUR");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    v1::TrimLeasesRequest request;
    for (const std::string& lease : leases_) request.add_leases(lease);
    if (!idle_for_.empty()) {
      const absl::StatusOr<std::chrono::milliseconds> idle = ParseDuration(idle_for_);
      if (!idle.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("--idle-for: ", std::string(idle.status().message())));
      }
      request.set_idle_ms(static_cast<std::uint64_t>(idle->count()));
    }
    request.set_wait_ms(static_cast<std::uint64_t>(options.timeout.count()));
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    std::vector<v1::LeaseTrim> trims;
    // The daemon answers at the end of the wait at the latest; the rest is for the answer's way.
    const auto each = [&](const v1::LeaseTrim& trim) {
      trims.push_back(trim);
      return options.json ? WriteOut(JsonLine(ToJson(trim))) : absl::OkStatus();
    };
    LGPU_RETURN_IF_ERROR(connection.Await(kTrimLeases, request, options.timeout, each, {}));
    if (!options.json) LGPU_RETURN_IF_ERROR(WriteOut(FormatTrims(trims, options.out)));
    for (const v1::LeaseTrim& trim : trims) NoteSilent(trim, options);
    return kExitOk;
  }

 private:
  static void NoteSilent(const v1::LeaseTrim& trim, const CommonOptions& options) {
    for (const v1::LeaseTrim::Session& session : trim.sessions()) {
      if (session.answer() != v1::LeaseTrim::ANSWER_NONE) continue;
      options.Note(absl::StrCat("lgpu: note: ", Printable(session.command()), " (pid ", session.pid(),
                                ") of lease ", Printable(trim.lease_name()),
                                " did not answer in time: it is stopped or blocked, and keeps its memory"));
    }
  }

  std::vector<std::string> leases_;
  std::string idle_for_;
};

}  // namespace

std::unique_ptr<Command> MakeTrimCommand() { return std::make_unique<TrimCommand>(); }

VerbPage TrimPage() {
  return {.description =
              "Asks the programs of leases to give back memory that no tensor of theirs uses, and says for "
              "each lease how much came back. Programs have the time of --timeout to answer; a program that "
              "does not answer is named on stderr and keeps its memory. Preallocated devices keep their "
              "memory. Programs also give idle memory back by themselves: when a request is short of memory, "
              "and after some seconds.",
          .examples = {{"lgpu trim train", "one lease"},
                       {"lgpu trim --idle-for 10m",
                        "all leases that you see and that ran no op and made no copy for 10 minutes"}}};
}

}  // namespace lgpu::cli
