#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/event_lines.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class EventsCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("events", "Show what happened in the daemon");
    verb->add_flag("-f,--follow", follow_, "Go on with new events as they happen");
    verb->add_option("--lease", lease_, "Only events of this lease")->type_name("LEASE");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    if (!lease_.empty()) LGPU_RETURN_IF_ERROR(FindLease(connection));
    v1::WatchEventsRequest request;
    request.set_lease(lease_);
    request.set_kept_only(!follow_);
    const auto print = [&](const v1::Event& event) {
      return WriteOut(options.json ? JsonLine(ToJson(event)) : FormatEvent(event));
    };
    const auto method = kWatchEvents;
    if (follow_) {
      LGPU_RETURN_IF_ERROR((connection.Follow(method, request, print)));
      return kExitOk;
    }
    // Read all events before printing: a pager may read slower than lgpud keeps an unread answer.
    std::vector<v1::Event> kept;
    const auto keep = [&kept](const v1::Event& event) {
      kept.push_back(event);
      return absl::OkStatus();
    };
    LGPU_RETURN_IF_ERROR((connection.Watch(method, request, keep)));
    for (const v1::Event& event : kept) LGPU_RETURN_IF_ERROR(print(event));
    return kExitOk;
  }

 private:
  /// NOT_FOUND for a lease that is not here, unless events of it are kept.
  absl::Status FindLease(Connection& connection) {
    v1::GetLeaseRequest get;
    get.set_lease(lease_);
    const absl::StatusOr<v1::Lease> lease = connection.Call(kGetLease, get);
    // Events know leases by id and name, not by OWNER/NAME.
    if (lease.ok() && lease->name() != lease_) lease_ = lease->id();
    const absl::Status there = lease.status();
    if (!absl::IsNotFound(there)) return there;
    v1::WatchEventsRequest kept;
    kept.set_lease(lease_);
    kept.set_kept_only(true);
    bool any = false;
    const auto count = [&any](const v1::Event&) {
      any = true;
      return absl::OkStatus();
    };
    LGPU_RETURN_IF_ERROR((connection.Watch(kWatchEvents, kept, count)));
    return any ? absl::OkStatus() : there;
  }

  bool follow_ = false;
  std::string lease_;
};

}  // namespace

std::unique_ptr<Command> MakeEventsCommand() { return std::make_unique<EventsCommand>(); }

VerbPage EventsPage() {
  return {.description = "Shows what happened in the daemon: leases made and ended, sessions, refusals.",
          .examples = {{"lgpu events -f --lease train", "follow one lease"}}};
}

}  // namespace lgpu::cli
