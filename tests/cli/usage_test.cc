// Wrong words on the command line, and how errors look, against a real lgpud.

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/cli/cli_testing.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class UsageTest : public CliTest {
 protected:
  void TearDown() override {
    if (daemon_) Run({"rm", "train"});
    CliTest::TearDown();
  }
  void StartWithLease(const std::vector<std::string>& more = {}) {
    StartDaemon({.simulate = "2x256MiB"});
    std::vector<std::string> words = {"create", "-q", "-m", "64MiB", "-n", "2", "--name", "train"};
    words.insert(words.end(), more.begin(), more.end());
    ASSERT_EQ(Run(words).code, 0);
  }
  ProgramResult RunWith(const ChildProgram::Environment& environment, const std::vector<std::string>& words) {
    ChildProgram::Options options = Lgpu(words);
    for (const auto& [name, value] : environment) options.environment[name] = value;
    return *RunProgram(options);
  }
};

TEST_F(UsageTest, AFilterWithoutAMatchListsThePossibleValues) {
  StartWithLease();
  for (const char* const verb : {"ls", "ps", "events"}) {
    const ProgramResult lease = Run({verb, "--lease", "nix"});
    EXPECT_EQ(lease.code, 6) << verb;
    EXPECT_THAT(lease.err, HasSubstr("you have no lease named \"nix\"")) << verb;
    EXPECT_THAT(lease.out, IsEmpty()) << verb;
  }
  EXPECT_THAT(Run({"ls", "--lease", "nix"}).err, HasSubstr("there are: train"));
  const ProgramResult user = Run({"ps", "-u", "nosuch"});
  EXPECT_EQ(user.code, 6);
  EXPECT_THAT(user.err, AllOf(HasSubstr("there is no user \"nosuch\""), HasSubstr("are of: ")));
  const ProgramResult pid = Run({"ps", "-p", "1"});
  EXPECT_EQ(pid.code, 6);
  EXPECT_THAT(pid.err, HasSubstr("attached are: none"));
  EXPECT_EQ(Run({"ps", "-p", "0"}).code, 2);
  EXPECT_EQ(Run({"ls", "-u", "nobody", "--query", "lease"}).out, "lease\n") << "a user without leases";
  ASSERT_EQ(Run({"rm", "train"}).code, 0);
  EXPECT_THAT(Run({"events", "--lease", "train"}).out, HasSubstr("train has ended"));
}

TEST_F(UsageTest, AFlagWithoutEffectIsWrong) {
  StartWithLease();
  const std::vector<std::vector<std::string>> wrong = {
      {"ls", "--format=csv"},
      {"ls", "--count", "2"},
      {"ls", "--query", "lease", "--json"},
      {"ls", "--by-user", "--query", "lease"},
      {"ls", "-i", "0"},
      {"placements", "train", "-f", "--records", "4"},
      {"ls", "--color=always", "--no-color"},
      {"explain", "MatMul", "--to", "float"},
      {"explain", "Cast", "--transpose-a"},
      {"explain", "Cast", "--dtype", "int32", "-i", "int32[2]"},
      {"ls", "--timeout", "0"},
      {"ls", "--lease", ""},
      {"ls", "--lease="},
      {"ls", "--watch", "--json"},
      {"create", "--wait="},
      {"create", "-m", ""},
      {"rm", "\xff"},
      {"inspect", "a\xed\xa0\x80"},
      {"create", "-m", "0%"},
      {"create", "-m", "101%"},
      {"create", "-m", "x%"}};
  for (const std::vector<std::string>& words : wrong) {
    const ProgramResult result = Run(words);
    EXPECT_EQ(result.code, 2) << ::testing::PrintToString(words) << result.err;
    EXPECT_THAT(result.err, HasSubstr("INVALID_ARGUMENT")) << ::testing::PrintToString(words);
  }
  EXPECT_EQ(RunWith({{"LGPU_LEASE", "\xff"}}, {"verify"}).code, 2);
}

