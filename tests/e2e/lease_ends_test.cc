// Leases of any user that end by themselves, as their owner asked for, and for how long leases are idle.

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/cli/cli_testing.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class LeaseEndsTest : public CliTest {
 protected:
  bool IsThere(const std::string& name) { return control_->GetLease(name).ok(); }
  void Create(const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> words = {"create", "-q", "-m", "64MiB", "--preallocate", "--name", name};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult created = Run(words);
    EXPECT_EQ(created.code, 0) << created.err;
  }
};

TEST_F(LeaseEndsTest, ALeaseEndsWithItsTimeAlsoUnderAProgram) {
  StartInDirectory("256MiB");
  Create("short", {"--ttl", "3s"});
  Create("long", {"--ttl", "1h"});
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c lease=short"), StartsWith("ok "));
  EXPECT_TRUE(Eventually([&] { return !IsThere("short"); }));
  EXPECT_TRUE(IsThere("long"));
  EXPECT_THAT(Run({"events"}).out, HasSubstr("lease short ends: its time to live has passed"));
  client->Signal(SIGKILL);
  EXPECT_EQ(Run({"rm", "long"}).code, 0);
}

TEST_F(LeaseEndsTest, AnIdleLeaseEndsOnlyWhereItHasNoProgram) {
  StartInDirectory("256MiB");
  Create("used", {"--end-when-idle", "1s"});
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c lease=used"), StartsWith("ok "));
  Create("left", {"--end-when-idle", "1s"});
  EXPECT_TRUE(Eventually([&] { return !IsThere("left"); }));
  EXPECT_TRUE(IsThere("used")) << "its program is older than the end of the other one";
  EXPECT_THAT(Run({"events"}).out,
              HasSubstr("lease left ends: it was idle for as long as its owner allowed"));
  client->WriteLine("exit");
  client->Wait();
  EXPECT_TRUE(Eventually([&] { return !IsThere("used"); }));
}

TEST_F(LeaseEndsTest, ARestartKeepsTheEnds) {
  StartInDirectory("256MiB");
  Create("both", {"--ttl", "150m", "--end-when-idle", "90m"});
  for (const bool is_restarted : {false, true}) {
    if (is_restarted) Restart();
    EXPECT_THAT(Run({"inspect", "both"}).out,
                AllOf(HasSubstr("in 2h"), HasSubstr("when it has had no program for 90m")));
    const json lease = RunJson({"ls"})["leases"][0];
    EXPECT_EQ(lease["end_when_idle_seconds"], 5400);
    EXPECT_LE(lease["time_left_seconds"], 9000);
    EXPECT_TRUE(lease.contains("idle_since")) << lease;
  }
  EXPECT_EQ(Run({"rm", "both"}).code, 0);
}

TEST_F(LeaseEndsTest, AProgramThatHasRunNoOpCannotTellForHowLongItIsIdle) {
  StartInDirectory("256MiB");
  Create("train", {});
  EXPECT_TRUE(RunJson({"ls"})["leases"][0].contains("idle_since")) << "no program uses it";
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c lease=train"), StartsWith("ok "));
  EXPECT_FALSE(RunJson({"ls"})["leases"][0].contains("idle_since"));
  EXPECT_THAT(Run({"inspect", "train"}).out, HasSubstr("not known"));
  client->WriteLine("exit");
  client->Wait();
  EXPECT_TRUE(Eventually([&] { return RunJson({"ls"})["leases"][0].contains("idle_since"); }));
  EXPECT_EQ(Run({"rm", "train"}).code, 0);
}

}  // namespace
}  // namespace lgpu::testing
