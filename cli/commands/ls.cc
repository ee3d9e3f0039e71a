#include <unistd.h>

#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/commands/commands.h"
#include "cli/ls_tables.h"
#include "cli/query.h"
#include "cli/stats_command.h"
#include "cli/users_table.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class LsCommand final : public StatsCommand {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("ls", "Show the GPUs and the leases with their logical devices");
    filter().AddTo(*verb);
    auto* by_user =
        verb->add_flag("--by-user", by_user_, "A row for every user instead, with sums over their leases");
    repeat().AddTo(*verb);
    auto* watch = verb->add_flag("-w,--watch", watch_, "Redraw the screen every 2 s, or every --interval");
    query().AddTo(*verb, DeviceKeys())->excludes(by_user)->excludes(watch);
    return verb;
  }

 private:
  absl::Status CheckFlags(const CommonOptions& options) override {
    if (!watch_) return absl::OkStatus();
    if (options.json || ::isatty(STDOUT_FILENO) == 0) {
      return absl::InvalidArgumentError(
          "--watch redraws a terminal: stdout must be one, and --json is not allowed\ntry: --interval 2");
    }
    if (repeat().interval.empty()) repeat().interval = "2";
    return absl::OkStatus();
  }

  nlohmann::json Json(const v1::StatsSnapshot& snapshot) const override {
    return by_user_ ? UsersToJson(snapshot) : ToJson(snapshot);
  }

  std::string Tables(const v1::StatsSnapshot& snapshot, const Style& style) const override {
    if (by_user_) return FormatUsers(snapshot, style);
    return FormatSnapshot(snapshot, style, {.uid = ::getuid(), .filtered = filter().wanted()});
  }

  absl::StatusOr<std::string> Rows(const QueryFlags& query,
                                   const v1::StatsSnapshot& snapshot) const override {
    return QueryDevices(query, filter().wanted() ? WithoutOtherCards(snapshot) : snapshot);
  }

  /// With --watch in place of the tables before, without a blank screen in between.
  absl::Status Show(const std::string& tables) const override {
    if (!watch_) return WriteOut(tables);
    constexpr char kHome[] = "\033[H";
    constexpr char kClearLine[] = "\033[K\n";
    constexpr char kClearBelow[] = "\033[J";
    return WriteOut(absl::StrCat(kHome, absl::StrReplaceAll(tables, {{"\n", kClearLine}}), kClearBelow));
  }

  bool by_user_ = false;
  bool watch_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeLsCommand() { return std::make_unique<LsCommand>(); }

VerbPage LsPage() {
  return {.description =
              "Shows the GPUs, then a row for every logical device. A lease is shown by its name, one of "
              "another user as OWNER/NAME, a long name by its id: rm, resize and inspect take these words. "
              "The row (others) shows the memory of leases that you may not see. Columns that do not fit "
              "into the terminal are left out; -v shows all.",
          .examples = {{"lgpu ls --watch", "redraw every 2 seconds"},
                       {"lgpu ls --by-user", "sums over the leases of every user"},
                       {"lgpu ls --query lease,held,limit --format=csv,nounits", "for scripts"}}};
}

}  // namespace lgpu::cli
