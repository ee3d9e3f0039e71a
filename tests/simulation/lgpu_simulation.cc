// The whole of lgpu in one process, on simulated time: every step comes from the seed, so a failure replays.
//
// Exit code 0: every run ended well; 1: one failed, and standard error has its seed, step and shortest
// prefix; 2: wrong arguments, and standard error has the right ones.

#include <ftw.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

#include "tests/simulation/machine/machine.h"
#include "tests/simulation/scenario.h"

// Of a build of scripts/coverage: what has run is written by exit() otherwise.
extern "C" __attribute__((weak)) void __gcov_dump();

namespace lgpu::simulation {
namespace {

struct Arguments {
  std::uint64_t first = 1, last = 1;
  double days = 0;
  double fresh_seconds = 0;  // 0: the seeds from first to last
  std::uint64_t steps = ~std::uint64_t{0};
  std::uint64_t strikes = ~std::uint64_t{0};
  std::uint64_t failing_strikes = 0;  // of --shorten
  bool trace = false;
  bool figures = false;
  Scenario::Options::Pace pace = Scenario::Options::Pace::kOfTheSeed;
  /// A failure is to be looked into: nothing was left out.
  bool is_whole() const { return !trace && steps == ~std::uint64_t{0} && strikes == ~std::uint64_t{0}; }
};

int Usage() {
  std::fputs(
      "usage: lgpu_simulation --seed N [--days D] [--strikes K] [--steps S] [--trace]\n"
      "       lgpu_simulation --seeds FIRST-LAST [--days D]\n"
      "       lgpu_simulation --fresh SECONDS [--days D]\n"
      "       lgpu_simulation --figures\n",
      stderr);
  return 2;
}

std::string NewFolder() {
  std::string folder = "/tmp/lgpu_simulation.XXXXXX";
  return ::mkdtemp(folder.data()) == nullptr ? std::string() : folder;
}

// By libc's own walk, which the machine does not see.
void RemoveFolder(const std::string& folder) {
  constexpr int kMostOpen = 16;
  ::nftw(
      folder.c_str(), +[](const char* path, const struct stat*, int, FTW*) { return std::remove(path); },
      kMostOpen, FTW_DEPTH | FTW_PHYS);
}

// Starts this program again in the place of the failed run, to look for a shorter one.
void LookForPrefix(const Arguments& arguments, std::uint64_t seed, std::uint64_t strikes) {
  const std::string of = std::to_string(seed), failing = std::to_string(strikes + 1),
                    days = std::to_string(arguments.days);
  ::execl("/proc/self/exe", "lgpu_simulation", "--seed", of.c_str(), "--days", days.c_str(), "--shorten",
          failing.c_str(), nullptr);
}

double CpuSeconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

void TellSpeed(const Scheduler& scheduler, const Scenario::Counts& counts) {
  const double time = CpuSeconds(), simulated = std::chrono::duration<double>(scheduler.now()).count();
  std::printf(
      "%.1f s of the machine's time in %.2f s of CPU time: %.0f x; %.0f steps a second, %llu checks\n",
      simulated, time, simulated / time, static_cast<double>(scheduler.steps()) / time,
      static_cast<unsigned long long>(counts.checks));
}

int RunSeed(const Arguments& arguments, std::uint64_t seed) {
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("lgpud", std::make_shared<spdlog::sinks::null_sink_mt>()));
  spdlog::default_logger()->set_level(spdlog::level::off);
  const std::string folder = NewFolder();
  if (folder.empty()) {
    std::perror("lgpu_simulation: no folder in /tmp");
    return EXIT_FAILURE;
  }
  RunMachine(
      {.seed = seed, .most_steps = arguments.steps, .trace = arguments.trace ? stdout : nullptr},
      [&](Scheduler& scheduler) {
        const Scenario* running = nullptr;
        scheduler.on_end = [&](const std::string& why) {
          RemoveFolder(folder);
          TellFailure(scheduler, seed, why);
          if (arguments.is_whole() && running != nullptr) {
            LookForPrefix(arguments, seed, running->counts().strikes);
          }
          std::_Exit(EXIT_FAILURE);
        };
        const auto length = std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::chrono::duration<double, std::ratio<86400>>(arguments.days));
        auto& scenario = *new Scenario({.seed = seed,
                                        .length = length,
                                        .folder = folder,
                                        .most_strikes = arguments.strikes,
                                        .pace = arguments.pace},
                                       scheduler);
        running = &scenario;
        scenario.Run();
        const Scenario::Counts& counts = scenario.counts();
        if (arguments.figures) return TellSpeed(scheduler, counts);
        std::printf(
            "seed %llu: %.1f s of the machine's time, %llu steps, trace %016llx; %llu programs, %llu "
            "killed; lgpud ended %llu times, %llu of them by a stop; %llu grants, %llu after a wait, %llu "
            "refusals, %llu runs of hooks, %llu suspensions, %llu checks\n",
            static_cast<unsigned long long>(seed), std::chrono::duration<double>(scheduler.now()).count(),
            static_cast<unsigned long long>(scheduler.steps()),
            static_cast<unsigned long long>(scheduler.trace_hash()),
            static_cast<unsigned long long>(counts.clients),
            static_cast<unsigned long long>(counts.client_deaths),
            static_cast<unsigned long long>(counts.daemon_deaths),
            static_cast<unsigned long long>(counts.daemon_stops),
            static_cast<unsigned long long>(counts.grants), static_cast<unsigned long long>(counts.waits),
            static_cast<unsigned long long>(counts.refusals),
            static_cast<unsigned long long>(counts.hook_runs),
            static_cast<unsigned long long>(counts.suspensions),
            static_cast<unsigned long long>(counts.checks));
      });
  std::fflush(stdout);
  RemoveFolder(folder);
  if (__gcov_dump != nullptr) __gcov_dump();
  std::_Exit(EXIT_SUCCESS);
}

