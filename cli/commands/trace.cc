#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/output_file.h"
#include "cli/trace_format.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

using TraceClock = std::chrono::steady_clock;

// Between two samples of the memory.
constexpr std::chrono::milliseconds kSampleInterval{100};

class TraceCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand(
        "trace", "Write the ops and copies of a lease and its memory as a trace for Perfetto");
    verb->add_option("lease", lease_, "Name or id of the lease")->required()->type_name("LEASE");
    verb->add_option("-o,--output", path_, "The file to write; default: stdout")->type_name("FILE");
    verb->add_option("--duration", duration_,
                     "Record for this long; default: write the records that lgpud has kept")
        ->type_name("DUR");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    std::chrono::milliseconds duration{0};
    if (!duration_.empty()) {
      const absl::StatusOr<std::chrono::milliseconds> parsed = ParseDuration(duration_);
      if (!parsed.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("--duration: ", parsed.status().message()));
      }
      duration = *parsed;
    }
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    TraceRecord record;
    LGPU_RETURN_IF_ERROR(Look(connection, lease_, record));
    const TraceClock::time_point end = TraceClock::now() + duration;
    for (TraceClock::time_point now = TraceClock::now(); now < end; now = TraceClock::now()) {
      std::this_thread::sleep_for(std::min<TraceClock::duration>(kSampleInterval, end - now));
      const absl::Status status = Look(connection, record.lease_id, record);
      if (absl::IsNotFound(status)) {
        options.Note("the lease has ended; the trace ends with it");
        break;
      }
      LGPU_RETURN_IF_ERROR(status);
    }
    if (record.MissingOps() + record.MissingCopies() > 0) {
      options.Note(absl::StrCat(record.MissingOps(), " ops and ", record.MissingCopies(),
                                " copies are not in the trace: lgpud had no room for them any more"));
    }
    LGPU_RETURN_IF_ERROR(WriteOutput(path_, [&](const Sink& sink) { return WriteTrace(record, sink); }));
    return kExitOk;
  }

 private:
  /// Adds the daemon's present records.
  static absl::Status Look(Connection& connection, const std::string& name, TraceRecord& record) {
    v1::GetPlacementsRequest request;
    request.set_lease(name);
    LGPU_ASSIGN_OR_RETURN(const v1::PlacementReport report, connection.Call(kGetPlacements, request));
    record.lease_id = report.lease_id();
    record.lease_name = report.lease_name();
    for (const v1::PlacementRecord& op : report.records()) record.ops.insert({op.sequence(), op});
    for (const v1::CopyRecord& copy : report.copies()) record.copies.insert({copy.sequence(), copy});
    LGPU_ASSIGN_OR_RETURN(const v1::StatsSnapshot snapshot,
                          connection.Call(kGetStats, v1::GetStatsRequest()));
    record.daemon = snapshot.daemon();
    for (const v1::LeaseStats& lease : snapshot.leases()) {
      if (lease.id() == record.lease_id) {
        record.samples.push_back({.at = snapshot.taken_at(), .lease = lease});
      }
    }
    v1::WatchEventsRequest events;
    events.set_lease(record.lease_id);
    events.set_kept_only(true);
    if (!record.events.empty()) events.set_after_sequence(record.events.rbegin()->first);
    return connection.Watch(kWatchEvents, events, [&](const v1::Event& event) {
      record.events.insert({event.sequence(), event});
      return absl::OkStatus();
    });
  }

  std::string lease_, path_, duration_;
};

}  // namespace

std::unique_ptr<Command> MakeTraceCommand() { return std::make_unique<TraceCommand>(); }

VerbPage TracePage() {
  return {.description =
              "Writes the ops of a lease, its memory and its events as a trace that Perfetto and "
              "chrome://tracing show: the records that lgpud has kept, and with --duration new ones.",
          .examples = {{"lgpu trace train -o train.json", "the records that lgpud has kept"},
                       {"lgpu trace train --duration 10s -o train.json", "and the next ten seconds"}}};
}

}  // namespace lgpu::cli
