// Replays a program's allocations and frees, from a file or a generated workload, against lgpu's allocator or
// a model of another one. Needs no device: no memory is mapped.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "bench/workloads/catalog.h"
#include "lgpu/bytes.h"
#include "lgpu/status.h"
#include "tools/replay.h"
#include "tools/trace_file.h"

namespace lgpu {
namespace {

constexpr const char* kFooter =
    R"(Files: logs as RMM and lgpu write them (Thread,Time,Action,Pointer,Size,Stream) and lifetimes
(id,first,last,size; a block is live until just before `last`). The first line tells which.
Workloads: A to F (churn and training, for time), S1 to S12 (training, inference, churn, for space).

  allocator_replay run.csv --limit 4GiB
  allocator_replay --workload S3 --spare 5 --smallest-limit
  allocator_replay lifetimes.csv --size-multiplier 4096 --allocator bfc --smallest-limit --json
  allocator_replay --workload S3 --export s3.csv

Exit codes: 0, 1 the file cannot be used, 2 wrong usage, 4 not permitted, 6 there is no such file,
workload or allocator, 75 something was refused and --must-complete was given.)";

struct Flags {
  std::string file;
  std::string workload;
  bool is_small = false;
  std::uint64_t seed = 0;
  std::uint64_t size_multiplier = 1;
  std::string limit;
  double spare_percent = 0;
  std::string growth_step;
  std::string chunk;
  bool no_front_cache = false;
  bool stops_at_refusal = false;
  bool must_complete = false;
  std::string export_path;
  std::string export_format = "log";
  bool json = false;
  ReplayConfiguration replay;
};

struct Options {
  CLI::Option* spare = nullptr;
};

Options Define(CLI::App& app, Flags& flags) {
  Options options;
  auto* source = app.add_option_group("what to replay");
  source->add_option("FILE", flags.file, "A log or a file of lifetimes");
  source->add_option("--workload", flags.workload, "A generated one, as S3")->type_name("NAME");
  source->require_option(1);
  app.add_flag("--small", flags.is_small, "The workload cut short");
  app.add_option("--seed", flags.seed, "Of the workload (default: its own)");
  app.add_option("--size-multiplier", flags.size_multiplier, "For the sizes of lifetimes")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--allocator", flags.replay.allocator,
                 "pool (lgpu's), or core flat flat-locked expandable segments bfc list bound")
      ->capture_default_str();
  CLI::Option* limit =
      app.add_option("--limit", flags.limit, "Memory limit (default: twice the peak)")->type_name("SIZE");
  options.spare =
      app.add_option("--spare", flags.spare_percent, "Instead of a limit: the peak and so many percent")
          ->type_name("PERCENT")
          ->check(CLI::Range(0.0, 1000.0))
          ->excludes(limit);
  app.add_option("--growth-step", flags.growth_step, "Of the pool (default: 2MiB)")->type_name("SIZE");
  app.add_option("--chunk", flags.chunk, "The largest chunk that is granted (default: 2MiB)")
      ->type_name("SIZE");
  app.add_flag("--no-front-cache", flags.no_front_cache, "The pool without its caches of small blocks");
  app.add_flag("--stop-at-refusal", flags.stops_at_refusal, "Default: the refused block is left out");
  app.add_flag("--must-complete", flags.must_complete, "A refusal makes the exit code 75");
  app.add_flag("--smallest-limit", flags.replay.find_smallest_limit,
               "Search the smallest limit that completes");
  app.add_option("--passes", flags.replay.passes, "Over which times are taken; 0: none")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  app.add_option("--export", flags.export_path, "Write the trace to a file and do nothing else")
      ->type_name("FILE");
  app.add_option("--export-format", flags.export_format, "log or lifetimes")
      ->check(CLI::IsMember({"log", "lifetimes"}))
      ->capture_default_str();
  app.add_flag("--json", flags.json, "Print JSON");
  app.footer(kFooter);
  return options;
}

absl::StatusOr<Bytes> SizeOf(const char* flag, const std::string& text) {
  absl::StatusOr<Bytes> bytes = ParseBytes(text);
  if (!bytes.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", std::string(bytes.status().message())));
  }
  return bytes;
}

