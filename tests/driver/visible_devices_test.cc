// Programs that set CUDA_VISIBLE_DEVICES themselves inside a lease, on the fake driver.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/driver/shim_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class VisibleDevicesTest : public ShimTest {
 protected:
  VisibleDevicesTest() : ShimTest({}, 2) {}

  /// A lease of 64 MiB for each logical device, on a card of this index, or on both ("all").
  void MakeLease(const std::string& gpus, const std::string& devices = "1") {
    const ProgramResult created =
        Run({"create", "-q", "--gpus", gpus, "-n", devices, "-m", "64MiB", "--name", "job"});
    ASSERT_EQ(created.code, 0) << created.err;
  }
  /// A program of the lease that sets the variable to `value` itself, and its answer to the start.
  std::unique_ptr<ChildProgram> StartWith(const std::string& value, std::string& started,
                                          const ChildProgram::Environment& more = {}) {
    auto client =
        StartProgram({Client("dlopen"), "dlopen", "libcuda.so.1", value, kLast}, EnvironmentOf("job"), more);
    started = client->ReadLine().value_or("(no answer)");
    return client;
  }
  /// The cards that such a program sees: "ok UUID UUID"; "error CODE" where it does not start.
  std::string Seen(const std::string& value, const ChildProgram::Environment& more = {}) {
    std::string seen;
    auto client = StartWith(value, seen, more);
    if (seen == "ok") seen = Ask(*client, "devices");
    End(*client);
    return seen;
  }

  // A last word that the client does not read: the fixture awaits no start of a program with one.
  static constexpr char kLast[] = "-";
};

TEST_F(VisibleDevicesTest, AnIndexIsAPlaceInTheLeasesList) {
  StartMachine();
  MakeLease("1");
  std::string started;
  auto client = StartWith("0", started);
  EXPECT_EQ(started, "ok");
  EXPECT_EQ(Ask(*client, "devices"), "ok " + machine_.uuid(1));
  EXPECT_EQ(Ask(*client, "info"), absl::StrCat("ok ", 64 * kMiB, " ", 64 * kMiB));
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "error 2");
  EXPECT_EQ(machine_.ContextsCreated(static_cast<int>(client->pid())), 1);
  EXPECT_GE(machine_.Used(1).count(), 40 * kMiB);
  EXPECT_TRUE(machine_.Used(0).is_zero()) << "the program took something of another card";
  End(*client);
}

