// Managed leases: root makes them for a user, whose programs attach; they end by request, with their time or
// with their cgroup.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Users without a name.
constexpr int kAnn = 61301;
constexpr int kBob = 61302;

class ManagedLeasesTest : public E2eTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root makes managed leases";
  }
  void TearDown() override {
    if (daemon_ == nullptr) return;  // skipped
    const v1::StatsSnapshot stats = Stats();
    for (const v1::LeaseStats& lease : stats.leases()) {
      if (lease.lasting()) control_->RemoveLease(lease.id()).IgnoreError();
    }
    E2eTest::TearDown();
  }
  void Start(const std::string& config = "", const std::string& simulate = "256MiB") {
    DaemonProcess::Options options{.simulate = simulate, .config = config};
    options.open_to_everybody = true;
    StartDaemon(options);
  }
  ChildProgram::Options As(int uid, std::vector<std::string> words) const {
    const std::string id = std::to_string(uid);
    std::vector<std::string> argv = {"setpriv", "--reuid", id, "--regid", id, "--clear-groups"};
    argv.insert(argv.end(), words.begin(), words.end());
    return {.argv = std::move(argv),
            .environment = {{"LGPU_ENDPOINT", daemon_->dir()}, {"HOME", "/nonexistent"}}};
  }
  ProgramResult Run(int uid, std::vector<std::string> words) {
    words.insert(words.begin(), DaemonProcess::LgpuPath());
    const auto result = RunProgram(As(uid, std::move(words)));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ProgramResult();
  }
  /// `lgpu create --managed` for ann, by root.
  ProgramResult Manage(const std::string& name, std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"create", "--managed", "--owner", std::to_string(kAnn), "--name",
                                      name,     "-m",        "64MiB",   "--guarantee",        "64MiB"};
    words.insert(words.end(), more.begin(), more.end());
    return Run(0, std::move(words));
  }
  static std::string IdOf(const ProgramResult& created) {
    return created.out.substr(0, created.out.find('\n'));
  }
  std::vector<std::string> LeaseNames() {
    std::vector<std::string> names;
    const v1::StatsSnapshot stats = Stats();
    for (const v1::LeaseStats& lease : stats.leases()) names.push_back(lease.name());
    return names;
  }
};

TEST_F(ManagedLeasesTest, TheOwnerAttachesAndRootAloneResizesAndRemoves) {
  Start();
  const ProgramResult made = Manage("job");
  ASSERT_EQ(made.code, 0) << made.err;
  const std::string id = IdOf(made);
  const auto client =
      *ChildProgram::Start(As(kAnn, {"env", "LGPU_LEASE=job", DaemonProcess::ProgramPath(LGPU_E2E_CLIENT)}));
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 60), StartsWith("ok "));
  EXPECT_THAT(Alloc(*client, "b", 8), StartsWith("error")) << "the limit holds";
  for (const std::vector<std::string>& words : {std::vector<std::string>{"resize", "job", "-m", "128MiB"},
                                                {"resize", id, "-m", "2MiB"},
                                                {"rm", "job"},
                                                {"rm", id}}) {
    const ProgramResult refused = Run(kAnn, words);
    EXPECT_EQ(refused.code, 4) << words[0];
    EXPECT_THAT(refused.err, HasSubstr("lease job is managed: only root resizes and removes it"));
  }
  EXPECT_EQ(Run(kBob, {"rm", "job"}).code, 6) << "it is another user's";
  EXPECT_THAT(Run(kAnn, {"inspect", "job"}).out, HasSubstr("only root resizes and removes it"));
  EXPECT_EQ(Run(0, {"resize", "job", "-m", "128MiB"}).code, 0);
  EXPECT_THAT(Alloc(*client, "b", 8), StartsWith("ok "));
  EXPECT_EQ(Run(0, {"rm", "job"}).code, 0);
  client->Signal(SIGKILL);
}

