// The real lgpu against a real lgpud.

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/cli/cli_testing.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(CliTest, HelpAndVersionNeedNoDaemon) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{}, {"--help"}, {"help"}, {"run", "--help"}, {"help", "run"}}) {
    const ProgramResult result = Run(words);
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.out, HasSubstr("Usage:"));
    EXPECT_THAT(result.err, IsEmpty());
  }
  EXPECT_THAT(Run({"--version"}).out, StartsWith("lgpu "));
}

TEST_F(CliTest, WrongCommandLinesAreUsageErrorsButTheCodesOfRunStayTheCommands) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"bogus"},
                                                {"ls", "--bogus"},
                                                {"rm"},
                                                {"create", "-m", "1GB"},
                                                {"create", "-n", "0"},
                                                {"ls", "--", "true"},
                                                {"ls", "--timeout", "soon"}}) {
    const ProgramResult result = Run(words);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, StartsWith("lgpu: error: "));
    EXPECT_THAT(result.out, IsEmpty());
  }
  EXPECT_EQ(Run({"run", "--bogus", "--", "true"}).code, 125);
  EXPECT_EQ(Run({"run"}).code, 125);
}

TEST_F(CliTest, NoDaemonIsUnavailableAndNamesTheDirectoryAndTheNextStep) {
  TempDir empty;
  const ProgramResult result = Run({"ls", "--endpoint", empty.path()});
  EXPECT_EQ(result.code, 69);
  EXPECT_THAT(result.err, AllOf(HasSubstr(empty.path()), HasSubstr("[UNAVAILABLE]"), HasSubstr("try:")));
  EXPECT_EQ(Run({"run", "--endpoint", empty.path(), "--", "true"}).code, 125);
  const json error = json::parse(Run({"ls", "--json", "--endpoint", empty.path()}).err);
  EXPECT_EQ(error["schema"], "lgpu.error/v1");
  EXPECT_EQ(error["exit_code"], 69);
}

TEST_F(CliTest, LsShowsCardsAndLeases) {
  StartDaemon({.simulate = "2x256MiB"});
  EXPECT_THAT(Run({"ls"}).out,
              AllOf(HasSubstr("Simulated GPU"), HasSubstr("256.00MiB"), HasSubstr("No leases.")));
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, absl::StrCat("open c lease_name=train limit=", 64 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 16 * kMiB)), StartsWith("ok "));
  const ProgramResult result = Run({"ls"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("train"), HasSubstr("GPU:0"), HasSubstr("growth"), HasSubstr("64.00MiB"),
                    HasSubstr(absl::StrCat(client->pid())), HasSubstr("LIVE")));
  const json snapshot = RunJson({"ls"});
  EXPECT_EQ(snapshot["schema"], "lgpu.snapshot/v1");
  EXPECT_EQ(snapshot["cards"].size(), 2u);
  EXPECT_EQ(snapshot["leases"][0]["devices"][0]["memory_limit_bytes"], 64 * kMiB);
  // It may have grown ahead of its need.
  EXPECT_GE(snapshot["leases"][0]["devices"][0]["held_bytes"], 16 * kMiB);
  EXPECT_LE(snapshot["leases"][0]["devices"][0]["held_bytes"], 64 * kMiB);
  EXPECT_EQ(snapshot["leases"][0]["sessions"][0]["pid"], client->pid());
  EXPECT_EQ(Ask(*client, "close c"), "ok");
}

TEST_F(CliTest, CreatedLeasesLastUntilTheyAreRemoved) {
  StartDaemon();
  const json lease = RunJson({"create", "-m", "64MiB", "-n", "2", "--preallocate", "--name", "sim"});
  EXPECT_EQ(lease["name"], "sim");
  EXPECT_EQ(lease["devices"].size(), 2u);
  EXPECT_EQ(lease["devices"][1]["mode"], "preallocate");
  EXPECT_EQ(HeldBytes(), 128 * kMiB);
  const ProgramResult twice = Run({"create", "-m", "64MiB", "--name", "sim"});
  EXPECT_EQ(twice.code, 73) << twice.err;
  EXPECT_THAT(twice.err, HasSubstr("[ALREADY_EXISTS]"));

  auto client = StartClient({{"LGPU_LEASE", lease["id"].get<std::string>()}});
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "work c"), "ok");
  EXPECT_EQ(Ask(*client, "close c"), "ok");
  EXPECT_EQ(Stats().leases_size(), 1);
  const ProgramResult removed = Run({"rm", "sim"});
  EXPECT_EQ(removed.code, 0) << removed.err;
  const ProgramResult gone = Run({"rm", "sim"});
  EXPECT_EQ(gone.code, 6);
  EXPECT_THAT(gone.err, AllOf(HasSubstr("sim"), HasSubstr("[NOT_FOUND]")));
}

