// memory.on_uncharged: programs of a lease that use more of a GPU than they have charged.

#include <signal.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/driver/shim_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A context of the fake machine takes 16 MiB.
std::string Config(const std::string& action) {
  return absl::StrCat("[memory]\noverhead_allowance = \"20MiB\"\non_uncharged = \"", action, "\"\n");
}

class UnchargedTest : public ShimTest {
 protected:
  explicit UnchargedTest(const FakeMachine::CardOptions& card = {}) : ShimTest(card) {}
  std::string Events(const std::string& lease) { return Run({"events", "--lease", lease}).out; }
};

TEST_F(UnchargedTest, ANormalEndIsAClosedSessionAndAKillALostOne) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  auto ends = StartIn(lease);
  EXPECT_EQ(Ask(*ends, absl::StrCat("alloc a plain ", 20 * kMiB)), "ok");
  End(*ends);
  EXPECT_TRUE(Eventually([&] { return Events(lease).find("has closed its session") != std::string::npos; }));
  EXPECT_EQ(Stats().sessions_lost_total(), 0u);
  EXPECT_THAT(Events(lease), Not(HasSubstr("without closing")));
  auto killed = StartIn(lease);
  EXPECT_EQ(Ask(*killed, absl::StrCat("alloc a plain ", 20 * kMiB)), "ok");
  ASSERT_EQ(::kill(killed->pid(), SIGKILL), 0);
  EXPECT_TRUE(Eventually([&] { return Events(lease).find("without closing") != std::string::npos; }));
  EXPECT_EQ(Stats().sessions_lost_total(), 1u);
}

TEST_F(UnchargedTest, ANormalEndOfAProgramThatAsksNvmlLosesNoSession) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  auto ends = StartIn(lease);
  EXPECT_EQ(Ask(*ends, absl::StrCat("alloc a plain ", 20 * kMiB)), "ok");
  EXPECT_THAT(Ask(*ends, "nvml_info"), ::testing::EndsWith(absl::StrCat(" ", 64 * kMiB)));
  EXPECT_EQ(Stats().leases(0).sessions_size(), 2) << "one for each library";
  End(*ends);
  EXPECT_TRUE(Eventually([&] { return Stats().leases(0).sessions_size() == 0; }));
  EXPECT_EQ(Stats().sessions_lost_total(), 0u);
  EXPECT_THAT(Events(lease), Not(HasSubstr("without closing")));
}

TEST_F(UnchargedTest, ReportNamesTheProgramAndLeavesItAlone) {
  StartMachine(Config("report"));
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  EXPECT_EQ(Ask(*client, absl::StrCat("past a ", 120 * kMiB)), "ok");
  EXPECT_TRUE(Eventually([&] { return client->Errors().find("beyond its charges") != std::string::npos; }))
      << client->Errors();
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc b plain ", 40 * kMiB)), "ok");
  End(*client);
}

TEST_F(UnchargedTest, StopGivesTheLeaseNothingUntilItIsOver) {
  StartMachine(Config("stop"));
  const std::string lease = CreateLease("64MiB");
  auto client = StartIn(lease);
  auto other = StartIn(lease);
  auto stranger = StartIn(CreateLease("32MiB"));
  EXPECT_EQ(Ask(*client, absl::StrCat("past a ", 100 * kMiB)), "ok");
  EXPECT_TRUE(Eventually([&] { return Events(lease).find("gets no more memory") != std::string::npos; }));
  EXPECT_EQ(Ask(*other, absl::StrCat("alloc a plain ", 10 * kMiB)), "error 2");
  EXPECT_EQ(Ask(*stranger, absl::StrCat("alloc a plain ", 10 * kMiB)), "ok") << "another lease";
  EXPECT_EQ(Ask(*client, "past_free a"), "ok");
  EXPECT_TRUE(Eventually([&] { return Ask(*other, absl::StrCat("alloc a plain ", 10 * kMiB)) == "ok"; }));
  End(*client);
  End(*other);
  End(*stranger);
}

