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
  EXPECT_TRUE(Eventually([&] { return client->Errors().find("beside its charges") != std::string::npos; }))
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
  EXPECT_TRUE(Eventually([&] { return Events(lease).find("it was killed") != std::string::npos; }));
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

}  // namespace
}  // namespace lgpu::testing