TEST_F(CliTest, CreatePrintsTheHandleOnStdoutAndTheRestOnStderr) {
  StartDaemon();
  const ProgramResult created = Run({"create", "-m", "8MiB", "--name", "a"});
  ASSERT_EQ(created.code, 0) << created.err;
  EXPECT_EQ(created.out, Stats().leases(0).id() + "\n");
  EXPECT_THAT(created.err, HasSubstr("lgpu: lease a: GPU:0 = 8.00MiB (growth) on GPU 0 Simulated GPU"));
  const ProgramResult quiet = Run({"create", "-q", "-m", "8MiB", "--name", "b"});
  EXPECT_THAT(quiet.err, IsEmpty());
  EXPECT_EQ(Run({"rm", "a"}).code, 0);
  EXPECT_EQ(Run({"rm", "b"}).code, 0);
}

TEST_F(CliTest, NotEnoughMemoryNowHasItsOwnCodeAndTheWholeExplanation) {
  StartDaemon({.simulate = "128MiB"});
  ASSERT_EQ(Run({"create", "-m", "96MiB", "--preallocate", "--name", "big"}).code, 0);
  const ProgramResult refused = Run({"create", "-m", "64MiB", "--preallocate"});
  EXPECT_EQ(refused.code, 75) << refused.err;
  EXPECT_THAT(refused.err, AllOf(StartsWith("lgpu: error: "), HasSubstr("[RESOURCE_EXHAUSTED]\n"),
                                 HasSubstr("big"), HasSubstr("96.00MiB"), HasSubstr("64.00MiB")));
  // A lease is known to be idle one second after it was made.
  json error;
  EXPECT_TRUE(Eventually([&] {
    error = json::parse(Run({"create", "--json", "-m", "64MiB", "--preallocate"}).err);
    return error["refusal"]["holders"][0].contains("idle_seconds");
  })) << error.dump();
  EXPECT_EQ(error["refusal"]["asked_bytes"], 64 * kMiB);
  EXPECT_EQ(error["refusal"]["holders"][0]["lease"], "big");
  EXPECT_EQ(Run({"rm", "big"}).code, 0);
}

TEST_F(CliTest, RunGivesTheCommandItsLeaseAndTakesItBackAtTheEnd) {
  StartDaemon({.simulate = "2x256MiB"});
  std::vector<std::string> words = {"run", "-m", "32MiB", "-n", "2", "--name", "job", "-e", "A=b c", "--"};
  for (const std::string& word : Shell(
           "echo $LGPU_LEASE; echo $LGPU_ENDPOINT; echo ${CUDA_VISIBLE_DEVICES-all}; echo $A; "
           "printf 'open c\\nwork c\\nalloc c t 33554432\\nalloc c u 512\\nclose c\\n' | " LGPU_E2E_CLIENT)) {
    words.push_back(word);
  }
  const ProgramResult result = Run(words);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("lgpu: lease job: GPU:0 = 32.00MiB (growth) on GPU "),
                                HasSubstr("lgpu: lease job: GPU:1 = 32.00MiB (growth) on GPU "),
                                Not(HasSubstr("never attached"))));
  EXPECT_THAT(result.out, HasSubstr("\n" + daemon_->dir() + "\n"));
  EXPECT_THAT(result.out, HasSubstr("\nb c\nok "));
  EXPECT_THAT(result.out, HasSubstr("error RESOURCE_EXHAUSTED")) << "the lease's limit is the command's";
  EXPECT_THAT(result.out, HasSubstr("\nall\n")) << "a lease on simulated GPUs hides no real one";
  EXPECT_EQ(Stats().leases_size(), 0) << "the lease ends with the command";
}