TEST_F(ManagedLeasesTest, OnlyRootMakesAManagedLease) {
  Start();
  const ProgramResult refused = Run(kAnn, {"create", "--managed", "-m", "8MiB"});
  EXPECT_EQ(refused.code, 4);
  EXPECT_THAT(refused.err, HasSubstr("a managed lease is made by root alone"));
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--owner", "61301"},
                                                {"--label", "a=b"},
                                                {"--ttl", "0"},
                                                {"--end-when-idle", "0"},
                                                {"--end-when-idle", "soon"},
                                                {"--end-with-cgroup", "/x"},
                                                {"--managed", "--ttl", "0"},
                                                {"--managed", "--label", "a"},
                                                {"--managed", "--label", "a=1", "--label", "a=2"},
                                                {"--managed", "--label", "a b=1"},
                                                {"--managed", "--end-with-cgroup", "relative"}}) {
    std::vector<std::string> all = {"create", "-m", "8MiB"};
    all.insert(all.end(), words.begin(), words.end());
    EXPECT_EQ(Run(0, all).code, 2) << ::testing::PrintToString(words);
  }
  EXPECT_EQ(Run(0, {"create", "-m", "8MiB", "--managed", "--owner", "no-such-user"}).code, 6);
  EXPECT_THAT(LeaseNames(), ::testing::IsEmpty());
}

TEST_F(ManagedLeasesTest, AManagedLeaseCountsInNoCapAndInItsCard) {
  Start(absl::StrCat("[caps.users.", kAnn, "]\nmemory_limit = \"4MiB\"\nleases = 0\nsessions = 0\n"));
  ASSERT_EQ(Run(kAnn, {"create", "-m", "2MiB"}).code, 2) << "the cap holds for ann's own";
  for (const char* const name : {"one", "two", "three", "four"}) ASSERT_EQ(Manage(name).code, 0) << name;
  const ProgramResult full = Manage("five");
  EXPECT_EQ(full.code, 75) << "4 x 64 MiB are all that the card has";
  const ProgramResult inside = Run(kAnn, {"verify", "--lease", "three"});
  EXPECT_EQ(inside.code, 0) << inside.out << inside.err;
}

TEST_F(ManagedLeasesTest, ATakenNameDoesNotStandInRootsWay) {
  Start();
  for (const int uid : {kAnn, kBob}) ASSERT_EQ(Run(uid, {"create", "--name", "job", "-m", "8MiB"}).code, 0);
  const ProgramResult made = Manage("job");
  ASSERT_EQ(made.code, 0) << made.err;
  // The name means the managed one, for its owner and for root.
  EXPECT_THAT(Run(kAnn, {"inspect", "job"}).out, HasSubstr(IdOf(made)));
  EXPECT_EQ(Manage("job").code, 73) << "of managed leases a name is there once";
  EXPECT_EQ(Run(kAnn, {"create", "--name", "job2", "-m", "8MiB"}).code, 0);
  EXPECT_EQ(Run(kAnn, {"create", "--name", "job2", "-m", "8MiB"}).code, 73);
  EXPECT_EQ(Run(0, {"rm", "job"}).code, 0);
  EXPECT_EQ(Run(0, {"inspect", IdOf(made)}).code, 6);
  EXPECT_EQ(Run(kAnn, {"rm", "job"}).code, 0) << "from here on the name means ann's own again";
  EXPECT_EQ(Run(kBob, {"rm", "job"}).code, 0);
}

TEST_F(ManagedLeasesTest, RepeatedRequestsMakeAndEndOneLease) {
  Start();
  const std::string id = IdOf(Manage("job", {"--request-id", "job.0"}));
  EXPECT_EQ(IdOf(Manage("job", {"--request-id", "job.0"})), id);
  EXPECT_EQ(Manage("job", {"--request-id", "job.1"}).code, 73);
  EXPECT_EQ(Run(kAnn, {"rm", "--request-id", "job.0"}).code, 6) << "it was not ann's request";
  EXPECT_EQ(Run(0, {"rm", "--request-id", "job.0"}).code, 0);
  EXPECT_EQ(Run(0, {"rm", "--request-id", "job.0"}).code, 6);
  EXPECT_EQ(Run(0, {"rm", "--if-exists", "--request-id", "job.0"}).code, 0);
  EXPECT_EQ(Run(0, {"rm", "job"}).code, 6);
  EXPECT_EQ(Run(0, {"rm", "--if-exists", "job"}).code, 0);
  EXPECT_EQ(Run(0, {"rm"}).code, 2);
  EXPECT_NE(IdOf(Manage("job", {"--request-id", "job.0"})), id);
}