TEST_F(UnchargedTest, KillEndsTheProgramAndNoOtherOne) {
  StartMachine(Config("kill"));
  const std::string lease = CreateLease("64MiB");
  auto client = StartIn(lease);
  auto other = StartIn(lease);
  EXPECT_EQ(Ask(*other, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok") << "what is charged is no reason";
  EXPECT_EQ(Ask(*client, absl::StrCat("past a ", 100 * kMiB)), "ok");
  EXPECT_EQ(client->Wait(), 128 + SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Events(lease).find("lgpud killed it") != std::string::npos; }));
  EXPECT_EQ(Ask(*other, absl::StrCat("alloc b plain ", 20 * kMiB)), "ok");
  End(*other);
}

TEST_F(UnchargedTest, KillEndsACommandThatComesPastTheShim) {
  StartMachine(Config("kill"));
  const std::string real = std::filesystem::path(FakeDriver()).parent_path().string();
  auto stranger = StartProgram({Client("dlopen"), "dlopen", "libcuda.so.1"}, {});
  EXPECT_EQ(Ask(*stranger, absl::StrCat("alloc a plain ", 90 * kMiB)), "ok") << "of no lease";
  auto client = Start("16MiB", {"/usr/bin/env", "-u", "LD_PRELOAD", absl::StrCat("LD_LIBRARY_PATH=", real),
                                Client("dlopen"), "dlopen", "libcuda.so.1"});
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 90 * kMiB)), "ok");
  EXPECT_EQ(client->Wait(), 128 + SIGKILL);
  End(*stranger);
}

/// Contexts of a real GPU's size, and no word in the configuration.
class WatchedTest : public UnchargedTest {
 protected:
  WatchedTest() : UnchargedTest({.total = 64_GiB, .context = 500_MiB}) {
    machine_.state().any_program = true;
  }
  static constexpr char kReport[] = "beyond its charges and chunks, which is more than 600.00MiB";
};

TEST_F(WatchedTest, MemoryThatNoCallAsksForBySizeIsReportedWithTheReason) {
  constexpr char kHeap[] =
      "MiB of it are the heap of malloc in kernels, as the program has set it "
      "(cuCtxSetLimit, cudaDeviceSetLimit)";
  StartMachine();
  const auto report_after = [&](const std::vector<std::string>& asks) {
    auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
    for (const std::string& ask : asks) EXPECT_EQ(Ask(*client, ask), "ok");
    EXPECT_TRUE(Eventually([&] { return client->Errors().find(kReport) != std::string::npos; }))
        << asks[0] << client->Errors();
    EXPECT_THAT(client->Errors(), HasSubstr("driver_client"));
    EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok") << "it is reported alone";
    End(*client);
    return client->Errors();
  };
  const std::string heap = absl::StrCat("heap ", 768 * kMiB), globals = absl::StrCat("globals ", 768 * kMiB);
  EXPECT_THAT(report_after({heap}),
              ::testing::AllOf(HasSubstr(absl::StrCat("; 768.00", kHeap)), Not(HasSubstr("globals"))));
  EXPECT_THAT(report_after({globals}), HasSubstr("likely causes: a large context or much code, variables of "
                                                 "kernels (globals)"));
  // A heap that is allowed by itself.
  EXPECT_THAT(report_after({absl::StrCat("heap ", 100 * kMiB), globals}),
              HasSubstr(absl::StrCat("; 100.00", kHeap, "; likely causes of the rest: ")));
}

TEST_F(WatchedTest, TheHeapOfAContextThatIsGoneIsNoReason) {
  StartMachine();
  auto client = Start("64MiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});
  EXPECT_EQ(Ask(*client, absl::StrCat("heap ", 100 * kMiB)), "ok");
  EXPECT_EQ(Ask(*client, "leave_context"), "ok");
  EXPECT_EQ(Ask(*client, "release_primary"), "ok");
  EXPECT_EQ(Ask(*client, "retain_primary"), "ok");
  EXPECT_EQ(Ask(*client, absl::StrCat("globals ", 768 * kMiB)), "ok");
  EXPECT_TRUE(Eventually([&] { return client->Errors().find(kReport) != std::string::npos; }))
      << client->Errors();
  EXPECT_THAT(client->Errors(), HasSubstr("; likely causes: "));
  End(*client);
}

TEST_F(WatchedTest, AProgramThatComesPastTheShimIsReportedAsOneWithoutASession) {
  StartMachine();
  const std::string real = std::filesystem::path(FakeDriver()).parent_path().string();
  auto client = Start("16MiB", {"/usr/bin/env", "-u", "LD_PRELOAD", absl::StrCat("LD_LIBRARY_PATH=", real),
                                Client("dlopen"), "dlopen", "libcuda.so.1"});
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 768 * kMiB)), "ok");
  EXPECT_TRUE(Eventually([&] { return client->Errors().find(kReport) != std::string::npos; }))
      << client->Errors();
  EXPECT_THAT(client->Errors(), HasSubstr("the program has no session with lgpud: it reaches the driver past "
                                          "lgpu"));
  End(*client);
}

