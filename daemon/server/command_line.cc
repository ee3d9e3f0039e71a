#include "daemon/server/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "daemon/http/http_address.h"
#include "lgpu/status.h"

#ifndef LGPU_VERSION
#error "the build defines LGPU_VERSION"
#endif

namespace lgpu::daemon {
namespace {

constexpr std::string_view kLogFormats[] = {"auto", "text", "json", "journal"};

// Wrong values of flags are wrong usage; the same ones in a file are a wrong configuration.
absl::Status CheckValues(const Flags& flags) {
  if (flags.simulate) LGPU_RETURN_IF_ERROR(ParseSimulate(*flags.simulate).status());
  if (flags.log_level) LGPU_RETURN_IF_ERROR(CheckLogLevel(*flags.log_level));
  if (flags.log_format && std::ranges::find(kLogFormats, *flags.log_format) == std::end(kLogFormats)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--log-format: ", *flags.log_format, " is not one of auto, text, json, journal"));
  }
  if (flags.http) LGPU_RETURN_IF_ERROR(ParseHttpAddress(*flags.http).status());
  if (flags.dir && flags.dir->empty()) return absl::InvalidArgumentError("--dir is empty; name a directory");
  return absl::OkStatus();
}

/// The parser's error in lgpu's words.
std::string PlainError(const CLI::ParseError& error) {
  const std::string text = error.what();
  const std::string flag = text.substr(0, text.find(':'));
  if (text.find(": 1 required") != std::string::npos) return flag + " needs a value";
  if (text.find(": At Most 1 required") != std::string::npos) return flag + " can be given once";
  if (const std::size_t end = text.find(" was given a disallowed"); end != std::string::npos) {
    return absl::StrCat("--", text.substr(0, end), " takes no value");
  }
  return text;
}

/// For the words that no flag of lgpud takes.
std::string UnknownWords(const std::vector<std::string>& words) {
  const auto flag = std::ranges::find_if(words, [](std::string_view word) { return word.starts_with("-"); });
  if (flag != words.end()) return absl::StrCat("lgpud has no flag ", flag->substr(0, flag->find('=')));
  return absl::StrCat("lgpud takes no arguments, but you gave it ", words.front());
}

void SetUsageError(CommandLine& result, const std::string& what) {
  result.exit_code = kExitUsage;
  result.message = absl::StrCat("lgpud: error: ", what, "\n  try: lgpud --help\n");
}

}  // namespace

CommandLine ParseCommandLine(int argc, const char* const* argv) {
  CommandLine result;
  CLI::App app("lgpud shares the GPUs of this machine as logical GPUs, each with a hard\nmemory limit.",
               "lgpud");
  app.get_formatter()->column_width(28);
  app.allow_extras();
  app.set_version_flag("-V,--version", "lgpud " LGPU_VERSION, "Show the version");
  app.set_help_flag("-h,--help", "Show this help");
  app.add_option("--simulate", result.flags.simulate,
                 "Serve simulated GPUs: 1GiB, 2x1GiB or\n2x1GiB,1x512MiB")
      ->type_name("COUNTxSIZE");
  app.add_option("--dir", result.flags.dir, "Runtime directory with sockets and lock (root:\n/run/lgpu)")
      ->type_name("DIRECTORY");
  app.add_option("--config", result.flags.config_file,
                 "Read this file instead of /etc/lgpu/lgpud.toml,\nlgpud.d/ and the user's file")
      ->type_name("FILE");
  app.add_flag("--check-config", result.check_config,
               "Read the whole configuration, say what is wrong with\nit (exit 78), and stop")
      ->disable_flag_override();
  app.add_flag("--print-config", result.print_config,
               "The same, and list the settings in effect with where\nthey come from")
      ->disable_flag_override();
  app.add_flag("--check-gpus", result.check_gpus,
               "Say whether there is any GPU to serve, real or\nsimulated (exit 9: none), and stop")
      ->disable_flag_override();
  app.add_option(
         "--http", result.flags.http,
         "Serve the page, /metrics and /api/v1 there; 9400\nalone is 127.0.0.1:9400 (default: nowhere)")
      ->type_name("[ADDRESS:]PORT");
  app.add_option("--log-level", result.flags.log_level, "trace, debug, info, warn, error or off")
      ->type_name("LEVEL");
  app.add_option("--log-format", result.flags.log_format, "auto, text, json or journal")->type_name("FORMAT");
  app.footer(
      "A setting is taken from the flag, else from the environment\n"
      "(CUDA_VISIBLE_DEVICES, LGPU_ENDPOINT, LGPU_LOG_LEVEL), else from the user's\n"
      "file, else from the system's files. SIGHUP reads them again.\n"
      "Exit codes: 0 ok, 1 failure, 2 usage, 4 not permitted, 9 no usable GPU,\n"
      "78 configuration wrong.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    std::ostringstream out;
    app.exit(help_or_version, out, out);
    result.exit_code = kExitOk;
    result.message = out.str();
    return result;
  } catch (const CLI::ParseError& error) {
    SetUsageError(result, PlainError(error));
    return result;
  }
  if (const std::vector<std::string> unknown = app.remaining(); !unknown.empty()) {
    SetUsageError(result, UnknownWords(unknown));
    return result;
  }
  if (const absl::Status status = CheckValues(result.flags); !status.ok()) {
    result.exit_code = kExitUsage;
    result.message = "lgpud: error: " + std::string(status.message()) + "\n";
  }
  return result;
}

}  // namespace lgpu::daemon
