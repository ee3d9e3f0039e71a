#include "daemon/server/command_line.h"

#include <CLI/CLI.hpp>
#include <sstream>

#include "absl/status/status.h"
#include "base/exit_codes.h"
#include "daemon/http/http_address.h"
#include "lgpu/status.h"

#ifndef LGPU_VERSION
#error "the build defines LGPU_VERSION"
#endif

namespace lgpu::daemon {
namespace {

// Wrong values of flags are wrong usage; the same ones in a file are a wrong configuration.
absl::Status CheckValues(const Flags& flags) {
  if (flags.simulate) LGPU_RETURN_IF_ERROR(ParseSimulate(*flags.simulate).status());
  if (flags.log_level) LGPU_RETURN_IF_ERROR(CheckLogLevel(*flags.log_level));
  if (flags.http) LGPU_RETURN_IF_ERROR(ParseHttpAddress(*flags.http).status());
  if (flags.dir && flags.dir->empty()) return absl::InvalidArgumentError("--dir is empty; name a directory");
  return absl::OkStatus();
}

}  // namespace

CommandLine ParseCommandLine(int argc, const char* const* argv) {
  CommandLine result;
  CLI::App app("lgpud shares the GPUs of this machine as logical GPUs, each with a hard memory limit.",
               "lgpud");
  app.set_version_flag("-V,--version", "lgpud " LGPU_VERSION);
  app.add_option("--simulate", result.flags.simulate, "Serve simulated GPUs: 1GiB, 2x1GiB or 2x1GiB,1x512MiB")
      ->type_name("COUNTxSIZE");
  app.add_option("--dir", result.flags.dir, "Runtime directory with sockets and lock (/run/lgpu for root)")
      ->type_name("DIRECTORY");
  app.add_option("--config", result.flags.config_file,
                 "Read this file instead of /etc/lgpu/lgpud.toml, lgpud.d/ and the user's file")
      ->type_name("FILE");
  app.add_flag("--check-config", result.check_config,
               "Read the whole configuration, say what is wrong with it (exit 78), and stop");
  app.add_flag("--print-config", result.print_config,
               "The same, and list the settings in effect with where they come from");
  app.add_flag("--check-gpus", result.check_gpus,
               "Say whether there is any GPU to serve, real or simulated (exit 9: none), and stop");
  app.add_option(
         "--http", result.flags.http,
         "Serve the page, /metrics and /api/v1 there; 9400 alone is 127.0.0.1:9400 (default: nowhere)")
      ->type_name("[ADDRESS:]PORT");
  app.add_option("--log-level", result.flags.log_level, "trace, debug, info, warn, error or off")
      ->type_name("LEVEL");
  app.add_option("--log-format", result.flags.log_format, "auto, text, json or journal")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"auto", "text", "json", "journal"}));
  app.footer(
      "Order: flag, environment (CUDA_VISIBLE_DEVICES, LGPU_ENDPOINT, LGPU_LOG_LEVEL), user's file, "
      "system's\n"
      "files, default. SIGHUP reads them again. Exit codes: 0 ok, 1 failure, 2 usage, 4 not permitted, 9 no "
      "usable GPU, 78 "
      "configuration wrong.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream err;
    const int code = app.exit(error, out, err);
    result.exit_code = code == 0 ? kExitOk : kExitUsage;
    result.message = code == 0 ? out.str() : "lgpud: error: " + err.str();
    return result;
  }
  if (const absl::Status status = CheckValues(result.flags); !status.ok()) {
    result.exit_code = kExitUsage;
    result.message = "lgpud: error: " + std::string(status.message()) + "\n";
  }
  return result;
}

}  // namespace lgpu::daemon
