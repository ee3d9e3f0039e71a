// The verbs that look at things and change them, against a real lgpud.

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "tests/cli/cli_testing.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class VerbsTest : public CliTest {
 protected:
  static const json* FindCheck(const json& diagnosis, const std::string& id) {
    for (const json& check : diagnosis["checks"]) {
      if (check["id"] == id) return &check;
    }
    return nullptr;
  }
};

TEST_F(VerbsTest, PsShowsProcessesWithFiltersAndQueries) {
  StartDaemon();
  EXPECT_EQ(Run({"ps"}).out, "No processes are attached.\n");
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, absl::StrCat("open c lease_name=train limit=", 64 * kMiB)), StartsWith("ok "));
  const std::string pid = absl::StrCat(client->pid());
  EXPECT_THAT(Run({"ps"}).out, AllOf(HasSubstr(pid), HasSubstr("train"), HasSubstr("LIVE")));
  EXPECT_EQ(Run({"ps", "--query", "pid,lease", "--format", "csv,noheader"}).out, pid + ",train\n");
  EXPECT_EQ(Run({"ps", "-p", pid, "--query", "pid"}).out, "pid\n" + pid + "\n");
  const json sessions = RunJson({"ps"});
  EXPECT_EQ(sessions["schema"], "lgpu.sessions/v1");
  EXPECT_EQ(sessions["sessions"][0]["lease"]["name"], "train");
  EXPECT_EQ(Run({"ls", "--query", "limit,gpu.total", "--format=csv,nounits"}).out,
            absl::StrCat("limit,gpu.total\n", 64 * kMiB, ",", 1024 * kMiB, "\n"));
  EXPECT_EQ(Run({"ls", "--query", "nothing"}).code, 2);
  EXPECT_EQ(Run({"ls", "--query", "idle", "--format=csv,noheader"}).out, "\n") << "no op has run";
  EXPECT_EQ(Ask(*client, "work c"), "ok");
  EXPECT_TRUE(Eventually([&] { return RunJson({"ls"})["leases"][0].contains("last_op_at"); }));
  EXPECT_EQ(Ask(*client, "close c"), "ok");
}

TEST_F(VerbsTest, AnIntervalPrintsOneObjectALine) {
  StartDaemon();
  const ProgramResult result = Run({"ls", "--json", "-i", "10ms", "--count", "3"});
  EXPECT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_EQ(json::parse(line)["schema"], "lgpu.snapshot/v1");
  }
  EXPECT_EQ(count, 3);
}