TEST_F(UsageTest, ADaemonThatDoesNotAnswerEndsEveryVerbInTime) {
  StartWithLease();
  daemon_->program().Signal(SIGSTOP);
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"events"}, {"events", "-f"}, {"inspect", "train"}, {"placements", "train", "-f"}, {"ls"}}) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--timeout", "100ms"});
    const ProgramResult result = Run(all);
    EXPECT_EQ(result.code, 69) << words[0];
    EXPECT_THAT(result.err, HasSubstr("did not answer within 0.1s")) << words[0];
  }
  daemon_->program().Signal(SIGCONT);
}

TEST_F(UsageTest, DoctorAsksADaemonThatHangsOnlyOnce) {
  StartWithLease();
  daemon_->program().Signal(SIGSTOP);
  const ProgramResult result = Run({"doctor", "-v", "--timeout", "100ms"});
  daemon_->program().Signal(SIGCONT);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("did not answer within 0.1s"), HasSubstr("skip  self-test")));
}

TEST_F(UsageTest, AMistypedWordIsAnsweredWithASuggestion) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> lines = {
      {{"htop"}, "try: lgpu top\n"},
      {{"lst"}, "try: lgpu ls\n"},
      {{"status", "-q"}, "try: lgpu ls\n"},
      {{"launch", "true"}, "try: lgpu run\n"},
      {{"remove", "x"}, "try: lgpu rm\n"},
      {{"help", "lits"}, "try: lgpu ls\n"},
      {{"ls", "--querry", "lease"}, "try: --query\n"},
      {{"create", "--mem", "8MiB"}, "try: --memory\n"},
      {{"run", "--limit=8MiB", "--", "true"}, "try: --memory\n"},
      {{"rm", "-f", "train"}, "try: --if-exists\n"},
      {{"rm", "--al"}, "try: lgpu rm --help\n"},
      {{"rm", "--kil", "train"}, "try: lgpu rm --help\n"},
      {{"run", "-m", "8MiB", "python3", "a b.py", "--name", "x"},
       "try: lgpu run -m 8MiB -- python3 'a b.py' --name x\n"},
      {{"-q", "--", "true"}, "try: lgpu run -q -- true\n"},
      {{"ls", "train"}, "try: lgpu ls --lease train\n"},
      {{"--lease", "x", "verify"}, "try: lgpu verify --lease ...\n"},
      {{"--memory=8MiB", "ls"}, "try: lgpu ls --help\n"},
      {{"zzzzzzzz"}, "try: lgpu help\n"}};
  for (const auto& [words, advice] : lines) {
    const ProgramResult result = Run(words);
    EXPECT_EQ(result.code, words[0] == "run" ? 125 : 2) << ::testing::PrintToString(words);
    EXPECT_THAT(result.err, HasSubstr(advice)) << ::testing::PrintToString(words);
  }
}

TEST_F(UsageTest, AWrongLineIsAnsweredInPlainWords) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> lines = {
      {{"-q"}, "error: lgpu needs a verb ["},
      {{"nix"}, "error: lgpu has no verb nix ["},
      {{"ls", "train"}, "error: lgpu ls takes no arguments, but you gave it train ["},
      {{"env", "train", "eval"}, "error: lgpu env takes 1 argument; eval is one too many ["},
      {{"inspect"}, "error: lgpu inspect needs LEASE|GPU ["},
      {{"env"}, "error: lgpu env needs LEASE ["},
      {{"ls", "--interval", "1s", "--count", "x"}, "error: --count: x is not a whole number ["},
      {{"ls", "--query"}, "error: --query needs a value: KEY,KEY ["},
      {{"rm", "train", "--grace", "1s"}, "error: --grace needs --kill too ["},
      {{"ls", "--color=always", "--no-color"}, "error: --color and --no-color cannot be given together ["},
      {{"env", "train", "--format", "x"},
       "error: --format: x is not one of sh, json, systemd, taskprolog, cdi ["},
      {{"explain", "Add", "--gpus", "99"}, "error: --gpus: 99 is not in 0 to 64 ["},
      {{"slurm", "x"}, "error: lgpu slurm: x is not one of gres ["},
      {{"-m", "8MiB", "create"}, "error: -m is a flag of create and stands before it ["},
      {{"ls", "--json=x"}, "error: --json takes no value ["},
      {{"create", "-m", "8MiB", "-m", "9MiB"}, "error: --memory can be given once ["}};
  for (const auto& [words, what] : lines) {
    const ProgramResult result = Run(words);
    EXPECT_EQ(result.code, 2) << ::testing::PrintToString(words);
    EXPECT_THAT(result.err, HasSubstr(what)) << ::testing::PrintToString(words);
  }
}

