// Load on a real lgpud: its size with many logical devices, and the time of `lgpu ls`; its size over many
// leases that come and go.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/load_figures.h"
#include "lgpu/status.h"
#include "tests/load/load.h"

namespace lgpu::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::string only;  // empty: all
  int devices = 10'000;
  int cycles = 200'000;
};

absl::StatusOr<std::unique_ptr<testing::DaemonProcess>> StartDaemon() {
  return testing::DaemonProcess::Start({.simulate = "16GiB", .open_files = 16384});
}

absl::Status RunDevices(const Flags& flags) {
  LGPU_ASSIGN_OR_RETURN(const auto daemon, StartDaemon());
  LGPU_ASSIGN_OR_RETURN(const auto control, testing::Control::Open(daemon->dir()));
  const testing::DaemonSize before = testing::SizeOf(daemon->pid());
  constexpr int kDevicesEach = 10;
  // More than one user may have. Only root makes leases for other users.
  const int owners = flags.devices > 4096 ? 4 : 1;
  LGPU_RETURN_IF_ERROR(testing::MakeDevices(*control, flags.devices / kDevicesEach, kDevicesEach, owners));
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    LGPU_ASSIGN_OR_RETURN(const testing::ProgramResult listed,
                          testing::RunProgram({.argv = {testing::DaemonProcess::LgpuPath(), "ls"},
                                               .environment = {{"LGPU_ENDPOINT", daemon->dir()}}}));
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    if (listed.code != 0) return absl::InternalError(listed.err);
  }
  const testing::DaemonSize after = testing::SizeOf(daemon->pid());
  std::printf("%d logical devices in leases of %d, load %s\n", flags.devices, kDevicesEach, Load().c_str());
  std::printf("  private memory of lgpud          %7.1f MiB, before %.1f MiB   (goal: 200 MiB)\n",
              static_cast<double>(after.private_bytes) / 1048576,
              static_cast<double>(before.private_bytes) / 1048576);
  std::printf("  lgpu ls, median of 5             %7.0f ms   (goal: 1000 ms)\n", 1000 * Median(seconds));
  return absl::OkStatus();
}

/// Connections that have ended are taken out a moment later.
testing::DaemonSize SettledSize(pid_t daemon) {
  testing::DaemonSize least = testing::SizeOf(daemon);
  for (int i = 0; i < 10; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const testing::DaemonSize now = testing::SizeOf(daemon);
    least.private_bytes = std::min(least.private_bytes, now.private_bytes);
    least.descriptors = std::min(least.descriptors, now.descriptors);
  }
  return least;
}

absl::Status RunCycles(const Flags& flags) {
  LGPU_ASSIGN_OR_RETURN(const auto daemon, StartDaemon());
  constexpr int kSamples = 40;
  constexpr int kThreads = 4;
  std::vector<double> memory, descriptors;
  const auto start = Clock::now();
  for (int sample = 0; sample < kSamples; ++sample) {
    LGPU_RETURN_IF_ERROR(testing::RunLeaseCycles(daemon->dir(), flags.cycles / kSamples, kThreads));
    const testing::DaemonSize size = SettledSize(daemon->pid());
    memory.push_back(static_cast<double>(size.private_bytes) / 1048576);
    descriptors.push_back(static_cast<double>(size.descriptors));
  }
  const double took = std::chrono::duration<double>(Clock::now() - start).count();
  const auto quarter = [](const std::vector<double>& values, int which) {
    const auto from = values.begin() + which * kSamples / 4;
    return Median({from, from + kSamples / 4});
  };
  std::printf("%d cycles of a session, its lease, a chunk and the end; %.0f a second, load %s\n",
              flags.cycles, flags.cycles / took, Load().c_str());
  std::printf("  private memory of lgpud, median of the second quarter %.1f MiB, of the last %.1f MiB\n",
              quarter(memory, 1), quarter(memory, 3));
  std::printf("  descriptors of lgpud, median of the second quarter    %.0f, of the last %.0f\n",
              quarter(descriptors, 1), quarter(descriptors, 3));
  return absl::OkStatus();
}

absl::Status RunAll(const Flags& flags) {
  if (flags.only != "cycles") LGPU_RETURN_IF_ERROR(RunDevices(flags));
  if (flags.only != "devices") LGPU_RETURN_IF_ERROR(RunCycles(flags));
  return absl::OkStatus();
}

}  // namespace
}  // namespace lgpu::bench

int main(int argc, char** argv) {
  lgpu::bench::Flags flags;
  CLI::App app("Load: many logical devices, many leases.", "load_bench");
  app.add_option("--only", flags.only, "One part alone")->check(CLI::IsMember({"devices", "cycles"}));
  app.add_option("--devices", flags.devices, "Logical devices, in leases of 10")->check(CLI::PositiveNumber);
  app.add_option("--cycles", flags.cycles, "Leases that come and go")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = lgpu::bench::RunAll(flags); !status.ok()) {
    std::cerr << "load_bench: " << status << "\n";
    return 1;
  }
  return 0;
}
