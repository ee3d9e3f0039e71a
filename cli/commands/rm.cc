#include "cli/commands/rm.h"

#include <CLI/CLI.hpp>
#include <string>

#include "base/exit_codes.h"
#include "cli/connection.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class RmCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("rm", "End a lease; its programs lose their memory rights");
    verb->add_option("lease", lease_, "Name or id of the lease")->required()->type_name("LEASE");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    v1::RemoveLeaseRequest request;
    request.set_lease(lease_);
    LGPU_RETURN_IF_ERROR(connection.Call(kRemoveLease, request).status());
    if (options.json) {
      LGPU_RETURN_IF_ERROR(WriteOut(JsonLine({{"schema", "lgpu.removed/v1"}, {"lease", lease_}})));
    } else {
      options.Note("lgpu: lease " + Printable(lease_) + " is removed");
    }
    return kExitOk;
  }

 private:
  std::string lease_;
};

}  // namespace

std::unique_ptr<Command> MakeRmCommand() { return std::make_unique<RmCommand>(); }

}  // namespace lgpu::cli
