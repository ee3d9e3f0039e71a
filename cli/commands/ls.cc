#include "cli/commands/ls.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
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
        verb->add_flag("--by-user", by_user_, "A row for every user instead, with sums over their leases");
    repeat_.AddTo(*verb);
    watch_flag_ = verb->add_flag("-w,--watch", watch_, "Redraw the screen every 2 s, or every --interval");
    query_.AddTo(*verb, DeviceKeys())->excludes(by_user)->excludes(watch_flag_);
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    LGPU_RETURN_IF_ERROR(query_.CheckAlone(options.json));
    LGPU_RETURN_IF_ERROR(CheckWatch(options));
    if (query_.wanted()) LGPU_RETURN_IF_ERROR(QueryDevices(query_, {}).status());  // wrong keys
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    LGPU_RETURN_IF_ERROR(repeat_.Run([&] { return Print(connection, options); }));
    return kExitOk;
  }

 private:
  absl::Status CheckWatch(const CommonOptions& options) {
    if (!watch_) return absl::OkStatus();
    if (options.json || ::isatty(STDOUT_FILENO) == 0) {
      return absl::InvalidArgumentError(
          "--watch redraws a terminal, and stdout is none or JSON goes there\ntry: --interval 2");
    }
    if (repeat_.interval.empty()) repeat_.interval = "2";
    return absl::OkStatus();
  }

  /// With --watch in place of what was shown before, without a blank screen in between.
  absl::Status Show(const std::string& text) const {
    if (!watch_) return WriteOut(text);
    constexpr char kHome[] = "\033[H";
    constexpr char kClearLine[] = "\033[K\n";
    constexpr char kClearBelow[] = "\033[J";
    return WriteOut(absl::StrCat(kHome, absl::StrReplaceAll(text, {{"\n", kClearLine}}), kClearBelow));
  }

  absl::Status Print(Connection& connection, const CommonOptions& options) {
    LGPU_ASSIGN_OR_RETURN(v1::StatsSnapshot all, connection.Call(kGetStats, v1::GetStatsRequest()));
    // Later on a lease may well have ended.
    if (!std::exchange(checked_, true)) LGPU_RETURN_IF_ERROR(filter_.Check(all));
    const v1::StatsSnapshot snapshot = filter_.Apply(std::move(all));
    if (options.json) return WriteOut(JsonLine(by_user_ ? UsersToJson(snapshot) : ToJson(snapshot)));
    if (by_user_) return Show(FormatUsers(snapshot, options.out));
    if (!query_.wanted()) {
      return Show(FormatSnapshot(snapshot, options.out, {.uid = ::getuid(), .filtered = filter_.wanted()}));
    }
    LGPU_ASSIGN_OR_RETURN(const std::string csv,
                          QueryDevices(query_, filter_.wanted() ? WithoutOtherCards(snapshot) : snapshot));
    return WriteOut(csv);
  }

  FilterFlags filter_;
  RepeatFlags repeat_;
  QueryFlags query_;
  bool by_user_ = false;
  bool watch_ = false;
  CLI::Option* watch_flag_ = nullptr;
  bool checked_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeLsCommand() { return std::make_unique<LsCommand>(); }

}  // namespace lgpu::cli