// Each seed in a process of its own: a killed process of the machine leaves its memory behind.
bool RunSeedInChild(const Arguments& arguments, std::uint64_t seed) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) std::_Exit(RunSeed(arguments, seed));
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    std::fprintf(stderr, "lgpu_simulation: seed %llu ends by signal %d\n",
                 static_cast<unsigned long long>(seed), WTERMSIG(status));
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
}

bool IsGood(Arguments arguments, std::uint64_t strikes) {
  arguments.strikes = strikes;
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stdout) == nullptr ||
        std::freopen("/dev/null", "w", stderr) == nullptr) {
      std::_Exit(EXIT_FAILURE);
    }
    std::_Exit(RunSeed(arguments, arguments.first));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
}

// The run with one strike less ends well.
int Shorten(Arguments arguments) {
  std::uint64_t good = 0, bad = arguments.failing_strikes;
  if (!IsGood(arguments, 0)) {
    bad = 0;
  } else {
    for (std::uint64_t strikes = 1; strikes < bad; strikes *= 2) {
      if (IsGood(arguments, strikes)) {
        good = strikes;
      } else {
        bad = strikes;
      }
    }
  }
  while (good + 1 < bad) {
    const std::uint64_t middle = good + (bad - good) / 2;
    (IsGood(arguments, middle) ? good : bad) = middle;
  }
  std::fprintf(stderr, "  shortest prefix: --seed %llu --strikes %llu\n",
               static_cast<unsigned long long>(arguments.first), static_cast<unsigned long long>(bad));
  arguments.strikes = bad;
  return RunSeed(arguments, arguments.first);
}

int RunFigures(Arguments arguments) {
  using Pace = Scenario::Options::Pace;
  for (const bool is_quiet : {true, false}) {
    arguments.pace = is_quiet ? Pace::kQuiet : Pace::kBusy;
    arguments.days = (is_quiet ? 600.0 : 20.0) / 86400;
    std::printf("20 programs, %s: ", is_quiet ? "quiet" : "busy");
    if (!RunSeedInChild(arguments, 1)) return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

int RunMany(const Arguments& arguments) {
  bool is_good = true;
  if (arguments.fresh_seconds == 0) {
    for (std::uint64_t seed = arguments.first; seed <= arguments.last; ++seed) {
      is_good = RunSeedInChild(arguments, seed) && is_good;
    }
    return is_good ? EXIT_SUCCESS : EXIT_FAILURE;
  }
  std::uint64_t seed = std::random_device()() % 1'000'000'000;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(arguments.fresh_seconds);
  while (is_good && std::chrono::steady_clock::now() < end) is_good = RunSeedInChild(arguments, ++seed);
  return is_good ? EXIT_SUCCESS : EXIT_FAILURE;
}

bool Parse(int argc, char** argv, Arguments& arguments) {
  bool has_seeds = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--trace") {
      arguments.trace = true;
      continue;
    }
    if (flag == "--figures") {
      arguments.figures = has_seeds = true;
      continue;
    }
    if (i + 1 == argc) return false;
    char* rest = argv[++i];
    if (flag == "--seed") {
      arguments.first = arguments.last = std::strtoull(rest, &rest, 10);
      has_seeds = true;
    } else if (flag == "--seeds") {
      arguments.first = std::strtoull(rest, &rest, 10);
      if (*rest != '-') return false;
      arguments.last = std::strtoull(rest + 1, &rest, 10);
      has_seeds = true;
    } else if (flag == "--fresh") {
      arguments.fresh_seconds = std::strtod(rest, &rest);
      has_seeds = true;
    } else if (flag == "--days") {
      arguments.days = std::strtod(rest, &rest);
    } else if (flag == "--strikes") {
      arguments.strikes = std::strtoull(rest, &rest, 10);
    } else if (flag == "--shorten") {
      arguments.failing_strikes = std::strtoull(rest, &rest, 10);
    } else if (flag == "--steps") {
      arguments.steps = std::strtoull(rest, &rest, 10);
    } else {
      return false;
    }
    if (*rest != '\0') return false;
  }
  return has_seeds;
}

}  // namespace
}  // namespace lgpu::simulation

int main(int argc, char** argv) {
  using namespace lgpu::simulation;  // NOLINT
  Arguments arguments;
  if (!Parse(argc, argv, arguments)) return Usage();
  FixSurroundings(argv);
  if (arguments.figures) return RunFigures(arguments);
  if (arguments.failing_strikes != 0) return Shorten(arguments);
  const bool is_one = arguments.first == arguments.last && arguments.fresh_seconds == 0;
  return is_one ? RunSeed(arguments, arguments.first) : RunMany(arguments);
}
