#include <CLI/CLI.hpp>
#include <cstdlib>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/device_flags.h"
#include "cli/management_flags.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class CreateCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("create", "Make a lease that stays until it is removed");
    flags_.AddTo(*verb);
    management_.AddTo(*verb);
    verb->add_option("--request-id", request_id_, "A repetition with the same ID gives the lease made first")
        ->type_name("ID");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    LGPU_RETURN_IF_ERROR(flags_.Spec().status());  // errors in the flags, before the daemon is asked
    v1::CreateLeaseRequest management;
    LGPU_RETURN_IF_ERROR(management_.AddTo(management));
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    LGPU_ASSIGN_OR_RETURN(v1::CreateLeaseRequest request, MakeCreateRequest(flags_, connection, options));
    request.MergeFrom(management);
    request.set_request_id(request_id_);
    request.set_lasting(true);
    std::optional<int> stopped_by;  // never: a signal ends this process
    LGPU_ASSIGN_OR_RETURN(const v1::Lease lease,
                          CreateLease(flags_, connection, request, options, stopped_by));
    if (const std::optional<std::string> note = management_.NoteOnCgroup()) {
      options.Note("lgpu: note: " + *note);
    }
    if (options.json) {
      LGPU_RETURN_IF_ERROR(WriteOut(JsonLine(ToJson(lease))));
      return kExitOk;
    }
    for (const std::string& line : DescribeLease(lease)) options.Note("lgpu: " + line);
    // The variable counts the lease's GPUs there, and not the machine's.
    const char* const also =
        std::getenv("CUDA_VISIBLE_DEVICES") != nullptr ? " and without CUDA_VISIBLE_DEVICES" : "";
    options.Note(absl::StrCat("lgpu: use it with LGPU_LEASE=", lease.id(), also, ", end it with: lgpu rm ",
                              Printable(lease.name().empty() ? lease.id() : lease.name())));
    LGPU_RETURN_IF_ERROR(WriteOut(lease.id() + "\n"));
    return kExitOk;
  }

 private:
  DeviceFlags flags_;
  ManagementFlags management_;
  std::string request_id_;
};

}  // namespace

std::unique_ptr<Command> MakeCreateCommand() { return std::make_unique<CreateCommand>(); }

VerbPage CreatePage() {
  return {.description =
              "Makes a lease that stays until it is removed. Programs use it through LGPU_LEASE, any number "
              "at a time. The id of the lease is printed on stdout.",
          .examples = {{"lgpu create -m 4GiB --name train", "growth up to 4 GiB"},
                       {"export LGPU_LEASE=$(lgpu create -q -m 2GiB)", "for the programs of this shell"},
                       {"lgpu create -m 8GiB --preallocate --end-when-idle 2h",
                        "it ends after two hours without a program"},
                       {"lgpu create -m 8GiB --name job-7 --managed --owner anna --ttl 12h",
                        "as root: anna's programs attach, and only root changes it"},
                       {"lgpu create -m 1TiB; echo $?",
                        "more than any card has: exit code 2 at once, with --wait too"}}};
}

}  // namespace lgpu::cli