TEST_F(UsageTest, EveryHelpFitsIn80Columns) {
  const auto verbs = nlohmann::json::parse(Run({"help", "--json"}).out)["verbs"];
  ASSERT_FALSE(verbs.empty());
  for (const auto& verb : verbs) {
    std::istringstream lines(Run({verb["name"].get<std::string>(), "--help"}).out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST_F(UsageTest, RmEndsTheLeasesItFindsAndReportsTheMissingOnes) {
  StartWithLease();
  ASSERT_EQ(Run({"create", "-q", "-m", "8MiB", "--name", "eval"}).code, 0);
  const ProgramResult result = Run({"rm", "train", "nix", "eval"});
  EXPECT_EQ(result.code, 6);
  EXPECT_THAT(result.err, AllOf(HasSubstr("lease train is removed"), HasSubstr("no lease named \"nix\""),
                                HasSubstr("lease eval is removed")));
  EXPECT_THAT(Run({"ls"}).out, HasSubstr("No leases."));
}

TEST_F(UsageTest, ANameThatLooksLikeAFlagIsRefused) {
  StartWithLease();
  const ProgramResult result = Run({"create", "-m", "8MiB", "--name=-v"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("a lease cannot be named -v"));
}

TEST_F(UsageTest, ANameAloneKeepsAVariableOfTheCaller) {
  StartWithLease();
  const std::vector<std::string> words = {
      "run", "-q",
      "-m",  "8MiB",
      "-e",  "LGPU_ERROR_FILE",
      "-e",  "CUDA_VISIBLE_DEVICES",
      "-e",  "SEED=7",
      "--",  "/bin/sh",
      "-c",  "echo \"$CUDA_VISIBLE_DEVICES,$SEED,${LGPU_ERROR_FILE-unset}\""};
  EXPECT_EQ(RunWith({{"CUDA_VISIBLE_DEVICES", "0,1"}}, words).out, "0,1,7,unset\n");
}

TEST_F(UsageTest, AnIndexOfTheMachineDoesNotChooseDevicesOfALease) {
  StartDaemon();
  const ChildProgram::Environment of_shell = {{"CUDA_VISIBLE_DEVICES", "0"}};
  const ProgramResult made = RunWith(of_shell, {"create", "-m", "16MiB", "-n", "2", "--name", "sim"});
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.err, HasSubstr(" and without CUDA_VISIBLE_DEVICES, end it with"));
  const ProgramResult verified = RunWith({{"CUDA_VISIBLE_DEVICES", "1"}}, {"verify", "--lease", "sim"});
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
}

TEST_F(UsageTest, AnImpossibleRequestIsRefusedAtOnceDespiteWait) {
  StartWithLease({});
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"-m", "1GiB"}, {"-m", "200MiB", "-n", "3", "--preallocate"}}) {
    std::vector<std::string> all = {"create", "--wait"};
    all.insert(all.end(), words.begin(), words.end());
    const ProgramResult result = Run(all);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("can never fit"));
  }
}

