// `lgpu run --release`: an idle program gives memory up for another one, and neither knows of lgpu.

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/driver/shim_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::HasSubstr;

/// A card of 1 GiB. A program holds 800 MiB of it and is idle; another one asks for 500.
class ReleaseTest : public ShimTest {
 protected:
  ReleaseTest() : ShimTest({.total = 1024_MiB}) {}

  std::unique_ptr<ChildProgram> StartHolder(const std::string& release,
                                            std::vector<std::string> words = {"run", "--name", "holder"}) {
    words.insert(words.end(), {"--release", release, "--", Client("dlopen"), "dlopen", "libcuda.so.1"});
    const ChildProgram::Options options = Lgpu(words);
    auto holder = StartProgram(options.argv, options.environment);
    EXPECT_EQ(Ask(*holder, absl::StrCat("alloc a plain ", 800 * kMiB)), "ok");
    return holder;
  }
  std::unique_ptr<ChildProgram> StartAsker() {
    return Start("1GiB", {Client("dlopen"), "dlopen", "libcuda.so.1"});  // it waits 500 ms for memory
  }
  /// So that the lease can be asked before the other program's own wait is over.
  void AwaitIdleHolder() {
    EXPECT_TRUE(Eventually([&] {
      const v1::StatsSnapshot stats = Stats();
      for (const v1::LeaseStats& lease : stats.leases()) {
        if (lease.name() != "holder" || !lease.has_idle_since()) continue;
        return lease.idle_since().seconds() + 2 < std::chrono::duration_cast<std::chrono::seconds>(
                                                      std::chrono::system_clock::now().time_since_epoch())
                                                      .count();
      }
      return false;
    })) << "lgpud does not know since when the lease is idle";
  }
  std::string GivesWayFor() {
    const v1::StatsSnapshot stats = Stats();
    for (const v1::LeaseStats& lease : stats.leases()) {
      if (lease.name() == "holder") return lease.gives_way_for();
    }
    return "(no holder)";
  }
  /// Of the asker's lease.
  std::string NameOfTheOther() {
    const v1::StatsSnapshot stats = Stats();
    for (const v1::LeaseStats& lease : stats.leases()) {
      if (lease.name() != "holder") return lease.name();
    }
    return "(no asker)";
  }
  std::string InHome(const std::string& name) const { return home_.path() + "/" + name; }
  static bool Exists(const std::string& path) { return std::filesystem::exists(path); }
  static std::string AskFor500() { return absl::StrCat("alloc b plain ", 500 * kMiB); }
};

TEST_F(ReleaseTest, AnIdleProgramGivesMemoryUpForAnotherOneWhichWaitsSoLong) {
  StartMachine();
  // The hook takes longer than the other program's own wait and the time that an answer may take.
  auto holder = StartHolder(absl::StrCat("echo will free; sleep 2; touch ", InHome("asked"),
                                         "; while [ ! -e ", InHome("freed"), " ]; do sleep 0.02; done"));
  AwaitIdleHolder();
  auto asker = StartAsker();
  asker->WriteLine(AskFor500());
  ASSERT_TRUE(Eventually([&] { return Exists(InHome("asked")); })) << holder->Errors();
  const std::string asking = NameOfTheOther();
  EXPECT_EQ(GivesWayFor(), asking);
  EXPECT_THAT(Run({"ls"}).out, HasSubstr("  gives way f"));  // the name does not fit
  EXPECT_THAT(Run({"inspect", "holder"}).out, HasSubstr("  for " + asking + "\n"));
  EXPECT_EQ(Ask(*holder, "free a"), "ok");
  std::ofstream(InHome("freed")).put('\n');
  EXPECT_EQ(asker->ReadLine(), "ok");
  EXPECT_TRUE(Eventually([&] { return GivesWayFor().empty(); }));
  std::string events;
  EXPECT_TRUE(Eventually([&] {
    events = Run({"events"}).out;
    return events.find("gave way: ") != std::string::npos;
  })) << events;
  EXPECT_THAT(events, HasSubstr("asked to give way: it has been idle for "));
  EXPECT_THAT(events, HasSubstr("served after "));
  End(*asker);
  End(*holder);
  EXPECT_THAT(holder->Errors(), HasSubstr("lgpu: --release: will free"));
  EXPECT_THAT(holder->Errors(), HasSubstr("lgpu: --release ended well after "));
}

TEST_F(ReleaseTest, AHookMayEndItsProgram) {
  StartMachine();
  auto holder = StartHolder("kill $LGPU_RELEASE_PID");
  AwaitIdleHolder();
  auto asker = StartAsker();
  EXPECT_EQ(Ask(*asker, AskFor500()), "ok");
  EXPECT_EQ(holder->Wait(), 128 + SIGTERM);
  End(*asker);
}