absl::Status Configure(Flags& flags, const Options& options) {
  ReplayConfiguration& replay = flags.replay;
  if (!flags.limit.empty()) {
    LGPU_ASSIGN_OR_RETURN(replay.limit, SizeOf("--limit", flags.limit));
  }
  if (options.spare->count() > 0) replay.spare = flags.spare_percent / 100;
  if (!flags.growth_step.empty()) {
    LGPU_ASSIGN_OR_RETURN(replay.pool.pool.growth_step, SizeOf("--growth-step", flags.growth_step));
  }
  if (!flags.chunk.empty()) {
    LGPU_ASSIGN_OR_RETURN(replay.pool.chunk, SizeOf("--chunk", flags.chunk));
    const Bytes chunk = replay.pool.chunk;
    if (chunk < 2_MiB || RoundDown(chunk, chunk) != chunk || (chunk.count() & (chunk.count() - 1)) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--chunk: ", FormatBytes(chunk), " is not a power of two from 2MiB on"));
    }
  }
  if (flags.no_front_cache) replay.pool.pool.cache_per_thread = Bytes();
  const bool configures_pool = !flags.growth_step.empty() || !flags.chunk.empty() || flags.no_front_cache;
  if (configures_pool && replay.allocator != "pool") {
    return absl::InvalidArgumentError(
        absl::StrCat("--growth-step, --chunk and --no-front-cache are for the allocator pool, not for ",
                     replay.allocator));
  }
  replay.on_refusal = flags.stops_at_refusal ? bench::OnRefusal::kStop : bench::OnRefusal::kGoOn;
  if (flags.workload.empty() && (flags.is_small || flags.seed != 0)) {
    return absl::InvalidArgumentError("--small and --seed are for --workload");
  }
  return absl::OkStatus();
}

absl::StatusOr<TraceReading> Load(const Flags& flags) {
  if (flags.workload.empty()) return ReadTraceFile(flags.file, flags.size_multiplier);
  TraceReading reading;
  LGPU_ASSIGN_OR_RETURN(reading.trace,
                        bench::MakeWorkload(flags.workload, {.scale = flags.is_small ? bench::Scale::kSmall
                                                                                     : bench::Scale::kFull,
                                                             .seed = flags.seed}));
  return reading;
}

int ReportError(const absl::Status& status, const Flags& flags, int exit_code) {
  const std::string message(status.message());
  const std::string text = flags.json ? nlohmann::json({{"schema", "lgpu.error/v1"},
                                                        {"code", absl::StatusCodeToString(status.code())},
                                                        {"message", message},
                                                        {"exit_code", exit_code}})
                                            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                                      : "allocator_replay: error: " + message;
  std::fprintf(stderr, "%s\n", text.c_str());
  return exit_code;
}

int Run(const Flags& flags) {
  const absl::StatusOr<TraceReading> reading = Load(flags);
  if (!reading.ok()) {
    // A file that says wrong things is no wrong usage.
    const int exit_code =
        absl::IsInvalidArgument(reading.status()) ? kExitFailure : ExitCodeOf(reading.status().code());
    return ReportError(reading.status(), flags, exit_code);
  }
  if (!flags.export_path.empty()) {
    const TraceFormat format = flags.export_format == "log" ? TraceFormat::kRmmLog : TraceFormat::kLifetimes;
    const absl::Status written = WriteTraceFile(reading->trace, format, flags.export_path);
    return written.ok() ? kExitOk : ReportError(written, flags, ExitCodeOf(written.code()));
  }
  const absl::StatusOr<ReplayReport> report = Replay(reading->trace, flags.replay);
  if (!report.ok()) return ReportError(report.status(), flags, ExitCodeOf(report.status().code()));
  const std::string text = flags.json
                               ? ReportJson(*reading, flags.replay, *report)
                                         .dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
                                     "\n"
                               : ReportText(*reading, flags.replay, *report);
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) return kExitFailure;
  return flags.must_complete && !report->space.completed ? kExitNoMemory : kExitOk;
}

int Main(int argc, char** argv) {
  CLI::App app("Replays a trace of allocations against lgpu's allocator, or a model of another.",
               "allocator_replay");
  Flags flags;
  const Options options = Define(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    flags.json = false;
    return ReportError(
        absl::InvalidArgumentError(absl::StrCat(error.what(), "\ntry: allocator_replay --help")), flags,
        kExitUsage);
  }
  const absl::Status configured = Configure(flags, options);
  return configured.ok() ? Run(flags) : ReportError(configured, flags, kExitUsage);
}

}  // namespace
}  // namespace lgpu

int main(int argc, char** argv) { return lgpu::Main(argc, argv); }
