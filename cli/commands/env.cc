#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/cdi_files.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/driver_shim.h"
#include "cli/env_formats.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

class EnvCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("env", "Show the variables that put programs into a lease");
    verb->add_option("lease", lease_, "Name or id of a lease")->required()->type_name("LEASE");
    verb->add_option("--format", format_,
                     "sh: lines for a shell; json: one object; systemd: an EnvironmentFile=; taskprolog: "
                     "what Slurm's TaskProlog "
                     "prints; cdi: a specification for containers")
        ->type_name("sh|json|systemd|taskprolog|cdi")
        ->check(CLI::IsMember({"sh", "json", "systemd", "taskprolog", "cdi"}));
    verb->add_option("--with", with_,
                     "With --format cdi: also what this CDI device gives a container, such as the GPU's "
                     "files, so that one device is enough")
        ->type_name("DEVICE");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    v1::GetLeaseRequest request;
    request.set_lease(lease_);
    LGPU_ASSIGN_OR_RETURN(const v1::Lease lease, connection.Call(kGetLease, request));
    if (!with_.empty() && format_ != "cdi") {
      return absl::InvalidArgumentError(absl::StrCat("--with ", with_, " needs --format cdi"));
    }
    if (format_ == "cdi") return PrintCdi(connection, lease);
    const auto variable = [](const std::string& name) {
      const char* const value = std::getenv(name.c_str());
      return value == nullptr ? std::nullopt : std::optional<std::string>(value);
    };
    LGPU_ASSIGN_OR_RETURN(const LeaseEnvironment environment,
                          EnvironmentOf(lease, connection.runtime_dir(), variable));
    for (const std::string& note : environment.notes) options.Note("lgpu: note: " + note);
    const std::string format = options.json ? "json" : format_;
    LGPU_ASSIGN_OR_RETURN(const std::string text,
                          FormatEnvironment(lease.id(), environment.variables, format));
    LGPU_RETURN_IF_ERROR(WriteOut(text));
    return kExitOk;
  }

 private:
  /// The container's processes reach the lease alone, whatever their user.
  absl::StatusOr<int> PrintCdi(Connection& connection, const v1::Lease& lease) {
    v1::OpenLeaseDirectoryRequest request;
    request.set_lease(lease.id());
    LGPU_ASSIGN_OR_RETURN(const v1::OpenLeaseDirectoryResponse opened,
                          connection.Call(kOpenLeaseDirectory, request));
    CdiPlaces places{.directory = opened.directory()};
    if (HasRealGpu(lease)) {
      std::error_code error;
      places.hook = std::filesystem::read_symlink(connection.runtime_dir() + "/hook", error).string();
      if (error) {
        return absl::FailedPreconditionError(
            "lgpu-hook is not installed on lgpud's machine, so nothing would limit a container's programs\n"
            "try: install the package lgpu-driver-shim there");
      }
    }
    if (!with_.empty()) {
      LGPU_ASSIGN_OR_RETURN(places.with, FindCdiDevice(with_, {"/etc/cdi", "/var/run/cdi"}));
    }
    LGPU_RETURN_IF_ERROR(WriteOut(FormatCdi(lease, places)));
    return kExitOk;
  }

  std::string lease_;
  std::string format_ = "sh";
  std::string with_;
};

}  // namespace

std::unique_ptr<Command> MakeEnvCommand() { return std::make_unique<EnvCommand>(); }

VerbPage EnvPage() {
  return {.description =
              "Shows the variables that put a shell's or a service's programs into a lease, programs that "
              "know nothing of lgpu included. For `lgpu run` nothing of this is needed. Programs that clear "
              "their variables, or have the driver's folder in a DT_RPATH, need `lgpu run --isolate`: "
              "variables do not reach them.",
          .examples = {{"eval \"$(lgpu env train)\"", "this shell and the programs that it starts"},
                       {"lgpu env train --format json", "for scripts"},
                       {"lgpu env train --format cdi > lgpu-train.json && mv lgpu-train.json /etc/cdi/",
                        "as root: for `podman run --device lgpu.io/lease=train`"}}};
}

}  // namespace lgpu::cli
