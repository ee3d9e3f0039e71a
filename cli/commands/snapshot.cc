#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/output_file.h"
#include "cli/snapshot_formats.h"
#include "cli/snapshot_record.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

class SnapshotCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb =
        app.add_subcommand("snapshot", "Write every block of a lease's programs, for other tools");
    verb->add_option("lease", lease_, "Name or id of the lease")->required()->type_name("LEASE");
    verb->add_option("--device", device_, "Only this logical device, by its index in the lease")
        ->type_name("N");
    verb->add_option("-o,--output", path_, "The file to write; default: stdout")->type_name("FILE");
    verb->add_option("--format", format_,
                     "json, pickle for PyTorch's memory viewer, or rmm-csv for tools of RMM's log")
        ->check(CLI::IsMember({"json", "pickle", "rmm-csv"}))
        ->type_name("FORMAT")
        ->default_val("json");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    v1::GetMemorySnapshotRequest request;
    request.set_lease(lease_);
    if (device_) request.set_device(*device_);
    // Half of the call's time: the daemon names silent programs before the call itself is over.
    request.set_wait_ms(static_cast<std::uint64_t>(std::max<std::int64_t>(options.timeout.count() / 2, 1)));
    LGPU_ASSIGN_OR_RETURN(const SnapshotRecord record, FetchSnapshot(connection, request));
    LGPU_RETURN_IF_ERROR(TellErrors(record, options));
    LGPU_RETURN_IF_ERROR(WriteOutput(path_, [&](const Sink& sink) { return Write(record, sink); }));
    return kExitOk;
  }

 private:
  /// A line for each program without an answer; an error if no program answered.
  static absl::Status TellErrors(const SnapshotRecord& record, const CommonOptions& options) {
    absl::Status first;
    bool has_told = record.sessions.empty();
    const auto look = [&](int code, const std::string& message) {
      has_told = has_told || code == 0;
      if (code == 0) return;
      const absl::Status status(static_cast<absl::StatusCode>(code), message);
      if (first.ok()) first = status;
      options.Note(absl::StrCat("left out: ", message.substr(0, message.find('\n'))));
    };
    for (const SnapshotRecord::Session& session : record.sessions) {
      if (session.devices.empty()) look(session.about.code(), session.about.message());
      for (const SnapshotRecord::Device& device : session.devices) {
        look(device.about.code(), device.about.message());
      }
    }
    return has_told ? absl::OkStatus() : first;
  }

  absl::Status Write(const SnapshotRecord& record, const Sink& sink) const {
    if (format_ == "pickle") return WriteSnapshotPickle(record, sink);
    if (format_ == "rmm-csv") return WriteSnapshotCsv(record, sink);
    return WriteSnapshotJson(record, sink);
  }

  std::string lease_, path_, format_ = "json";
  std::optional<std::uint32_t> device_;
};

}  // namespace

std::unique_ptr<Command> MakeSnapshotCommand() { return std::make_unique<SnapshotCommand>(); }

VerbPage SnapshotPage() {
  return {
      .description =
          "Writes every block that the programs of a lease have: its place, size and age, and the op that "
          "owns it. Programs go on while lgpud asks them; a program that does not answer is left out.",
      .examples = {{"lgpu snapshot train -o train.json", "as JSON"},
                   {"lgpu snapshot train --format pickle -o train.pickle", "for PyTorch's memory viewer"}}};
}

}  // namespace lgpu::cli
