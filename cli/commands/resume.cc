#include <CLI/CLI.hpp>
#include <algorithm>
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
constexpr std::chrono::minutes kLongestResumption{10};
constexpr std::chrono::milliseconds kLongestPlace = std::chrono::hours(24);

class ResumeCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("resume", "Let the programs of a suspended lease go on");
    verb->add_option("lease", lease_, "Name or id of the lease")->required()->type_name("LEASE");
    verb->add_flag("--wait{24h}", wait_,
                   "If there is not enough memory now, wait for it in the GPU's queue (at most this long)")
        ->type_name("DUR");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    std::chrono::milliseconds wait{};
    if (!wait_.empty()) {
      const absl::StatusOr<std::chrono::milliseconds> parsed = ParseDuration(wait_);
      if (!parsed.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("--wait: ", parsed.status().message()));
      }
      wait = std::min(*parsed, kLongestPlace);
    }
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    v1::ResumeLeaseRequest request;
    request.set_lease(lease_);
    request.set_wait_ms(static_cast<std::uint64_t>(wait.count()));
    const absl::StatusOr<v1::ResumeLeaseResponse> moved =
        connection.CallFor(wait + kLongestResumption, kResumeLease, request);
    if (absl::IsResourceExhausted(moved.status()) && wait_.empty()) {
      return absl::ResourceExhaustedError(
          absl::StrCat(moved.status().message(), "\ntry: lgpu resume ", Printable(lease_), " --wait"));
    }
    LGPU_RETURN_IF_ERROR(moved.status());
    if (options.json) {
      LGPU_RETURN_IF_ERROR(WriteOut(JsonLine(ToJson(*moved))));
    } else {
      LGPU_RETURN_IF_ERROR(
          WriteOut(absl::StrFormat("resumed %s: %s back on its GPUs after %.1fs\n", Printable(lease_),
                                   FormatBytes(Bytes(moved->bytes())),
                                   static_cast<double>(moved->waited_ms() + moved->took_ms()) / 1000)));
    }
    return kExitOk;
  }

 private:
  std::string lease_;
  std::string wait_;
};

}  // namespace

std::unique_ptr<Command> MakeResumeCommand() { return std::make_unique<ResumeCommand>(); }

VerbPage ResumePage() {
  return {
      .description =
          "Charges the memory of a suspended lease again, all of it or nothing, moves its programs back to "
          "its GPUs and lets them go on. While a GPU has too little memory, --wait keeps a place in its "
          "queue. Where the driver cannot move a program back, the lease has FAILED, and lgpu rm --kill "
          "ends it.",
      .examples = {{"lgpu resume train", "if there is room now"},
                   {"lgpu resume train --wait=10m", "wait for it up to 10 minutes"}}};
}

}  // namespace lgpu::cli