TEST_F(VerbsTest, ResizeChangesOneDeviceOrAll) {
  StartDaemon();
  ASSERT_EQ(Run({"create", "-m", "64MiB", "-n", "2", "--name", "sim"}).code, 0);
  const ProgramResult all = Run({"resize", "sim", "-m", "32MiB"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_THAT(all.err, HasSubstr("lgpu: lease sim: GPU:1 = 32.00MiB"));
  EXPECT_THAT(all.out, IsEmpty());
  const json one = RunJson({"resize", "sim", "-m", "128MiB", "--guarantee", "16MiB", "-d", "GPU:1"});
  EXPECT_EQ(one["devices"][0]["memory_limit_bytes"], 32 * kMiB);
  EXPECT_EQ(one["devices"][1]["memory_limit_bytes"], 128 * kMiB);
  EXPECT_EQ(one["devices"][1]["guarantee_bytes"], 16 * kMiB);
  const json whole = RunJson({"resize", "sim", "-m", "max", "-d", "GPU:1"});
  EXPECT_EQ(whole["devices"][1]["memory_limit_bytes"], RunJson({"inspect", "0"})["total_bytes"]);
  EXPECT_EQ(Run({"resize", "sim", "-m", "64MiB", "-d", "GPU:7"}).code, 2);
  EXPECT_EQ(Run({"resize", "none", "-m", "64MiB"}).code, 6);
  EXPECT_EQ(Run({"resize", "sim"}).code, 2);
  EXPECT_EQ(Run({"rm", "sim"}).code, 0);
}

TEST_F(VerbsTest, InspectKnowsLeasesAndGpus) {
  StartDaemon({.simulate = "2x256MiB"});
  ASSERT_EQ(Run({"create", "-m", "64MiB", "--name", "sim", "--gpus", "1"}).code, 0);
  EXPECT_THAT(Run({"inspect", "sim"}).out,
              AllOf(HasSubstr("lease    sim ("), HasSubstr("limit               64.00MiB"),
                    HasSubstr("Last events:")));
  const json lease = RunJson({"inspect", "sim"});
  EXPECT_EQ(lease["schema"], "lgpu.lease/v1");
  EXPECT_EQ(lease["events"][0]["kind"], "lease_created");
  EXPECT_THAT(Run({"inspect", "1"}).out, AllOf(HasSubstr("256.00MiB"), HasSubstr("sim")));
  EXPECT_EQ(RunJson({"inspect", Stats().cards(0).uuid()})["schema"], "lgpu.card/v1");
  const ProgramResult none = Run({"inspect", "none"});
  EXPECT_EQ(none.code, 6);
  EXPECT_THAT(none.err, HasSubstr("lgpu ls"));
  EXPECT_EQ(Run({"rm", "sim"}).code, 0);
}

TEST_F(VerbsTest, VerifyProvesTheLimitOfEveryDevice) {
  StartDaemon();
  const ProgramResult inside =
      Run({"run", "-q", "-m", "24MiB", "-n", "2", "--", DaemonProcess::LgpuPath(), "verify"});
  EXPECT_EQ(inside.code, 0) << inside.out << inside.err;
  EXPECT_THAT(inside.out, AllOf(HasSubstr("total        24.00MiB"), HasSubstr("allocatable  24.00MiB"),
                                HasSubstr("refused 2.00MiB more"), HasSubstr("The limit holds.")));
  ASSERT_EQ(Run({"create", "-m", "16MiB", "--preallocate", "--name", "sim"}).code, 0);
  const json verdict = RunJson({"verify", "--lease", "sim"});
  EXPECT_EQ(verdict["schema"], "lgpu.verification/v1");
  EXPECT_EQ(verdict["holds"], true);
  EXPECT_EQ(verdict["devices"][0]["allocatable_bytes"], 16 * kMiB);
  EXPECT_EQ(verdict["devices"][0]["daemon"]["held_bytes"], 16 * kMiB);
  const ProgramResult outside = Run({"verify"});
  EXPECT_EQ(outside.code, 1);
  EXPECT_THAT(outside.err, HasSubstr("try: lgpu run"));
  EXPECT_EQ(Run({"rm", "sim"}).code, 0);
}

TEST_F(VerbsTest, VerifyExplainsALimitBelowOneChunk) {
  StartDaemon();
  ASSERT_EQ(Run({"create", "-q", "-m", "1MiB", "--name", "tiny"}).code, 0);
  const ProgramResult result = Run({"verify", "--lease", "tiny"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("limit 1.00MiB, held 2.00MiB, used 1.00MiB: agrees"),
                                HasSubstr("a limit of 1.00MiB may hold 2.00MiB; caps count whole chunks")));
  const json verdict = RunJson({"verify", "--lease", "tiny"});
  EXPECT_EQ(verdict["devices"][0]["chunk_bytes"], 2 * kMiB);
  EXPECT_EQ(Run({"rm", "tiny"}).code, 0);
  // Not one block fits, so that nothing is held, and a chunk could be.
  ASSERT_EQ(Run({"create", "-q", "-m", "10B", "--name", "tiny"}).code, 0);
  const ProgramResult none = Run({"verify", "--lease", "tiny"});
  EXPECT_EQ(none.code, 0) << none.out << none.err;
  EXPECT_THAT(none.out, HasSubstr("it refused 4.00MiB more"));
  EXPECT_EQ(Run({"rm", "tiny"}).code, 0);
}

TEST_F(VerbsTest, VerifyFailsWhereTheLimitCannotBeReached) {
  StartDaemon({.simulate = "64MiB"});
  ASSERT_EQ(Run({"create", "-m", "64MiB", "--name", "wide"}).code, 0);
  ASSERT_EQ(Run({"create", "-m", "48MiB", "--preallocate", "--name", "full"}).code, 0);
  const ProgramResult result = Run({"verify", "--lease", "wide"});
  EXPECT_EQ(result.code, 1) << result.out << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("could not be reached"), HasSubstr("does NOT hold")));
  EXPECT_EQ(Run({"rm", "wide"}).code, 0);
  EXPECT_EQ(Run({"rm", "full"}).code, 0);
}

