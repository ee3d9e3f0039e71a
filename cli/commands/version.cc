#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class VersionCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    return app.add_subcommand("version", "Show the version of lgpu and of the daemon");
  }

  // A daemon that does not answer is no failure: the version of this program is known all the same.
  absl::StatusOr<int> Run(const CommonOptions& options) override {
    nlohmann::json json = {{"schema", "lgpu.version/v1"}, {"version", LGPU_VERSION}};
    std::string text = absl::StrCat("lgpu ", LGPU_VERSION, "\n");
    absl::StatusOr<Connection> connection = Connection::Open(options);
    absl::StatusOr<v1::GetVersionResponse> daemon =
        connection.ok() ? connection->Call(kGetVersion, v1::GetVersionRequest())
                        : absl::StatusOr<v1::GetVersionResponse>(connection.status());
    if (daemon.ok()) {
      json["daemon"] = {{"version", daemon->version()},
                        {"protocol_version", daemon->protocol_version()},
                        {"pid", daemon->pid()},
                        {"backend", daemon->backend()},
                        {"runtime_dir", connection->runtime_dir()}};
      absl::StrAppend(&text, "lgpud ", Printable(daemon->version()), " at ", connection->runtime_dir(),
                      ", session protocol ", daemon->protocol_version(), ", ", Printable(daemon->backend()),
                      " GPUs, pid ", daemon->pid(), "\n");
    } else if (!options.json) {
      const std::string reason(daemon.status().message());
      options.Note("lgpu: note: " + Printable(reason.substr(0, reason.find('\n'))));
    }
    LGPU_RETURN_IF_ERROR(WriteOut(options.json ? JsonLine(json) : text));
    return kExitOk;
  }
};

}  // namespace

std::unique_ptr<Command> MakeVersionCommand() { return std::make_unique<VersionCommand>(); }

VerbPage VersionPage() {
  return {.description = "Shows the version of lgpu and, where one answers, of the daemon.",
          .examples = {{"lgpu version --json", "for scripts"}}};
}

}  // namespace lgpu::cli
