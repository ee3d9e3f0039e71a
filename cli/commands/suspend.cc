#include <CLI/CLI.hpp>
#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "lgpu/bytes.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

// lgpud sets itself a limit by the amount; this is only for an lgpud that hangs.
constexpr std::chrono::minutes kLongestSuspension{10};

class SuspendCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("suspend", "Move the programs of a lease to host memory");
    verb->add_option("lease", lease_, "Name or id of the lease")->required()->type_name("LEASE");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    v1::SuspendLeaseRequest request;
    request.set_lease(lease_);
    LGPU_ASSIGN_OR_RETURN(const v1::SuspendLeaseResponse moved,
                          connection.CallFor(kLongestSuspension, kSuspendLease, request));
    if (options.json) {
      LGPU_RETURN_IF_ERROR(WriteOut(JsonLine(ToJson(moved))));
    } else {
      LGPU_RETURN_IF_ERROR(WriteOut(absl::StrFormat("suspended %s: %s in host memory after %.1fs\n",
                                                    Printable(lease_), FormatBytes(Bytes(moved.bytes())),
                                                    static_cast<double>(moved.took_ms()) / 1000)));
    }
    return kExitOk;
  }

 private:
  std::string lease_;
};

}  // namespace

std::unique_ptr<Command> MakeSuspendCommand() { return std::make_unique<SuspendCommand>(); }

VerbPage SuspendPage() {
  return {
      .description =
          "Moves the programs of a lease, with all that they have on GPUs, to host memory. Other leases get "
          "the memory. Suspended programs wait where they need the GPU, until `lgpu resume`. A program of "
          "liblgpu moves its tensors itself, if the lease has no other program. Unmodified programs are "
          "moved by the driver's checkpoint calls, if lgpu run or lgpu exec started them, from r570 on. "
          "Experimental: no GPU has run it yet. On an error the programs go on.",
      .examples = {{"lgpu suspend train", "free the GPU for something else"},
                   {"lgpu resume train --wait", "later, as soon as there is room"}}};
}

}  // namespace lgpu::cli