TEST_F(UsageTest, ARefusalOfTwoDevicesCountsTheFirstOneAsAskedFor) {
  StartDaemon({.simulate = "1x256MiB"});
  ASSERT_EQ(Run({"create", "-q", "-m", "128MiB", "--preallocate", "--name", "train"}).code, 0);
  const ProgramResult result = Run({"create", "-m", "100MiB", "-n", "2", "--preallocate", "--name", "two"});
  EXPECT_EQ(result.code, 75);
  EXPECT_THAT(result.err, AllOf(HasSubstr("200.00MiB"), HasSubstr("end a lease of yours: lgpu rm train"),
                                Not(HasSubstr("/two"))));
}

TEST_F(UsageTest, WatchNeedsATerminal) {
  const ProgramResult result = Run({"ls", "--watch"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("try: --interval 2"));
}

TEST_F(UsageTest, ResizeChangesTheGuaranteeAlone) {
  StartWithLease();
  const json lease = RunJson({"resize", "train", "--guarantee", "16MiB"});
  EXPECT_EQ(lease["devices"][1]["memory_limit_bytes"], 64 * kMiB);
  EXPECT_EQ(lease["devices"][1]["guarantee_bytes"], 16 * kMiB);
  EXPECT_EQ(RunJson({"resize", "train", "--guarantee", "0"})["devices"][0]["guarantee_bytes"], 0);
  EXPECT_EQ(Run({"resize", "train"}).code, 2);
  EXPECT_EQ(Run({"resize", "train", "--guarantee", "65MiB"}).code, 2);
  ASSERT_EQ(Run({"create", "-m", "8MiB", "--preallocate", "--name", "whole"}).code, 0);
  const ProgramResult whole = Run({"resize", "whole", "--guarantee", "4MiB"});
  EXPECT_EQ(whole.code, 2);
  EXPECT_THAT(whole.err, HasSubstr("is preallocated"));
  EXPECT_EQ(Run({"rm", "whole"}).code, 0);
}

TEST_F(UsageTest, ErrorsAreJsonWhereThatIsAskedFor) {
  StartWithLease();
  const auto error = [](const std::string& text) {
    // Notes come before it.
    const std::size_t at = text.rfind('\n', text.size() - 2);
    return json::parse(text.substr(at == std::string::npos ? 0 : at + 1));
  };
  const ProgramResult none = Run({"run", "--json", "-m", "8MiB", "--", "/no/such/program"});
  EXPECT_EQ(none.code, 127);
  EXPECT_EQ(error(none.err)["code"], "NOT_FOUND");
  EXPECT_EQ(error(none.err)["exit_code"], 127);
  const ProgramResult denied = Run({"run", "--json-errors", "-m", "8MiB", "--", "/etc/passwd"});
  EXPECT_EQ(denied.code, 126);
  EXPECT_EQ(error(denied.err)["code"], "PERMISSION_DENIED");
  EXPECT_EQ(error(Run({"ls", "--json-errors", "--lease", "nix"}).err)["exit_code"], 6);
  EXPECT_EQ(error(Run({"ls", "--nothing", "--json-errors"}).err)["exit_code"], 2);
  const ProgramResult alone = Run({"run", "-q", "--require-attach", "-m", "8MiB", "--", "true"});
  EXPECT_EQ(alone.code, 125);
  EXPECT_THAT(alone.err, HasSubstr("error: true never attached: its memory was not limited")) << "-q or not";
}

TEST_F(UsageTest, ErrorsGoToAFile) {
  StartWithLease();
  TempDir dir;
  const std::string path = dir.path() + "/error";
  const auto reason = [&] {
    std::ifstream file(path);
    return json::parse(file, nullptr, /*allow_exceptions=*/false);
  };
  EXPECT_EQ(RunWith({{"LGPU_ERROR_FILE", path}}, {"ls"}).code, 0);
  EXPECT_FALSE(std::ifstream(path).good());
  const ProgramResult full = RunWith({{"LGPU_ERROR_FILE", path}}, {"run", "-m", "1TiB", "--", "true"});
  EXPECT_EQ(full.code, 125);
  EXPECT_THAT(full.err, HasSubstr("lgpu: error: ")) << "for people all the same";
  EXPECT_EQ(reason()["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(reason()["exit_code"], 125);
  EXPECT_EQ(RunWith({{"LGPU_ERROR_FILE", path}}, {"ls", "--nothing"}).code, 2);
  EXPECT_EQ(reason()["exit_code"], 2);
  EXPECT_THAT(RunWith({{"LGPU_ERROR_FILE", dir.path() + "/a/b"}}, {"rm", "nix"}).err,
              HasSubstr("cannot write LGPU_ERROR_FILE"));
}

TEST_F(UsageTest, ByUserSumsOverLeases) {
  StartWithLease();
  EXPECT_THAT(Run({"ls", "--by-user"}).out, AllOf(HasSubstr("USER  LEASES  DEVICES  PROCESSES"),
                                                  HasSubstr("128.00MiB"), Not(HasSubstr("train"))));
  const json users = RunJson({"ls", "--by-user"});
  EXPECT_EQ(users["schema"], "lgpu.users/v1");
  ASSERT_EQ(users["users"].size(), 1u);
  EXPECT_EQ(users["users"][0]["devices"], 2);
  EXPECT_EQ(users["users"][0]["memory_limit_bytes"], 128 * kMiB);
}

TEST_F(UsageTest, APercentageIsOfTheWholeGpu) {
  StartDaemon({.simulate = "256MiB,64MiB"});
  EXPECT_EQ(
      RunJson({"create", "-m", "25%", "--gpus", "0", "--name", "train"})["devices"][0]["memory_limit_bytes"],
      64 * kMiB);
  const ProgramResult which = Run({"create", "-m", "25%"});
  EXPECT_EQ(which.code, 2);
  EXPECT_THAT(which.err, AllOf(HasSubstr("a share of which GPU? Their sizes differ"), HasSubstr("--gpus")));
}

TEST_F(UsageTest, DoctorWithoutADaemonNamesTheDirectoryAndTheNextStep) {
  TempDir empty;
  const ProgramResult text = Run({"doctor", "-v", "--endpoint", empty.path()});
  EXPECT_EQ(text.code, 1);
  EXPECT_THAT(text.out, AllOf(HasSubstr("lgpud --simulate 2x1GiB --dir " + empty.path()),
                              HasSubstr("flag --endpoint"), Not(HasSubstr("local:"))));
  const ProgramResult result = RunWith({{"LGPU_ENDPOINT", empty.path()}}, {"doctor", "--json"});
  const json diagnosis = json::parse(result.out);
  EXPECT_THAT(diagnosis["checks"][0]["advice"].dump(), HasSubstr("try: "));
  EXPECT_EQ(diagnosis["variables"][0]["value"], empty.path());
  EXPECT_EQ(diagnosis["variables"][0]["origin"], "environment");
}

TEST_F(UsageTest, ExplainReadsTheVariableOfSoftPlacement) {
  const ChildProgram::Environment off = {{"LGPU_SOFT_PLACEMENT", "0"}};
  EXPECT_THAT(RunWith(off, {"explain", "MatMul", "-d", "GPU:3"}).out, HasSubstr("soft placement off"));
  EXPECT_THAT(RunWith({{"LGPU_SOFT_PLACEMENT", "no"}}, {"explain", "MatMul"}).out,
              HasSubstr("soft placement on"));
  EXPECT_THAT(Run({"explain", "MatMul"}).out, HasSubstr("soft placement on"));
}

TEST_F(UsageTest, CompletionAsksTheDaemonThatTheLineNames) {
  StartWithLease();
  TempDir empty;
  const auto complete = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"__complete", "bash", "--"});
    return RunWith({{"LGPU_ENDPOINT", empty.path()}}, words).out;
  };
  EXPECT_EQ(complete({"rm", ""}), ":nothing\n");
  EXPECT_THAT(complete({"--endpoint", daemon_->dir(), "rm", ""}), HasSubstr("train\t2 x 64.00MiB"));
  EXPECT_THAT(complete({"resize", "--endpoint=" + daemon_->dir(), "train", "-d", ""}),
              AllOf(HasSubstr("GPU:0\nGPU:1\n"), Not(HasSubstr("CPU"))));
  EXPECT_EQ(complete({"explain", "MatMul", "--endpoint=" + daemon_->dir(), "--lease", "train", "-d", ""}),
            "GPU:0\nGPU:1\nCPU:0\n:nothing\n");
  EXPECT_THAT(complete({"run", "--endpoint=" + daemon_->dir(), "--gpus", "0,"}),
              AllOf(HasSubstr("0,1\t"), Not(HasSubstr("0,0\t"))));
  EXPECT_EQ(complete({"ls", "--query=lease,gpu.to"}), "--query=lease,gpu.total\n:nothing\n");
  EXPECT_EQ(complete({"ps", "--format", "csv,nou"}), "csv,nounits\n:nothing\n");
}