TEST_F(ManagedLeasesTest, RmWaitsUntilTheMemoryIsBack) {
  Start();
  ASSERT_EQ(Manage("job").code, 0);
  // The program's charged memory is back only when the program has ended.
  const auto program =
      *ChildProgram::Start(As(kAnn, {DaemonProcess::ProgramPath(LGPU_CHARGE_CLIENT), daemon_->dir()}));
  ASSERT_THAT(Ask(*program, "attach job"), StartsWith("ok "));
  ASSERT_THAT(Ask(*program, absl::StrCat("charge ", 32 * kMiB)), StartsWith("ok"));
  const ProgramResult late = Run(0, {"rm", "--wait=100ms", "job"});
  EXPECT_EQ(late.code, 75);
  EXPECT_THAT(late.err, HasSubstr("MiB are not back yet"));
  EXPECT_EQ(Run(0, {"rm", "job"}).code, 6) << "it is removed";
  std::thread end([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    program->Signal(SIGKILL);
  });
  EXPECT_EQ(Run(0, {"rm", "--wait", "--if-exists", "job"}).code, 0);
  EXPECT_EQ(HeldBytes(), 0u);
  end.join();
}

TEST_F(ManagedLeasesTest, LsFindsLeasesByTheirLabels) {
  Start("", "2x256MiB");
  ASSERT_EQ(Manage("a", {"--label", "slurm.job=7", "--label", "team=", "--gpus", "0"}).code, 0);
  ASSERT_EQ(Manage("b", {"--label", "slurm.job=8", "--gpus", "1"}).code, 0);
  const auto names = [&](const std::vector<std::string>& filter) {
    std::vector<std::string> words = {"ls", "--query", "lease", "--format", "csv,noheader"};
    words.insert(words.end(), filter.begin(), filter.end());
    return Run(0, words).out;
  };
  EXPECT_EQ(names({"--label", "slurm.job"}), "a\nb\n");
  EXPECT_EQ(names({"--label", "slurm.job=8"}), "b\n");
  EXPECT_EQ(names({"--label", "slurm.job", "--label", "team="}), "a\n");
  EXPECT_EQ(names({"--label", "other"}), "") << "none is no error: it is a search";
  EXPECT_EQ(Run(0, {"ls", "--label", "=x"}).code, 2);
  EXPECT_EQ(Run(kAnn, {"ls", "--query", "managed,labels", "--format", "csv,noheader"}).out,
            "true,slurm.job=7 team=\ntrue,slurm.job=8\n");
  // Of one lease the GPUs are its own.
  const std::string card = Stats().cards(1).uuid();
  EXPECT_EQ(Run(0, {"ls", "--lease", "b", "--query", "gpu.uuid", "--format", "csv,noheader"}).out,
            card + "\n");
  EXPECT_EQ(Run(0, {"ls", "--query", "gpu.index", "--format", "csv,noheader"}).out, "0\n1\n");
}

TEST_F(ManagedLeasesTest, AManagedLeaseEndsWithItsTime) {
  Start();
  ASSERT_EQ(Manage("long", {"--ttl", "90m"}).code, 0);
  EXPECT_THAT(Run(kAnn, {"inspect", "long"}).out,
              AllOf(HasSubstr("in 1h"), HasSubstr("or when it is removed")));
  const auto client = *ChildProgram::Start(
      As(kAnn, {"env", "LGPU_LEASE=short", DaemonProcess::ProgramPath(LGPU_E2E_CLIENT)}));
  // A slow machine needs a longer time to attach within it.
  std::string opened;
  for (int ms = 700; ms < 60'000 && !opened.starts_with("ok "); ms *= 2) {
    ASSERT_EQ(Manage("short", {"--ttl", absl::StrCat(ms, "ms")}).code, 0);
    opened = Ask(*client, "open c");
  }
  ASSERT_THAT(opened, StartsWith("ok "));
  EXPECT_TRUE(Eventually([&] { return LeaseNames() == std::vector<std::string>{"long"}; }));
  EXPECT_THAT(Alloc(*client, "a", 2), AllOf(StartsWith("error"), HasSubstr("its time to live has passed")));
}

