// What lgpud knows of when programs that know nothing of lgpu last used a GPU.

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/driver/shim_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::HasSubstr;

class UseTest : public ShimTest {
 protected:
  /// Since when the program is idle, as lgpud shows it: in whole seconds. 0: that is not known.
  std::int64_t IdleSince(const ChildProgram& program) {
    const v1::StatsSnapshot stats = Stats();
    for (const v1::LeaseStats& lease : stats.leases()) {
      for (const v1::SessionStats& session : lease.sessions()) {
        if (session.pid() == program.pid()) return session.idle_since().seconds();
      }
    }
    return 0;
  }
  /// Until lgpud has seen `calls` of `program` in three of its ticks.
  void UseFor3Ticks(ChildProgram& program, const std::string& call = "call cuCtxSynchronize") {
    const std::int64_t before = IdleSince(program);
    EXPECT_TRUE(Eventually([&] {
      Ask(program, call);
      return IdleSince(program) >= before + 3;
    })) << call;
  }
  std::unique_ptr<ChildProgram> StartClient(const std::string& way = "dlopen") {
    return StartProgram({Client(way), way, way == "linked" ? "" : "libcuda.so.1"},
                        EnvironmentOf(CreateLease("64MiB")));
  }
};

class UseWaysTest : public UseTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(UseWaysTest, LgpudSeesEachUse) {
  StartMachine();
  auto client = StartClient(GetParam());
  ASSERT_NE(IdleSince(*client), 0) << "it has joined a moment ago";
  UseFor3Ticks(*client);
  UseFor3Ticks(*client, "call cuLaunch");  // this one the fake driver answers with an error
  End(*client);
}

INSTANTIATE_TEST_SUITE_P(All, UseWaysTest,
                         ::testing::Values("linked", "dlopen", "lookup", "lookup_per_thread"),
                         [](const ::testing::TestParamInfo<const char*>& way) {
                           return std::string(way.param);
                         });

TEST_F(UseTest, QueriesAreNoUse) {
  StartMachine();
  auto watcher = StartClient();
  auto worker = StartClient();
  UseFor3Ticks(*worker);
  const std::int64_t since = IdleSince(*watcher);
  const std::int64_t start = IdleSince(*worker);
  EXPECT_TRUE(Eventually([&] {
    Ask(*watcher, "info");
    Ask(*watcher, "total");
    Ask(*watcher, "nvml_info");
    Ask(*watcher, "devices");
    Ask(*worker, "call cuCtxSynchronize");
    return IdleSince(*worker) >= start + 3;
  }));
  EXPECT_EQ(IdleSince(*watcher), since);
  End(*watcher);
  End(*worker);
}

TEST_F(UseTest, ACallThatTheShimChangesIsAUseWhereItSubmitsWork) {
  StartMachine();
  auto client = StartClient();
  UseFor3Ticks(*client, "take_and_drop 1 1048576");
  End(*client);
}

class UseInChildrenTest : public UseTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(UseInChildrenTest, AChildsCallsReadNoMemoryThatIsGoneAndAreNoUseOfItsParent) {
  StartMachine();
  auto parent = StartClient();
  auto worker = StartClient();
  UseFor3Ticks(*parent);
  const std::int64_t since = IdleSince(*parent);
  EXPECT_EQ(Ask(*parent, absl::StrCat("child ", GetParam(), " cuLaunch")), "ok");
  UseFor3Ticks(*worker);
  EXPECT_EQ(Ask(*parent, "end_child"), "ok 0") << "the child has ended by itself";
  EXPECT_EQ(IdleSince(*parent), since);
  UseFor3Ticks(*parent);
  End(*parent);
  End(*worker);
}

INSTANTIATE_TEST_SUITE_P(All, UseInChildrenTest, ::testing::Values("fork", "clone"),
                         [](const ::testing::TestParamInfo<const char*>& how) {
                           return std::string(how.param);
                         });

TEST_F(UseTest, UsesAreSeenByADaemonThatWasStartedAgain) {
  StartMachine();
  auto client = StartClient();
  UseFor3Ticks(*client);
  RestartDaemon();
  EXPECT_EQ(IdleSince(*client), 0) << "lgpud does not know until the program has joined again";
  Ask(*client, "info");
  UseFor3Ticks(*client);
  End(*client);
}

TEST_F(UseTest, LsShowsForHowLongALeaseIsIdleAndTrimLeavesABusyOneOut) {
  StartMachine();
  auto client = StartClient();
  UseFor3Ticks(*client);
  EXPECT_EQ(Run({"trim", "--idle-for", "1h"}).out, "No lease was asked.\n");
  const json lease = RunJson({"ls"})["leases"][0];
  EXPECT_TRUE(lease.contains("idle_since")) << lease;
  EXPECT_FALSE(lease.contains("last_op_at")) << lease;
  EXPECT_THAT(Run({"ps"}).out, HasSubstr("IDLE"));
  End(*client);
}

}  // namespace
}  // namespace lgpu::testing