TEST_F(WatchedTest, WithoutNvmlNoProgramIsReportedAndDoctorSaysSo) {
  machine_.state().nvml_absent = true;
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  auto client = StartIn(lease);
  EXPECT_EQ(Ask(*client, absl::StrCat("heap ", 768 * kMiB)), "ok");
  EXPECT_EQ(Stats().cards(0).overhead_bytes(), 0u) << "nothing is set aside";
  EXPECT_THAT(Run({"doctor", "-v", "--no-self-test"}).out,
              HasSubstr("without NVML lgpud cannot see memory that programs use beyond their charges"));
  EXPECT_THAT(Events(lease), Not(HasSubstr("beyond its charges")));
  End(*client);
}

TEST_F(WatchedTest, ACommandThatHasToAttachIsReportedToo) {
  StartMachine();
  const ChildProgram::Options options =
      Lgpu({"run", "--require-attach", "-m", "64MiB", "--", Client("dlopen"), "dlopen", "libcuda.so.1"});
  auto client = StartProgram(options.argv, options.environment);
  EXPECT_EQ(Ask(*client, absl::StrCat("heap ", 768 * kMiB)), "ok");
  EXPECT_TRUE(Eventually([&] { return client->Errors().find(kReport) != std::string::npos; }));
  End(*client);
}

TEST_F(WatchedTest, ProgramsThatStayInsideAreNotReportedAndShowWhatTheyHaveBeside) {
  StartMachine();
  const std::string lease = CreateLease("8GiB");
  std::vector<std::unique_ptr<ChildProgram>> programs;
  for (int i = 0; i < 20; ++i) programs.push_back(StartIn(lease));
  for (int round = 0; round < 10; ++round) {
    for (const auto& program : programs) program->WriteLine(absl::StrCat("churn 2 20 ", 100 * kMiB));
    for (const auto& program : programs) EXPECT_EQ(program->ReadLine(), "ok");
  }
  // An allowance that nothing uses counts as charged.
  EXPECT_TRUE(Eventually([&] { return Stats().leases(0).sessions(0).overhead_bytes() > 400 * kMiB; }));
  EXPECT_THAT(Run({"ls"}).out, HasSubstr("Beside charges and chunks"));
  EXPECT_THAT(Events(lease), Not(HasSubstr("beyond its charges")));
  for (const auto& program : programs) End(*program);
}

TEST_F(WatchedTest, LateFiguresOfFreedMemoryAreNoUnchargedUse) {
  machine_.state().nvml_late = 2;
  StartMachine();
  const auto readings = [&] { return machine_.CallsOf("nvmlDeviceGetMemoryInfo"); };
  const auto wait_for = [&](std::uint64_t more) {
    const std::uint64_t enough = readings() + more;
    EXPECT_TRUE(Eventually([&] { return readings() >= enough; }));
  };
  const std::string lease = CreateLease("8GiB");
  auto client = StartIn(lease);
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 2048 * kMiB)), "ok");
  wait_for(4);
  EXPECT_EQ(Ask(*client, "free a"), "ok");
  wait_for(5);
  EXPECT_THAT(Events(lease), Not(HasSubstr("beside its charges")));
  End(*client);
}

TEST_F(WatchedTest, AConnectionSetsNothingAside) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  auto client = StartIn(lease);
  EXPECT_EQ(Ask(*client, "leave_context"), "ok");
  EXPECT_EQ(Ask(*client, "release_primary"), "ok");
  EXPECT_TRUE(Eventually([&] { return Stats().cards(0).overhead_bytes() == 0; })) << "it has no context";
  EXPECT_EQ(Stats().leases(0).sessions_size(), 1);
  End(*client);
}