TEST_F(CliTest, RunHandsTheExitCodeOn) {
  StartDaemon();
  const auto code_of = [&](const std::string& script) {
    return Run({"run", "-q", "-m", "8MiB", "--", "/bin/sh", "-c", script}).code;
  };
  EXPECT_EQ(code_of("exit 0"), 0);
  EXPECT_EQ(code_of("exit 3"), 3);
  EXPECT_EQ(code_of("kill -TERM $$"), 128 + SIGTERM);
  EXPECT_EQ(code_of("kill -KILL $$"), 128 + SIGKILL);
  EXPECT_EQ(code_of("kill -PIPE $$"), 128 + SIGPIPE);  // which lgpu itself ignores meanwhile
  EXPECT_EQ(Run({"run", "-m", "8MiB", "--", "no-such-command-at-all"}).code, 127);
  EXPECT_EQ(Run({"run", "-m", "8MiB", "--", "/etc/passwd"}).code, 126);
  EXPECT_EQ(Run({"run", "-m", "8TiB", "--", "true"}).code, 125);
  EXPECT_EQ(Run({"run", "-m", "8MiB", "-e", "=novalue", "--", "true"}).code, 125);
  // Words after the command are its own, also those that look like options of lgpu.
  EXPECT_EQ(Run({"run", "-q", "-m", "8MiB", "--", "echo", "ls", "--json", "--", "-m"}).out,
            "ls --json -- -m\n");
}

TEST_F(CliTest, RunSaysWhenTheCommandNeverAttached) {
  StartDaemon();
  const ProgramResult loose = Run({"run", "-m", "8MiB", "--", "true"});
  EXPECT_EQ(loose.code, 0);
  EXPECT_THAT(loose.err, HasSubstr("lgpu: true never attached: its memory was not limited"));
  EXPECT_THAT(Run({"run", "-q", "-m", "8MiB", "--", "true"}).err, IsEmpty());
  EXPECT_EQ(Run({"run", "-m", "8MiB", "--require-attach", "--", "true"}).code, 125);
  std::vector<std::string> words = {"run", "-m", "8MiB", "--require-attach", "--"};
  for (const std::string& word : Shell("echo 'open c' | " LGPU_E2E_CLIENT)) words.push_back(word);
  const ProgramResult attached = Run(words);
  EXPECT_EQ(attached.code, 0) << attached.err;
  EXPECT_THAT(attached.err, Not(HasSubstr("never attached")));
}

TEST_F(CliTest, RunPassesSignalsOnAndItsLeaseDiesWithIt) {
  StartDaemon();
  auto lgpu =
      ChildProgram::Start(Lgpu({"run", "-m", "8MiB", "--", "/bin/sh", "-c",
                                "trap 'echo got; exit 7' TERM; echo ready; while :; do sleep 0.05; done"}));
  ASSERT_TRUE(lgpu.ok()) << lgpu.status();
  ASSERT_EQ((*lgpu)->ReadLine(), "ready");
  (*lgpu)->Signal(SIGTERM);
  EXPECT_EQ((*lgpu)->ReadLine(), "got");
  EXPECT_EQ((*lgpu)->Wait(), 7);

  auto killed = ChildProgram::Start(Lgpu({"run", "-m", "8MiB", "--preallocate", "--", "cat"}));
  ASSERT_TRUE(killed.ok()) << killed.status();
  ASSERT_TRUE(Eventually([&] { return HeldBytes() == 8 * kMiB; }));
  (*killed)->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 0 && HeldBytes() == 0; }));
}

TEST_F(CliTest, ACommandCountsTheGpusOfItsLeaseWhereTheCallerCountedTheMachines) {
  StartDaemon({.simulate = "3x64MiB"});
  std::vector<std::string> words = {"run", "-m", "16MiB", "--name", "job", "--"};
  for (const std::string& word :
       Shell("echo $CUDA_VISIBLE_DEVICES; printf 'visible\\nopen c\\n' | " LGPU_E2E_CLIENT
             "; printf 'visible\\nopen c\\n' | CUDA_VISIBLE_DEVICES=0 " LGPU_E2E_CLIENT)) {
    words.push_back(word);
  }
  ChildProgram::Options options = Lgpu(words);
  options.environment["CUDA_VISIBLE_DEVICES"] = "2";
  const auto result = RunProgram(options);
  ASSERT_TRUE(result.ok() && result->code == 0) << (result.ok() ? result->err : "");
  const std::string uuid = Stats().cards(2).uuid();
  EXPECT_THAT(result->out, ::testing::MatchesRegex(
                               absl::StrCat(uuid, "\nok ", uuid, "\nok [^\n]*\nok ", uuid, "\nok [^\n]*\n")));
}