TEST_F(ManagedLeasesTest, AManagedLeaseEndsWithItsTimeWhileNoDaemonServes) {
  StartInDirectory();
  ASSERT_EQ(Manage("short", {"--ttl", "300ms"}).code, 0);
  ASSERT_EQ(Manage("long", {"--ttl", "1h", "--label", "a=b", "--request-id", "r"}).code, 0);
  KillDaemon();
  std::this_thread::sleep_for(std::chrono::milliseconds(350));
  StartInDirectory();
  EXPECT_EQ(LeaseNames(), std::vector<std::string>{"long"});
  const ProgramResult described = Run(0, {"ls", "--json"});
  EXPECT_THAT(described.out, AllOf(HasSubstr("\"labels\":{\"a\":\"b\"}"), HasSubstr("\"managed\":true")));
  EXPECT_EQ(Manage("long", {"--request-id", "r"}).code, 0) << "the request is known to the next daemon";
  EXPECT_EQ(LeaseNames().size(), 1u);
}

TEST_F(ManagedLeasesTest, AManagedLeaseEndsWithItsCgroupOnceThatWasPopulated) {
  StartInDirectory();
  const std::string cgroup = directory_.path() + "/job";
  const auto write = [&](const char* populated) {
    std::filesystem::create_directory(cgroup);
    std::ofstream(cgroup + "/cgroup.events.new") << "populated " << populated << "\nfrozen 0\n";
    std::filesystem::rename(cgroup + "/cgroup.events.new", cgroup + "/cgroup.events");
  };
  const ProgramResult made = Manage("job", {"--end-with-cgroup", cgroup});
  ASSERT_EQ(made.code, 0) << "it is not there yet";
  EXPECT_THAT(made.err, HasSubstr("is in no file system of cgroups (version 2)"))
      << "the test's is a plain folder";
  write("0");
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  EXPECT_EQ(LeaseNames().size(), 1u) << "nothing was in it";
  // The daemon has seen it when its file says so.
  const auto file_size = [&] { return std::filesystem::file_size(directory_.path() + "/state/leases"); };
  const auto before = file_size();
  write("1");
  EXPECT_TRUE(Eventually([&] { return file_size() > before; }));
  KillDaemon();
  std::filesystem::remove_all(cgroup);
  StartInDirectory();
  EXPECT_TRUE(Eventually([&] { return LeaseNames().empty(); }));
}

TEST_F(ManagedLeasesTest, AManagedLeaseEndsWithACgroupThatWasPopulatedBetweenTwoLooks) {
  StartInDirectory();
  const std::string cgroup = directory_.path() + "/job";
  std::filesystem::create_directory(cgroup);
  std::ofstream(cgroup + "/cgroup.events") << "populated 0\nfrozen 0\n";
  std::ofstream(cgroup + "/cpu.stat") << "usage_usec 40\n";
  ASSERT_EQ(Manage("job", {"--end-with-cgroup", cgroup}).code, 0);
  ASSERT_EQ(Manage("witness", {"--ttl", "1200ms"}).code, 0);
  EXPECT_TRUE(Eventually([&] { return LeaseNames() == std::vector<std::string>{"job"}; }))
      << "the cgroup was looked at, and its time is that of earlier processes";
  // The next daemon knows the cgroup's CPU time at the start of the lease.
  Restart();
  std::ofstream(cgroup + "/cpu.stat.new") << "usage_usec 90\n";
  std::filesystem::rename(cgroup + "/cpu.stat.new", cgroup + "/cpu.stat");
  EXPECT_TRUE(Eventually([&] { return LeaseNames().empty(); }));
}

