#include "cli/commands/rm.h"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/exit_codes.h"
#include "cli/connection.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class RmCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("rm", "End leases; their programs lose their memory rights");
    verb->add_option("lease", leases_, "Names or ids of leases")->required()->type_name("LEASE");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    int code = kExitOk;
    for (const std::string& lease : leases_) {
      v1::RemoveLeaseRequest request;
      request.set_lease(lease);
      if (const absl::Status status = connection.Call(kRemoveLease, request).status(); !status.ok()) {
        options.Report(status, ExitCode(status));
        if (code == kExitOk) code = ExitCode(status);
      } else if (options.json) {
        LGPU_RETURN_IF_ERROR(WriteOut(JsonLine({{"schema", "lgpu.removed/v1"}, {"lease", lease}})));
      } else {
        options.Note("lgpu: lease " + Printable(lease) + " is removed");
      }
    }
    return code;
  }

 private:
  std::vector<std::string> leases_;
};

}  // namespace

std::unique_ptr<Command> MakeRmCommand() { return std::make_unique<RmCommand>(); }

}  // namespace lgpu::cli