TEST_F(CliTest, ExplainAndDoctorCountTheGpusOfTheLeaseTheyRunIn) {
  StartDaemon({.simulate = "3x64MiB"});
  ASSERT_EQ(Run({"create", "-m", "16MiB", "-n", "2", "--gpus", "2,1", "--name", "pair"}).code, 0);
  const auto inside = [&](const char* visible, const std::vector<std::string>& words) {
    ChildProgram::Options options = Lgpu(words);
    options.environment["LGPU_LEASE"] = "pair";
    options.environment["CUDA_VISIBLE_DEVICES"] = visible;
    const auto result = RunProgram(options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ProgramResult();
  };
  const std::vector<std::string> second = {"explain", "MatMul", "-d", "gpu:1", "--hard", "--json"};
  EXPECT_FALSE(json::parse(inside("0,1", second).out).contains("error"));
  EXPECT_EQ(json::parse(inside("1", second).out)["error"]["code"], "INVALID_ARGUMENT") << "one GPU is hidden";
  const ProgramResult none = inside("2", second);
  EXPECT_EQ(none.code, 6);
  EXPECT_THAT(none.err, HasSubstr("an index counts the lease's GPUs"));
  EXPECT_THAT(inside("1", {"doctor", "-v", "--no-self-test"}).out, HasSubstr("inside lease pair"));
}

TEST_F(CliTest, GpusAndVisibleDevicesChooseTheCard) {
  StartDaemon({.simulate = "3x64MiB"});
  const auto card_of = [&](const std::vector<std::string>& flags, const char* visible) {
    std::vector<std::string> words = {"create", "--json", "-m", "8MiB", "--name", "x"};
    words.insert(words.end(), flags.begin(), flags.end());
    ChildProgram::Options options = Lgpu(words);
    if (visible != nullptr) options.environment["CUDA_VISIBLE_DEVICES"] = visible;
    const auto result = RunProgram(options);
    EXPECT_TRUE(result.ok());
    if (result->code != 0) return -result->code;
    EXPECT_EQ(Run({"rm", "x"}).code, 0);
    return json::parse(result->out)["devices"][0]["gpu"].get<int>();
  };
  EXPECT_EQ(card_of({"--gpus", "2"}, nullptr), 2);
  EXPECT_EQ(card_of({"--gpus", Stats().cards(1).uuid()}, nullptr), 1);
  EXPECT_EQ(card_of({}, "2"), 2);
  EXPECT_EQ(card_of({"--gpus", "0,1"}, "2,1"), 1);
  EXPECT_EQ(card_of({"--gpus", "0"}, "2,1"), -6);
  EXPECT_EQ(card_of({}, "7"), -6);
  EXPECT_GE(card_of({"--gpus", "all"}, "7"), 0) << "all means all";
  EXPECT_EQ(card_of({}, ""), -6);
  EXPECT_EQ(card_of({"--gpus", "9"}, nullptr), -6);
}

TEST_F(CliTest, PlacementsShowTotalsRecordsAndFollow) {
  StartDaemon();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, absl::StrCat("open c lease_name=train limit=", 64 * kMiB)), StartsWith("ok "));
  ASSERT_EQ(Ask(*client, "work c 5"), "ok");
  ASSERT_TRUE(Eventually([&] { return control_->GetPlacements("train")->records_total() >= 10; }));
  const ProgramResult table = Run({"placements", "train"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("Lease train: "), HasSubstr("MatMul"), HasSubstr("AddN"),
                               HasSubstr("\nGPU:0 "), Not(HasSubstr("/job:"))));
  EXPECT_THAT(Run({"placements", "train", "-v"}).out,
              HasSubstr("/job:localhost/replica:0/task:0/device:GPU:0"));
  const json report = RunJson({"placements", "train", "--records", "3"});
  EXPECT_EQ(report["schema"], "lgpu.placements/v1");
  EXPECT_EQ(report["records"].size(), 3u);

  auto follow = ChildProgram::Start(Lgpu({"placements", "train", "--follow", "--json"}));
  ASSERT_TRUE(follow.ok());
  const v1::PlacementReport kept = *control_->GetPlacements("train");
  ASSERT_GT(kept.copies_size(), 0);
  // Ops and copies: the kept ones, then those of more work.
  std::map<std::string, int> left = {{"lgpu.placement/v1", kept.records_size() + 2},
                                     {"lgpu.copy/v1", kept.copies_size()}};
  ASSERT_EQ(Ask(*client, "work c"), "ok");
  while (left["lgpu.placement/v1"] > 0 || left["lgpu.copy/v1"] > 0) {
    const std::optional<std::string> line = (*follow)->ReadLine();
    ASSERT_TRUE(line.has_value());
    const json record = json::parse(*line);
    --left[record["schema"]];
    EXPECT_EQ(record["pid"], client->pid());
  }
  EXPECT_EQ(Run({"placements", "none"}).code, 6);

  const ProgramResult why = Run(
      {"explain", "MatMul", "--lease", "train", "-d", "gpu:1", "-i", "float[2,3]@GPU:0", "-i", "float[3,2]"});
  EXPECT_EQ(why.code, 0) << why.err;
  EXPECT_THAT(why.out, HasSubstr("runs on /job:localhost/replica:0/task:0/device:GPU:0 (soft placement)"));
  const json hard = RunJson({"explain", "MatMul", "--gpus", "2", "-d", "gpu:2", "--hard"});
  EXPECT_EQ(hard["schema"], "lgpu.explanation/v1");
  EXPECT_EQ(hard["error"]["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(Run({"explain", "Nothing"}).code, 2);
  EXPECT_EQ(Ask(*client, "close c"), "ok");
}

TEST_F(CliTest, EventsListTheHistoryOfALease) {
  StartDaemon();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, absl::StrCat("open c timeout=0 lease_name=train limit=", 8 * kMiB)),
              StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 6 * kMiB)), StartsWith("ok "));
  auto follow = ChildProgram::Start(Lgpu({"events", "--follow", "--json", "--lease", "train"}));
  ASSERT_TRUE(follow.ok());
  std::vector<std::string> kinds;
  const auto read_until = [&](const std::string& kind) {
    while (const auto line = (*follow)->ReadLine()) {
      kinds.push_back(json::parse(*line)["kind"]);
      if (kinds.back() == kind) return true;
    }
    return false;
  };
  EXPECT_TRUE(read_until("session_attached"));
  client->Signal(SIGKILL);
  EXPECT_TRUE(read_until("session_lost"));
  EXPECT_TRUE(read_until("session_gone"));
  const ProgramResult kept = Run({"events"});
  EXPECT_EQ(kept.code, 0) << kept.err;
  EXPECT_THAT(kept.out, AllOf(HasSubstr("train"), HasSubstr("lgpud")));
}

TEST_F(CliTest, AReaderThatGoesAwayEndsItQuietly) {
  StartDaemon();
  auto shell = ChildProgram::Start(
      {.argv = Shell("{ " + DaemonProcess::LgpuPath() + " events --follow; echo $? >&2; } | head -n 1"),
       .environment = {{"LGPU_ENDPOINT", daemon_->dir()}}});
  ASSERT_TRUE(shell.ok());
  // It cannot write the next event any more.
  ASSERT_TRUE((*shell)->ReadLine().has_value());
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "close c"), "ok");
  EXPECT_EQ((*shell)->Wait(), 0);
  EXPECT_EQ((*shell)->Errors(), absl::StrCat(128 + SIGPIPE, "\n"));
}

TEST_F(CliTest, VersionNamesBothSides) {
  StartDaemon();
  const json version = RunJson({"version"});
  EXPECT_EQ(version["daemon"]["backend"], "simulated");
  EXPECT_EQ(version["daemon"]["pid"], daemon_->pid());
  EXPECT_THAT(Run({"version"}).out, AllOf(StartsWith("lgpu "), HasSubstr("\nlgpud ")));
}

}  // namespace
}  // namespace lgpu::testing