TEST_F(UsageTest, AFileHasThePersonsOwnDefaults) {
  StartWithLease();
  TempDir home;
  const std::string path = home.path() + "/lgpu/config.toml";
  std::filesystem::create_directories(home.path() + "/lgpu");
  const ChildProgram::Environment environment = {{"XDG_CONFIG_HOME", home.path()}, {"NO_COLOR", ""}};
  std::ofstream(path) << "# mine\ncolor = \"always\"\ntimeout = \"7s\"\n";
  const json diagnosis = json::parse(RunWith(environment, {"doctor", "--json", "--no-self-test"}).out);
  const auto variable = [&](const std::string& name) {
    for (const json& entry : diagnosis["variables"]) {
      if (entry["name"] == name) {
        return std::pair(entry["value"].get<std::string>(), entry["origin"].get<std::string>());
      }
    }
    return std::pair(std::string(), std::string());
  };
  EXPECT_EQ(variable("--timeout"), std::pair(std::string("7s"), path + ":3:1"));
  EXPECT_EQ(variable("--color"), std::pair(std::string("on"), path + ":2:1"));
  EXPECT_THAT(RunWith(environment, {"ls"}).out, HasSubstr("\033["));
  EXPECT_THAT(RunWith(environment, {"ls", "--no-color"}).out, Not(HasSubstr("\033[")));
  EXPECT_THAT(Run({"ls"}).out, Not(HasSubstr("\033[")));
  std::ofstream(path) << "colour = \"always\"\n";
  const ProgramResult wrong = RunWith(environment, {"ls"});
  EXPECT_EQ(wrong.code, 78);
  EXPECT_THAT(wrong.err, HasSubstr(path + ":1:1: unknown key 'colour'; known are: color, timeout"));
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  const ProgramResult unreadable = RunWith(environment, {"ls"});
  EXPECT_EQ(unreadable.code, 0) << unreadable.err;
  EXPECT_THAT(unreadable.err, AllOf(HasSubstr("lgpu: note: "), HasSubstr(path)));
  std::filesystem::remove(path);
  std::ofstream(path) << "timeout = \"soon\"\n";
  EXPECT_THAT(RunWith(environment, {"ls"}).err, HasSubstr(path + ":1:11: \"soon\" is not a duration"));
}

TEST_F(UsageTest, LgpuConfigDirIsReadInPlaceOfTheMachinesFolder) {
  StartWithLease();
  TempDir system;
  std::ofstream(system.path() + "/config.toml") << "color = \"always\"\n";
  EXPECT_THAT(RunWith({{"LGPU_CONFIG_DIR", system.path()}, {"NO_COLOR", ""}}, {"ls"}).out,
              HasSubstr("\033["));
}

}  // namespace
}  // namespace lgpu::testing