/// Programs in a pid namespace, which know themselves by another pid than lgpud does.
class PidNamespaceTest : public UnchargedTest {
 protected:
  void SetUp() override {
    const absl::StatusOr<ProgramResult> tried = RunProgram({.argv = Inside("test $$ = 1")});
    ASSERT_TRUE(tried.ok()) << tried.status();
    if (tried->code != 0) GTEST_SKIP() << "this machine allows no pid namespace: " << tried->err;
  }
  /// A shell with pid 1 and a /proc of its own. The test's procfs lies in the folder "$0"/proc.
  std::vector<std::string> Inside(const std::string& script) const {
    return {"unshare",
            "--pid",
            "--mount",
            "--fork",
            "/bin/sh",
            "-ec",
            absl::StrCat("mkdir -p \"$0\"/proc; mount --rbind /proc \"$0\"/proc; "
                         "mount -t proc proc /proc; ",
                         script),
            home_.path()};
  }
  std::unique_ptr<ChildProgram> StartInside(const std::string& lease, const std::string& machine) {
    std::vector<std::string> words =
        Inside(absl::StrCat("echo $$ >&2; exec env LGPU_FAKE_CUDA=\"$0\"", machine, " \"$@\""));
    words.insert(words.end(), {Client("dlopen"), "dlopen", "libcuda.so.1"});
    return StartProgram(words, EnvironmentOf(lease));
  }
  std::string OfTheMachine() const { return machine_.environment().at("LGPU_FAKE_CUDA").value_or(""); }
};

TEST_F(PidNamespaceTest, NvmlListsAProgramByTheMachinesPid) {
  StartMachine(Config("kill"));
  auto client = StartInside(CreateLease("64MiB"), OfTheMachine());
  EXPECT_EQ(Ask(*client, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  const v1::StatsSnapshot stats = Stats();
  ASSERT_EQ(stats.leases(0).sessions_size(), 1);
  const auto pid = static_cast<pid_t>(stats.leases(0).sessions(0).pid());
  EXPECT_THAT(client->Errors(), ::testing::StartsWith("1\n")) << "its own pid";
  EXPECT_NE(pid, 1);
  EXPECT_EQ(machine_.ContextsCreated(pid), 1) << "the driver has it by the pid that lgpud has";
  End(*client);
}

TEST_F(PidNamespaceTest, KillEndsAProgramThatComesPastTheShim) {
  StartMachine(Config("kill"));
  const std::string lease = CreateLease("64MiB");
  auto client = StartInside(lease, OfTheMachine());
  EXPECT_EQ(Ask(*client, absl::StrCat("past a ", 100 * kMiB)), "ok");
  ASSERT_TRUE(Eventually([&] { return Events(lease).find("lgpud killed it") != std::string::npos; }));
  EXPECT_NE(client->Wait(), 0) << "unshare says nothing of SIGKILL";
}

TEST_F(PidNamespaceTest, AMachineOfFilesInAFolderHasTheProcfsBesideIt) {
  StartMachine(Config("kill"));
  const std::filesystem::path of_state = OfTheMachine(), folder = home_.path();
  const auto link = [&](const std::string& descriptor, const std::string& name) {
    std::filesystem::create_symlink(
        absl::StrCat(home_.path(), of_state.parent_path().string(), "/", descriptor), folder / name);
  };
  link(of_state.filename(), "machine");
  const std::string memory = std::to_string(machine_.state().cards[0].memory_fd);
  link(memory, memory);
  const std::string lease = CreateLease("64MiB");
  auto client = StartInside(lease, "/machine");
  EXPECT_EQ(Ask(*client, absl::StrCat("past a ", 100 * kMiB)), "ok");
  ASSERT_TRUE(Eventually([&] { return Events(lease).find("lgpud killed it") != std::string::npos; }));
  EXPECT_NE(client->Wait(), 0) << "unshare says nothing of SIGKILL";
}

}  // namespace
}  // namespace lgpu::testing