TEST_F(ManagedLeasesTest, ALeaseThatWaitsInTheFileIsRemovedByItsRequest) {
  directory_.OpenToEverybody();
  DaemonProcess::Options both = InDirectory("2x64MiB");
  both.open_to_everybody = true;
  DaemonProcess::Options one = InDirectory("64MiB");
  one.open_to_everybody = true;
  StartDaemon(both);
  ASSERT_EQ(Manage("waits", {"--gpus", "1", "--request-id", "r"}).code, 0);
  KillDaemon();
  StartDaemon(one);
  EXPECT_EQ(Run(0, {"inspect", "waits"}).code, 6) << "its GPU is not served";
  EXPECT_EQ(Run(kAnn, {"rm", "--request-id", "r"}).code, 6) << "it was not ann's request";
  EXPECT_EQ(Run(0, {"rm", "--request-id", "r"}).code, 0);
  EXPECT_EQ(Run(0, {"rm", "--request-id", "r"}).code, 6);
  KillDaemon();
  StartDaemon(both);
  EXPECT_THAT(LeaseNames(), ::testing::IsEmpty());
}

TEST_F(ManagedLeasesTest, ProgramsOfALeaseThatIsEndingAreEnded) {
  Start();
  ASSERT_EQ(Manage("job").code, 0);
  const auto program =
      *ChildProgram::Start(As(kAnn, {DaemonProcess::ProgramPath(LGPU_CHARGE_CLIENT), daemon_->dir()}));
  ASSERT_THAT(Ask(*program, "attach job"), StartsWith("ok "));
  ASSERT_THAT(Ask(*program, absl::StrCat("charge ", 32 * kMiB)), StartsWith("ok"));
  ASSERT_EQ(Run(0, {"rm", "job"}).code, 0);
  EXPECT_EQ(LeaseNames(), std::vector<std::string>{"job"}) << "its memory is not back";
  const ProgramResult ended = Run(0, {"rm", "--kill", "--wait", "job"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("programs ended: 1 by SIGTERM"));
  EXPECT_THAT(LeaseNames(), ::testing::IsEmpty());
  EXPECT_EQ(Run(0, {"rm", "--kill", "job"}).code, 6);
  EXPECT_EQ(Run(0, {"rm", "--kill", "--if-exists", "job"}).code, 0);
}

TEST_F(ManagedLeasesTest, ACgroupOfVersionOneIsRefused) {
  StartInDirectory();
  std::ofstream(directory_.path() + "/cgroup.procs") << "1\n";
  const ProgramResult refused = Manage("job", {"--end-with-cgroup", directory_.path()});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("is a cgroup of version 1"));
}

TEST_F(ManagedLeasesTest, AStaticLeaseOfTheSameNameIsAnotherOne) {
  DaemonProcess::Options options = InDirectory();
  StartDaemon(options);
  std::vector<std::string> both = {"create", "--managed", "--name", "fixed", "-m", "8MiB"};
  ASSERT_EQ(Run(0, both).code, 0);
  KillDaemon();
  options.config = "[[logical_device]]\nlease = \"fixed\"\nmemory = \"64MiB\"\n";
  for (int start = 0; start < 2; ++start) {
    StartDaemon(options);
    EXPECT_EQ(LeaseNames(), (std::vector<std::string>{"fixed", "fixed"}));
    KillDaemon();
  }
  StartDaemon(options);
}

// Written by lgpud before it knew managed leases.
TEST_F(ManagedLeasesTest, AFileOfThePreviousVersionIsRead) {
  std::filesystem::create_directories(directory_.path() + "/state");
  std::filesystem::copy(LGPU_TEST_CASES "/leases-version-2", directory_.path() + "/state/leases");
  DaemonProcess::Options options = InDirectory("");
  options.config =
      "[[simulated_device]]\nmemory = \"256MiB\"\nuuid = \"GPU-aaaaaaaa-0000-4000-8000-000000000001\"\n";
  for (int start = 0; start < 2; ++start) {  // from the old file, then from the new one
    StartDaemon(options);
    const auto train = control_->GetLease("train");
    ASSERT_TRUE(train.ok()) << train.status();
    EXPECT_EQ(train->id(), "l-1efd4501");
    EXPECT_FALSE(train->has_management());
    const auto infer = control_->GetLease("infer");
    ASSERT_TRUE(infer.ok()) << infer.status();
    EXPECT_EQ(infer->devices_size(), 2);
    EXPECT_EQ(infer->devices(1).mode(), v1::LogicalDeviceSpec::MODE_PREALLOCATE);
    KillDaemon();
    std::filesystem::remove_all(directory_.path() + "/run");
  }
  StartDaemon(options);
}

}  // namespace
}  // namespace lgpu::testing
