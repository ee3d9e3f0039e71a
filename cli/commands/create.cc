#include "cli/commands/create.h"

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/connection.h"
#include "cli/device_flags.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class CreateCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("create", "Make a lease that lasts until it is removed");
    flags_.AddTo(*verb);
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    LGPU_RETURN_IF_ERROR(flags_.Spec().status());  // what is wrong whatever the daemon says
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    LGPU_ASSIGN_OR_RETURN(v1::CreateLeaseRequest request, MakeCreateRequest(flags_, connection, options));
    request.set_lasting(true);
    std::optional<int> stopped_by;  // never: a signal ends this process
    LGPU_ASSIGN_OR_RETURN(const v1::Lease lease,
                          CreateLease(flags_, connection, request, options, stopped_by));
    if (options.json) {
      LGPU_RETURN_IF_ERROR(WriteOut(JsonLine(ToJson(lease))));
      return kExitOk;
    }
    for (const std::string& line : DescribeLease(lease)) options.Note("lgpu: " + line);
    options.Note(absl::StrCat("lgpu: use it with LGPU_LEASE=", lease.id(), ", end it with: lgpu rm ",
                              Printable(lease.name().empty() ? lease.id() : lease.name())));
    LGPU_RETURN_IF_ERROR(WriteOut(lease.id() + "\n"));
    return kExitOk;
  }

 private:
  DeviceFlags flags_;
};

}  // namespace

std::unique_ptr<Command> MakeCreateCommand() { return std::make_unique<CreateCommand>(); }

}  // namespace lgpu::cli
