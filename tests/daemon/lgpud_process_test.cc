// The real lgpud as its user meets it: how it starts, refuses to, and ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/exit_codes.h"
#include "base/nvidia_driver.h"
#include "tests/support/child_program.h"
#include "tests/support/daemon_process.h"

namespace lgpu {
namespace {

using testing::ChildProgram;
using testing::DaemonProcess;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::TempDir;

ProgramResult RunLgpud(std::vector<std::string> arguments,
                       const ChildProgram::Environment& environment = {}) {
  arguments.insert(arguments.begin(), DaemonProcess::LgpudPath());
  absl::StatusOr<ProgramResult> result =
      testing::RunProgram({.argv = std::move(arguments), .environment = environment, .open_files = 0});
  EXPECT_EQ(result.status(), absl::OkStatus());
  return result.ok() ? *result : ProgramResult();
}

TEST(LgpudProcessTest, SaysThatItIsReadyAndEndsOnSigterm) {
  auto daemon = DaemonProcess::Start({.simulate = "2x64MiB"});
  ASSERT_EQ(daemon.status(), absl::OkStatus());
  EXPECT_THAT((*daemon)->program().Errors(),
              HasSubstr("ready: 2 simulated GPUs, directory " + (*daemon)->dir() + "\n"));
  EXPECT_TRUE(std::filesystem::exists((*daemon)->dir() + "/control.sock"));
  EXPECT_EQ((*daemon)->Stop(), 0);
  EXPECT_FALSE(std::filesystem::exists((*daemon)->dir() + "/control.sock"));
  EXPECT_FALSE(std::filesystem::exists((*daemon)->dir() + "/session.sock"));
}

TEST(LgpudProcessTest, MoreSimulatedMemoryThanTheMachineHasIsWarnedOf) {
  auto daemon = DaemonProcess::Start({.simulate = "2x32TiB"});
  ASSERT_EQ(daemon.status(), absl::OkStatus());
  EXPECT_THAT((*daemon)->program().Errors(),
              HasSubstr("the simulated GPUs have 64.00TiB, and this machine has "));
  EXPECT_EQ((*daemon)->Stop(), 0);
}

TEST(LgpudProcessTest, StartsAgainWhereOneWasKilled) {
  const TempDir temporary;
  const DaemonProcess::Options options{.dir = temporary.path() + "/run"};
  auto first = DaemonProcess::Start(options);
  ASSERT_EQ(first.status(), absl::OkStatus());
  (*first)->program().Signal(SIGKILL);
  EXPECT_EQ((*first)->program().Wait(), 128 + SIGKILL);
  EXPECT_TRUE(std::filesystem::exists(options.dir + "/session.sock"));
  auto second = DaemonProcess::Start(options);
  ASSERT_EQ(second.status(), absl::OkStatus());
  EXPECT_EQ((*second)->Stop(), 0);
}

TEST(LgpudProcessTest, ASecondOneInTheDirectoryNamesTheFirst) {
  auto first = DaemonProcess::Start();
  ASSERT_EQ(first.status(), absl::OkStatus());
  const ProgramResult second = RunLgpud({"--simulate", "64MiB", "--dir", (*first)->dir()});
  EXPECT_EQ(second.code, kExitFailure);
  EXPECT_THAT(second.err, HasSubstr("another lgpud (pid " + std::to_string((*first)->pid()) + ")"));
  EXPECT_TRUE((*first)->program().running());
  EXPECT_EQ((*first)->Stop(), 0);
}

TEST(LgpudProcessTest, ASecondOneOnTheSameCardsNamesTheirOwner) {
  const TempDir locks;
  const std::string card = "[[simulated_device]]\nmemory = \"64MiB\"\nuuid = \"GPU-the-only-one\"\n";
  auto first = DaemonProcess::Start({.simulate = "", .lock_dir = locks.path(), .config = card});
  ASSERT_EQ(first.status(), absl::OkStatus());
  const TempDir other;
  std::ofstream(other.path() + "/lgpud.toml") << "[daemon]\nlock_dir = \"" << locks.path() << "\"\n" << card;
  const ProgramResult second =
      RunLgpud({"--dir", other.path() + "/run", "--config", other.path() + "/lgpud.toml"});
  EXPECT_EQ(second.code, kExitNoGpu);
  EXPECT_THAT(second.err, HasSubstr("GPU-the-only-one: owned by the daemon of " + (*first)->dir()));
}

TEST(LgpudProcessTest, WithoutAGpuTheErrorNamesTheNextStep) {
  const TempDir temporary;
  std::ofstream(temporary.path() + "/lgpud.toml") << "";
  const ProgramResult result =
      RunLgpud({"--dir", temporary.path() + "/run", "--config", temporary.path() + "/lgpud.toml"},
               {{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_EQ(result.code, kExitNoGpu);
  EXPECT_THAT(result.err, HasSubstr("lgpud --simulate 2x1GiB"));
}

TEST(LgpudProcessTest, TheCheckOfGpusFailsWhereNoStartCouldServeAnyAndForNoOtherReason) {
  const TempDir temporary;
  const std::string file = temporary.path() + "/lgpud.toml";
  std::ofstream(file) << "";
  const ProgramResult none = RunLgpud({"--config", file, "--check-gpus"}, {{"CUDA_VISIBLE_DEVICES", ""}});
  if (!HasNvidiaDriver()) {
    EXPECT_EQ(none.code, kExitNoGpu);
    EXPECT_THAT(none.err, HasSubstr("lgpud --simulate 2x1GiB"));
  }
  EXPECT_EQ(RunLgpud({"--config", file, "--check-gpus", "--simulate", "64MiB"}).code, kExitOk);
  std::ofstream(file) << "[[simulated_device]]\nmemory = \"64MiB\"\n";
  EXPECT_EQ(RunLgpud({"--config", file, "--check-gpus"}).code, kExitOk);
  std::ofstream(file) << "[daemon]\nmax_sesions = 3\n";
  EXPECT_EQ(RunLgpud({"--config", file, "--check-gpus"}).code, kExitOk) << "the start says what is wrong";
}

TEST(LgpudProcessTest, WrongConfigurationIsCode78AndNamesThePlace) {
  const TempDir temporary;
  const std::string file = temporary.path() + "/lgpud.toml";
  std::ofstream(file) << "[daemon]\nmax_sesions = 3\n";
  for (const bool check : {false, true}) {
    std::vector<std::string> arguments{"--config", file, "--dir", temporary.path() + "/run"};
    if (check) arguments.push_back("--check-config");
    const ProgramResult result = RunLgpud(arguments);
    EXPECT_EQ(result.code, kExitConfig);
    EXPECT_THAT(result.err, HasSubstr(file + ":2:1: unknown key 'max_sesions'"));
  }
  std::ofstream(file) << "[daemon]\nmax_sessions = 3\n";
  EXPECT_EQ(RunLgpud({"--config", file, "--check-config"}).out, "configuration ok\n");
  EXPECT_THAT(RunLgpud({"--config", file, "--print-config"}).out,
              HasSubstr("daemon.max_sessions = 3  # " + file + ":2:1\n"));
  std::ofstream(file) << "[[logical_device]]\nlease = \"a\"\ngpu = \"9\"\n";
  EXPECT_EQ(RunLgpud({"--config", file, "--simulate", "64MiB", "--print-config"}).code, kExitConfig);
  EXPECT_EQ(RunLgpud({"--simulate", "2x1GB"}).code, kExitUsage);
}

TEST(LgpudProcessTest, TellsTheServiceManagerThatItIsReadyAliveAndStopping) {
  const TempDir temporary;
  const std::string path = temporary.path() + "/notify";
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const timeval patience{.tv_sec = ChildProgram::kPatience.count(), .tv_usec = 0};
  ASSERT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
  const auto next = [&] {
    char text[64] = {};
    return ::recv(socket.get(), text, sizeof text - 1, 0) > 0 ? std::string(text) : std::string();
  };

  auto daemon = DaemonProcess::Start({.environment = {{"NOTIFY_SOCKET", path}, {"WATCHDOG_USEC", "20000"}}});
  ASSERT_EQ(daemon.status(), absl::OkStatus());
  EXPECT_EQ(next(), "READY=1\nSTATUS=serving 1 simulated GPU");
  EXPECT_EQ(next(), "WATCHDOG=1");
  EXPECT_EQ(next(), "WATCHDOG=1");
  (*daemon)->program().Signal(SIGTERM);
  std::string last = next();
  while (last == "WATCHDOG=1") last = next();
  EXPECT_EQ(last, "STOPPING=1");
  EXPECT_EQ((*daemon)->Stop(), 0);
}

}  // namespace
}  // namespace lgpu
