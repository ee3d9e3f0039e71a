#include "cli/commands/env.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/exit_codes.h"
#include "cli/connection.h"
#include "cli/driver_shim.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

/// For a shell: everything but ' stands for itself between two '.
std::string Quoted(const std::string& value) {
  return absl::StrCat("'", absl::StrReplaceAll(value, {{"'", "'\\''"}}), "'");
}

class EnvCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("env", "Show the variables that put programs into a lease");
    verb->add_option("lease", lease_, "Name or id of a lease")->required()->type_name("LEASE");
    verb->add_option("--format", format_, "sh: lines for a shell; json: one object")
        ->type_name("FORMAT")
        ->check(CLI::IsMember({"sh", "json"}));
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    v1::GetLeaseRequest request;
    request.set_lease(lease_);
    LGPU_ASSIGN_OR_RETURN(const v1::Lease lease, connection.Call(kGetLease, request));
    const auto variable = [](const std::string& name) {
      const char* const value = std::getenv(name.c_str());
      return value == nullptr ? std::nullopt : std::optional<std::string>(value);
    };
    LGPU_ASSIGN_OR_RETURN(const LeaseEnvironment environment,
                          EnvironmentOf(lease, connection.runtime_dir(), variable));
    for (const std::string& note : environment.notes) options.Note("lgpu: note: " + note);
    nlohmann::json variables = nlohmann::json::object();
    std::string lines;
    for (const auto& [name, value] : environment.variables) {
      if (!value) continue;
      variables[name] = *value;
      absl::StrAppend(&lines, "export ", name, "=", Quoted(*value), "\n");
    }
    const bool as_json = options.json || format_ == "json";
    LGPU_RETURN_IF_ERROR(WriteOut(
        as_json ? JsonLine({{"schema", "lgpu.env/v1"}, {"lease", lease.id()}, {"variables", variables}})
                : lines));
    return kExitOk;
  }

 private:
  std::string lease_;
  std::string format_ = "sh";
};

}  // namespace

std::unique_ptr<Command> MakeEnvCommand() { return std::make_unique<EnvCommand>(); }

}  // namespace lgpu::cli
