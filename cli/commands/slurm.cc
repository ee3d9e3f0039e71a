#include <CLI/CLI.hpp>
#include <string>

#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/device_flags.h"
#include "cli/slurm_gres.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class SlurmCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("slurm", "Print Slurm's configuration of this node's GPUs");
    verb->add_option("file", file_, "gres: the lines of gres.conf")
        ->required()
        ->type_name("gres")
        ->check(CLI::IsMember({"gres"}));
    verb->add_option("--node", options_.node, "Name of the node, for a gres.conf that several nodes read")
        ->type_name("NAME");
    verb->add_option("--overhead", overhead_,
                     "Memory of each GPU that is kept for contexts and libraries of programs; default: none")
        ->type_name("SIZE");
    verb->add_option("--device-files", options_.device_files,
                     "Device files of the GPUs, without their numbers (simulated GPUs have none)")
        ->type_name("PREFIX")
        ->capture_default_str();
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    if (!overhead_.empty()) {
      LGPU_ASSIGN_OR_RETURN(options_.overhead_bytes, ParseSizeOrZero("--overhead", overhead_));
    }
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    LGPU_ASSIGN_OR_RETURN(const v1::ListPhysicalDevicesResponse cards,
                          connection.Call(kListPhysicalDevices, v1::ListPhysicalDevicesRequest()));
    LGPU_ASSIGN_OR_RETURN(const std::string text, FormatSlurmGres(cards, options_));
    LGPU_RETURN_IF_ERROR(
        WriteOut(options.json ? JsonLine({{"schema", "lgpu.gres/v1"}, {"text", text}}) : text));
    return kExitOk;
  }

 private:
  std::string file_;
  std::string overhead_;
  SlurmGresOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeSlurmCommand() { return std::make_unique<SlurmCommand>(); }

VerbPage SlurmPage() {
  return {.description =
              "Prints the lines of gres.conf for the GPUs that this node serves, and as a comment the lines "
              "of slurm.conf. A job then asks for memory as --gres=shard:8192, in MiB.",
          .examples = {{"lgpu slurm gres --node $(hostname -s) --overhead 2GiB",
                        "keep 2 GiB of each GPU for contexts and libraries"}}};
}

}  // namespace lgpu::cli