TEST_F(ReleaseTest, AfterAHookThatFailedTheOtherProgramIsRefusedAndToldWhy) {
  StartMachine();
  auto holder = StartHolder("echo no; exit 3");
  AwaitIdleHolder();
  auto asker = StartAsker();
  EXPECT_EQ(Ask(*asker, AskFor500()), "error 2");
  EXPECT_THAT(Run({"events"}).out, HasSubstr("the release hook failed: it ended with 3"));
  End(*asker);
  EXPECT_THAT(asker->Errors(), HasSubstr("lease holder was asked to give way and gave 0B"));
  End(*holder);
}

TEST_F(ReleaseTest, AHookOfExecIsRunForItsLease) {
  StartMachine();
  ASSERT_EQ(Run({"create", "--name", "holder"}).code, 0);
  auto holder = StartHolder("kill $LGPU_RELEASE_PID", {"exec", "holder"});
  AwaitIdleHolder();
  auto asker = StartAsker();
  EXPECT_EQ(Ask(*asker, AskFor500()), "ok");
  EXPECT_EQ(holder->Wait(), 128 + SIGTERM);
  End(*asker);
}

TEST_F(ReleaseTest, ALeaseIsNotAskedBeforeItHasBeenIdleForAsLongAsItsOwnerSaid) {
  StartMachine();
  auto holder = StartHolder("kill $LGPU_RELEASE_PID", {"run", "--name", "holder", "--idle-after", "1h"});
  AwaitIdleHolder();
  auto asker = StartAsker();
  EXPECT_EQ(Ask(*asker, AskFor500()), "error 2");
  EXPECT_THAT(Run({"events"}).out, ::testing::Not(HasSubstr("asked to give way")));
  End(*asker);
  // Another program of the lease lowers it for all.
  EXPECT_EQ(Run({"exec", "-q", "--idle-after", "1500ms", "holder", "--", "true"}).code, 0);
  auto next = StartAsker();
  AwaitIdleHolder();
  EXPECT_EQ(Ask(*next, AskFor500()), "ok");
  EXPECT_EQ(holder->Wait(), 128 + SIGTERM);
  End(*next);
}

TEST_F(ReleaseTest, TheIdleTimeOfALeaseSurvivesARestartOfTheDaemon) {
  StartMachine();
  ASSERT_EQ(Run({"create", "--name", "holder", "--idle-after", "90m"}).code, 0);
  const auto idle_after = [&] {
    return json::parse(Run({"inspect", "holder", "--json"}).out)["idle_after_seconds"];
  };
  EXPECT_EQ(idle_after(), 5400);
  RestartDaemon();
  EXPECT_EQ(idle_after(), 5400);
  EXPECT_THAT(Run({"inspect", "holder"}).out,
              HasSubstr("idle after  90m: then lgpud may ask it to give way"));
  EXPECT_EQ(Run({"exec", "-q", "--idle-after", "2", "holder", "--", "true"}).code, 0);
  RestartDaemon();
  EXPECT_EQ(idle_after(), 2);
}

TEST_F(ReleaseTest, AnIdleTimeBelowASecondIsRefused) {
  StartMachine();
  ASSERT_EQ(Run({"create", "--name", "holder"}).code, 0);
  const std::string why = "--idle-after 900ms: a lease is idle for 1s at least";
  EXPECT_THAT(Run({"create", "--idle-after", "900ms"}).err, HasSubstr(why));
  EXPECT_THAT(Run({"run", "--idle-after", "900ms", "--", "true"}).err, HasSubstr(why));
  EXPECT_THAT(Run({"exec", "--idle-after", "900ms", "holder", "--", "true"}).err, HasSubstr(why));
  EXPECT_THAT(Run({"create", "--idle-after", "soon"}).err,
              HasSubstr("--idle-after: \"soon\" is not a duration"));
  // So does lgpud, whoever asks.
  v1::CreateLeaseRequest request = OneDevice(32 * kMiB, /*preallocate=*/false, /*lasting=*/true);
  request.set_idle_after_ms(999);
  const absl::Status refused = control_->CreateLease(request).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(),
              HasSubstr("an idle time of 999 ms before the lease is asked to give way is too"));
}

TEST_F(ReleaseTest, TheHookSurvivesARestartOfTheDaemon) {
  StartMachine();
  auto holder = StartHolder("kill $LGPU_RELEASE_PID");
  RestartDaemon();
  EXPECT_EQ(Ask(*holder, absl::StrCat("alloc c plain ", 100 * kMiB)), "ok") << "it has joined the new daemon";
  AwaitIdleHolder();
  auto asker = StartAsker();
  EXPECT_EQ(Ask(*asker, AskFor500()), "ok");
  EXPECT_EQ(holder->Wait(), 128 + SIGTERM);
  End(*asker);
}

}  // namespace
}  // namespace lgpu::testing