TEST_F(VisibleDevicesTest, AListIsReadAsTheDriverReadsIt) {
  StartMachine();
  MakeLease("all", "2");
  const std::vector<std::string> lease = absl::StrSplit(*EnvironmentOf("job")["CUDA_VISIBLE_DEVICES"], ',');
  ASSERT_EQ(lease.size(), 2U);
  const std::string first = " " + lease[0], second = " " + lease[1];
  EXPECT_EQ(Seen("0"), "ok" + first);
  EXPECT_EQ(Seen("1"), "ok" + second);
  EXPECT_EQ(Seen("1,0"), "ok" + second + first);
  EXPECT_EQ(Seen("0,7,1"), "ok" + first) << "an invalid index ends the list";
  EXPECT_EQ(Seen(lease[1]), "ok" + second);
  EXPECT_EQ(Seen(lease[1].substr(0, 12) + "," + lease[0]), "ok" + second + first);
  EXPECT_EQ(Seen("0,0"), "error 100") << "a card that is named twice empties the list";
  EXPECT_THAT(Run({"events"}).out, Not(HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST_F(VisibleDevicesTest, AListThatLeavesNoCardIsNoDevice) {
  StartMachine();
  MakeLease("1", "2");  // two logical devices are one card
  for (const char* const value : {"", "-1", "1", "7", "none"}) {
    EXPECT_EQ(Seen(value), "error 100") << value;
  }
  EXPECT_THAT(Run({"events"}).out, Not(HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST_F(VisibleDevicesTest, WithoutTheVariableTheLeasesCardsAreVisible) {
  StartMachine();
  MakeLease("1");
  ChildProgram::Environment environment = EnvironmentOf("job");
  environment["CUDA_VISIBLE_DEVICES"] = std::nullopt;
  auto client = StartProgram({Client("dlopen"), "dlopen", "libcuda.so.1"}, environment);
  EXPECT_EQ(Ask(*client, "devices"), "ok " + machine_.uuid(1));
  End(*client);
}

TEST_F(VisibleDevicesTest, TheFastestCardIsNotFirstInALease) {
  machine_.state().cards[1].speed = 9;
  StartMachine();
  MakeLease("all", "2");
  const std::vector<std::string> lease = absl::StrSplit(*EnvironmentOf("job")["CUDA_VISIBLE_DEVICES"], ',');
  for (const char* const order : {"FASTEST_FIRST", "PCI_BUS_ID"}) {
    EXPECT_EQ(Seen("0", {{"CUDA_DEVICE_ORDER", order}}), "ok " + lease[0]) << order;
    EXPECT_EQ(Seen("1", {{"CUDA_DEVICE_ORDER", order}}), "ok " + lease[1]) << order;
  }
}

TEST_F(VisibleDevicesTest, AUuidThatIsNotTheLeasesIsAnEventAndALineAtOnce) {
  StartMachine();
  ChildProgram::Options options = Lgpu({"run", "--gpus", "1", "-m", "64MiB", "--", Client("dlopen"), "dlopen",
                                        "libcuda.so.1", machine_.uuid(0)});
  auto client = StartProgram(options.argv, options.environment);
  EXPECT_EQ(client->ReadLine(), "error 100");
  const std::string told = absl::StrCat("CUDA_VISIBLE_DEVICES names GPU \"", machine_.uuid(0), "\"");
  EXPECT_THAT(Run({"events"}).out, HasSubstr(told));
  EXPECT_TRUE(Eventually([&] { return client->Errors().find("lgpu: refused") != std::string::npos; }))
      << "the program runs, and there is no line yet";
  EXPECT_THAT(client->Errors(), HasSubstr(told));
  End(*client);
}

TEST_F(VisibleDevicesTest, TheCardsBeforeAUuidThatIsNotTheLeasesStayVisible) {
  StartMachine();
  MakeLease("1");
  EXPECT_EQ(Seen(absl::StrCat(machine_.uuid(1), ",", machine_.uuid(0))), "ok " + machine_.uuid(1));
  EXPECT_THAT(Run({"events"}).out,
              HasSubstr(absl::StrCat("CUDA_VISIBLE_DEVICES names GPU \"", machine_.uuid(0), "\"")));
}

TEST_F(VisibleDevicesTest, AUuidOfNoMeaningBreaksNothing) {
  StartMachine();
  MakeLease("1");
  EXPECT_EQ(Seen("GPU-\x80\xff\n" + std::string(500, 'x')), "error 100");
  EXPECT_THAT(Run({"events"}).out, HasSubstr("CUDA_VISIBLE_DEVICES names GPU \"GPU-???xxx"));
}

TEST_F(VisibleDevicesTest, AChildSeesTheCardsOfItsParent) {
  StartMachine();
  MakeLease("all", "2");
  std::string started;
  auto client = StartWith("1", started);
  const std::string seen = Ask(*client, "devices");
  EXPECT_EQ("ok " + Ask(*client, "variable").substr(3), seen) << "places would count anew in a child";
  client->WriteLine("become");
  EXPECT_EQ(client->ReadLine(), "ok");
  EXPECT_EQ(Ask(*client, "devices"), seen);
  End(*client);
}

TEST_F(VisibleDevicesTest, AProgramThatStartedItsDriverKeepsItsVariableForItsChildren) {
  StartMachine();
  MakeLease("all", "2");
  std::string started;
  auto client = StartWith("0", started);
  EXPECT_EQ(Ask(*client, "init 1"), "ok");
  EXPECT_EQ(Ask(*client, "variable"), "ok 1") << "the driver reads it no more";
  End(*client);
}

TEST_F(VisibleDevicesTest, AProgramThatSawNoCardMayTryAnotherValue) {
  StartMachine();
  MakeLease("1");
  std::string started;
  auto client = StartWith("3", started);
  EXPECT_EQ(started, "error 100");
  EXPECT_EQ(Ask(*client, "init 0"), "ok");
  EXPECT_EQ(Ask(*client, "devices"), "ok " + machine_.uuid(1));
  End(*client);
}

TEST_F(VisibleDevicesTest, AScriptInsideRunSetsAnIndex) {  // as launchers and countless scripts do
  StartMachine();
  auto client = Start(
      "64MiB", {"/bin/sh", "-c",
                absl::StrCat("CUDA_VISIBLE_DEVICES=0 exec ", Client("lookup"), " lookup libcuda.so.1")});
  EXPECT_EQ(Ask(*client, "info"), absl::StrCat("ok ", 64 * kMiB, " ", 64 * kMiB));
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  End(*client);
}

TEST_F(VisibleDevicesTest, AProgramWithLiblgpuCountsTheSameCards) {
  StartMachine();
  std::vector<std::string> words = {"run", "--gpus", "1", "-m", "64MiB", "--"};
  for (const std::string& word : Shell("printf 'visible\\nopen c\\nalloc c t 8388608\\nexit\\n' | "
                                       "CUDA_VISIBLE_DEVICES=0 " LGPU_E2E_CLIENT)) {
    words.push_back(word);
  }
  ChildProgram::Options options = Lgpu(words);
  for (const auto& [name, value] : machine_.environment()) options.environment[name] = value;
  const absl::StatusOr<ProgramResult> result = RunProgram(options);
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->out, ::testing::StartsWith(absl::StrCat("ok ", machine_.uuid(1), "\nok ")));
  EXPECT_THAT(result->out, Not(HasSubstr("error")));
}

TEST_F(VisibleDevicesTest, WhileThereIsNoDaemonUuidsAreVisibleAndIndicesAreNot) {
  StartMachine();
  MakeLease("1");
  ChildProgram::Environment environment = EnvironmentOf("job");
  environment["LGPU_MEMORY_WAIT_MS"] = "100";
  KillDaemon();
  const auto start = [&](const std::string& value) {
    auto client = StartProgram({Client("dlopen"), "dlopen", "libcuda.so.1", value}, environment);
    const std::string started = client->ReadLine().value_or("(no answer)");
    End(*client);
    return started;
  };
  EXPECT_EQ(start(machine_.uuid(1)), "ok");
  EXPECT_EQ(start("0"), "error 100") << "it could be a card of another lease";
}

TEST_F(VisibleDevicesTest, AnIndexWaitsForAnLgpudThatIsBeingRestarted) {
  StartMachine();
  MakeLease("1");
  ChildProgram::Environment environment = EnvironmentOf("job");
  environment["LGPU_MEMORY_WAIT_MS"] = "60000";
  KillDaemon();
  auto client = StartProgram({Client("dlopen"), "dlopen", "libcuda.so.1", "0", kLast}, environment);
  ASSERT_EQ(client->ReadLine(std::chrono::milliseconds(200)), std::nullopt) << "it did not wait";
  StartMachine();
  EXPECT_EQ(client->ReadLine(), "ok");
  EXPECT_EQ(Ask(*client, "devices"), "ok " + machine_.uuid(1));
  End(*client);
}

TEST_F(VisibleDevicesTest, OutsideOfALeaseTheDriverReadsTheVariable) {
  StartMachine();
  MakeLease("1");
  for (const auto& [name, value] : {std::pair("LGPU_LEASE", ""), std::pair("LGPU_SHIM", "off")}) {
    EXPECT_EQ(Seen("0", {{name, value}}), "ok " + machine_.uuid(0)) << name;
  }
}

class VisibleInstanceTest : public ShimTest {
 protected:
  VisibleInstanceTest() : ShimTest({.is_mig = true}, 1) {}
};

TEST_F(VisibleInstanceTest, AnIndexNamesAnInstance) {
  StartMachine();
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1", "0"});
  EXPECT_EQ(client->ReadLine(), "ok");
  EXPECT_EQ(Ask(*client, "variable"), "ok " + machine_.uuid(0));
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  End(*client);
}

}  // namespace
}  // namespace lgpu::testing