TEST_F(VerbsTest, DoctorChecksEverythingAndLeavesNothing) {
  StartDaemon();
  const json diagnosis = RunJson({"doctor"});
  EXPECT_EQ(diagnosis["schema"], "lgpu.diagnosis/v1");
  EXPECT_EQ(diagnosis["failures"], 0);
  for (const char* id : {"daemon", "permissions", "backend", "driver", "compute-mode", "foreign-memory",
                         "leftovers", "ledger", "self-test"}) {
    const json* check = FindCheck(diagnosis, id);
    ASSERT_NE(check, nullptr) << id;
    EXPECT_EQ((*check)["level"], "ok") << check->dump();
  }
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 0; }));
  EXPECT_THAT(Run({"doctor", "-v", "--no-self-test"}).out,
              AllOf(HasSubstr("skip  self-test"), HasSubstr("TF_FORCE_GPU_ALLOW_GROWTH")));
}

TEST_F(VerbsTest, DoctorNamesEveryFault) {
  StartDaemon({.simulate = "32MiB"});
  ChildProgram::Options options = Lgpu({"doctor", "--json"});
  options.environment["TF_FORCE_GPU_ALLOW_GROWTH"] = "True";
  const auto warned = RunProgram(options);
  ASSERT_TRUE(warned.ok());
  EXPECT_EQ(warned->code, 1) << "64MiB cannot be had from a card of 32MiB";
  const json diagnosis = json::parse(warned->out);
  EXPECT_EQ((*FindCheck(diagnosis, "TF_FORCE_GPU_ALLOW_GROWTH"))["level"], "warn");
  EXPECT_EQ((*FindCheck(diagnosis, "self-test"))["level"], "fail");
  TempDir empty;
  const ProgramResult nobody = Run({"doctor", "--endpoint", empty.path()});
  EXPECT_EQ(nobody.code, 1);
  EXPECT_THAT(nobody.out,
              AllOf(StartsWith("fail  daemon"), HasSubstr(empty.path()), HasSubstr("skip  ledger")));
}

TEST_F(VerbsTest, WaitLastsUntilThereIsMemory) {
  StartDaemon({.simulate = "64MiB"});
  ASSERT_EQ(Run({"create", "-m", "64MiB", "--preallocate", "--name", "first"}).code, 0);
  const ProgramResult too_long = Run({"create", "-m", "32MiB", "--preallocate", "--wait=2s"});
  EXPECT_EQ(too_long.code, 75) << too_long.err;
  EXPECT_THAT(
      too_long.err,
      HasSubstr("lgpu: waiting for memory, place 1 of 1: 32.00MiB on GPU 0: 0B can be promised, user "));
  EXPECT_THAT(too_long.err, HasSubstr(" has most: 64.00MiB\n"));
  auto waiting =
      ChildProgram::Start(Lgpu({"run", "-m", "32MiB", "--preallocate", "--wait", "--", "echo", "runs"}));
  ASSERT_TRUE(waiting.ok());
  ASSERT_TRUE(
      Eventually([&] { return (*waiting)->Errors().find("waiting for memory") != std::string::npos; }));
  EXPECT_EQ(Run({"rm", "first"}).code, 0);
  EXPECT_EQ((*waiting)->ReadLine(), "runs");
  EXPECT_EQ((*waiting)->Wait(), 0);
  EXPECT_EQ(Run({"create", "-m", "8MiB", "--wait=soon"}).code, 2);

  ASSERT_EQ(Run({"create", "-m", "64MiB", "--preallocate", "--name", "first"}).code, 0);
  auto stopped = ChildProgram::Start(Lgpu({"run", "-m", "32MiB", "--preallocate", "--wait", "--", "true"}));
  ASSERT_TRUE(stopped.ok());
  ASSERT_TRUE(
      Eventually([&] { return (*stopped)->Errors().find("waiting for memory") != std::string::npos; }));
  (*stopped)->Signal(SIGTERM);
  EXPECT_EQ((*stopped)->Wait(), 128 + SIGTERM);
  EXPECT_EQ(Run({"rm", "first"}).code, 0);
}

TEST_F(VerbsTest, RunSetsThePlacementVariables) {
  StartDaemon();
  const auto result = Run({"run", "-q", "-m", "8MiB", "--no-soft-placement", "--log-device-placement", "--",
                           "/bin/sh", "-c", "echo $LGPU_SOFT_PLACEMENT $LGPU_LOG_DEVICE_PLACEMENT"});
  EXPECT_EQ(result.out, "0 1\n");
  // Without the options the variables stay as they are.
  EXPECT_EQ(Run({"run", "-q", "-m", "8MiB", "--", "/bin/sh", "-c", "echo ${LGPU_SOFT_PLACEMENT-unset}"}).out,
            "unset\n");
}

TEST_F(VerbsTest, ResizeTakesNamesOfGpusOnly) {
  StartDaemon();
  ASSERT_EQ(Run({"create", "-m", "8MiB", "--name", "sized"}).code, 0);
  for (const char* const name :
       {"GPU:0", "gpu:0", "/GPU:0", "/device:GPU:0", "0", "/job:localhost/replica:0/task:0/device:GPU:0"}) {
    EXPECT_EQ(Run({"resize", "sized", "-m", "16MiB", "-d", name}).code, 0) << name;
  }
  for (const char* const name : {"CPU:0", "foo:0", "/job:worker/task:5/device:GPU:0", "GPU:"}) {
    EXPECT_EQ(Run({"resize", "sized", "-m", "32MiB", "-d", name}).code, 2) << name;
  }
  EXPECT_EQ(Run({"rm", "sized"}).code, 0);
}

TEST_F(VerbsTest, AClosedStdoutIsAnErrorAndNotASocket) {
  StartDaemon();
  const auto closed = Run({"run", "-q", "-m", "8MiB", "--", "/bin/sh", "-c", "\"$0\" ls >&-; echo code $?",
                           DaemonProcess::LgpuPath()});
  EXPECT_EQ(closed.out, "code 1\n") << closed.err;
  EXPECT_THAT(closed.err, HasSubstr("cannot write"));
}

TEST_F(VerbsTest, NamesOfLeasesAreNoIdsAndNoGpus) {
  StartDaemon();
  for (const char* const name : {"l-89df8da6", "0", "GPU-370b", "gpu-1"}) {
    EXPECT_EQ(Run({"create", "-m", "8MiB", "--name", name}).code, 2) << name;
  }
}

TEST_F(VerbsTest, HelpHasATableOfEveryFlag) {
  const ProgramResult help = Run({"help", "ls"});
  EXPECT_THAT(help.out, AllOf(HasSubstr("lgpu ls"), HasSubstr("--query")));
  const ProgramResult result = Run({"help", "--json"});
  const json table = json::parse(result.out);
  EXPECT_EQ(table["schema"], "lgpu.help/v1");
  std::vector<std::string> verbs;
  for (const json& verb : table["verbs"]) verbs.push_back(verb["name"]);
  EXPECT_THAT(verbs, ::testing::UnorderedElementsAre(
                         "run", "exec", "ls", "ps", "top", "create", "resize", "suspend", "resume", "rm",
                         "trim", "inspect", "env", "slurm", "placements", "snapshot", "trace", "explain",
                         "events", "verify", "doctor", "completion", "version", "help"));
  EXPECT_EQ(Run({"help", "nothing"}).code, 2);
  const std::string all = Run({"--help"}).out;
  EXPECT_THAT(all, Not(HasSubstr("__complete")));
  for (const std::string& verb : verbs) EXPECT_THAT(all, HasSubstr("\n  " + verb + " ")) << "in a group";
}

TEST_F(VerbsTest, CompletionNeedsNoDaemon) {
  for (const char* shell : {"bash", "zsh", "fish"}) EXPECT_EQ(Run({"completion", shell}).code, 0);
  EXPECT_EQ(Run({"completion", "csh"}).code, 2);
  TempDir empty;
  ChildProgram::Options options = Lgpu({"__complete", "bash", "--", "rm", ""});
  options.environment["LGPU_ENDPOINT"] = empty.path();
  EXPECT_EQ(RunProgram(options)->out, ":nothing\n");
}

}  // namespace
}  // namespace lgpu::testing
