// `--preemptible`: programs that do not know of lgpu, each too large for the card beside another, take turns
// on it by themselves: whoever is idle gives way, and comes back when it uses the GPU.

#include <signal.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/driver/shim_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::chrono::seconds kIdle{1};  // as long as lgpud asks for
constexpr std::chrono::minutes kTurn{1};  // a program waits for its memory at most so long here

/// A card of 256 MiB.
class PreemptTest : public ShimTest {
 protected:
  PreemptTest() : ShimTest({.total = 256_MiB}) {}

  std::unique_ptr<ChildProgram> StartWith(const std::string& name, const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"run", "--name", name};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), {"--", LGPU_CHECKPOINT_CLIENT});
    const ChildProgram::Options options = Lgpu(words);
    auto program = StartProgram(options.argv, options.environment);
    EXPECT_EQ(Ask(*program, "start"), "ok");
    return program;
  }
  std::unique_ptr<ChildProgram> StartPreemptible(const std::string& name) {
    return StartWith(name, {"--preemptible"});
  }
  static std::string Alloc(std::uint64_t mib) { return absl::StrCat("alloc ", mib * kMiB); }
  /// The answer of a program that may wait for its turn.
  static std::string AskInTurn(ChildProgram& program, const std::string& line) {
    program.WriteLine(line);
    return program.ReadLine(kTurn).value_or("no answer");
  }
  v1::LeaseSuspension SuspensionOf(const std::string& name) {
    const v1::StatsSnapshot stats = Stats();
    for (const v1::LeaseStats& lease : stats.leases()) {
      if (lease.name() == name) return lease.suspension();
    }
    return {};
  }
  bool IsSuspended(const std::string& name) { return SuspensionOf(name).in_host_memory(); }
  /// In the queue of the card, to come back.
  std::uint32_t PlaceOf(const std::string& name) { return SuspensionOf(name).place(); }
};

TEST_F(PreemptTest, TwoProgramsThatEachNeedTheCardTakeTurns) {
  StartMachine();
  auto ann = StartPreemptible("ann");
  ASSERT_EQ(AskInTurn(*ann, Alloc(160)), "ok");
  auto bob = StartPreemptible("bob");
  ASSERT_EQ(AskInTurn(*bob, Alloc(140)), "ok") << "ann has been idle for a second by then";
  EXPECT_TRUE(IsSuspended("ann"));
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_EQ(AskInTurn(*ann, "compare"), "same") << turn;
    EXPECT_TRUE(IsSuspended("bob")) << turn;
    EXPECT_EQ(AskInTurn(*bob, "compare"), "same") << turn;
    EXPECT_TRUE(IsSuspended("ann")) << turn;
  }
  const std::string events = Run({"events"}).out;
  EXPECT_THAT(events, HasSubstr("asked to give way for lease bob, which lacks "));
  EXPECT_THAT(events, HasSubstr("suspended: 160.00MiB in host memory after "));
  EXPECT_THAT(events, HasSubstr("resumed: 160.00MiB back on its GPUs after "));
  EXPECT_THAT(Run({"inspect", "ann", "--json"}).out, HasSubstr("\"preemptible\":\"idle\""));
  End(*bob);
  End(*ann);
}

TEST_F(PreemptTest, OneThatIsAtWorkStaysAndTheOtherWaitsForIt) {
  StartMachine();
  auto ann = StartPreemptible("ann");
  ASSERT_EQ(AskInTurn(*ann, Alloc(160)), "ok");
  auto bob = StartPreemptible("bob");
  ASSERT_EQ(AskInTurn(*bob, Alloc(140)), "ok");
  ann->WriteLine("compare");
  EXPECT_TRUE(Eventually([&] { return AskInTurn(*bob, "compare") == "same" && PlaceOf("ann") == 1; }));
  EXPECT_EQ(ann->ReadLine(kTurn).value_or("no answer"), "same") << "bob is idle by then";
  End(*bob);
  End(*ann);
}

TEST_F(PreemptTest, TwoTrainingsBothEnd) {
  StartMachine();
  const std::vector<std::string> always = {"--preemptible=always"};
  auto ann = StartWith("ann", always);
  ASSERT_EQ(AskInTurn(*ann, Alloc(160)), "ok");
  auto bob = StartWith("bob", always);
  bob->WriteLine(Alloc(140));
  // Ann is never idle, and bob has the card all the same.
  std::optional<std::string> has_memory;
  for (int i = 0; i < 1000 && !has_memory; ++i) {
    ASSERT_EQ(AskInTurn(*ann, "compare"), "same") << i;
    has_memory = bob->ReadLine(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(has_memory.value_or("no answer"), "ok");
  ann->WriteLine("compare");
  std::optional<std::string> is_back;
  for (int i = 0; i < 1000 && !is_back; ++i) {
    ASSERT_EQ(AskInTurn(*bob, "compare"), "same") << i;
    is_back = ann->ReadLine(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(is_back.value_or("no answer"), "same");
  EXPECT_THAT(Run({"events"}).out, HasSubstr("its turn at work is over"));
  End(*bob);
  End(*ann);
}

TEST_F(PreemptTest, WhoNeverGivesWayMakesNobodyGiveWay) {
  StartMachine();
  auto ann = StartPreemptible("ann");
  ASSERT_EQ(AskInTurn(*ann, Alloc(160)), "ok");
  std::this_thread::sleep_for(2 * kIdle);
  auto bob = StartWith("bob", {"--memory-wait", "500ms"});
  EXPECT_EQ(AskInTurn(*bob, Alloc(140)), "2");
  EXPECT_FALSE(IsSuspended("ann"));
  End(*bob);
  End(*ann);
}

TEST_F(PreemptTest, ItIsBackWhenTheOtherHasEnded) {
  StartMachine();
  auto ann = StartPreemptible("ann");
  ASSERT_EQ(AskInTurn(*ann, Alloc(160)), "ok");
  auto bob = StartPreemptible("bob");
  ASSERT_EQ(AskInTurn(*bob, Alloc(140)), "ok");
  ASSERT_TRUE(IsSuspended("ann"));
  End(*bob);
  // Nobody uses it, and the card has room for it.
  const auto until = std::chrono::steady_clock::now() + kTurn;
  while (IsSuspended("ann") && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  EXPECT_FALSE(IsSuspended("ann"));
  EXPECT_EQ(Ask(*ann, "compare"), "same");
  End(*ann);
}

TEST_F(PreemptTest, TheNextDaemonBringsItBack) {
  StartMachine();
  auto ann = StartPreemptible("ann");
  ASSERT_EQ(AskInTurn(*ann, Alloc(160)), "ok");
  auto bob = StartPreemptible("bob");
  ASSERT_EQ(AskInTurn(*bob, Alloc(140)), "ok");
  ASSERT_TRUE(IsSuspended("ann"));
  RestartDaemon();
  ann->WriteLine("compare");
  EXPECT_TRUE(Eventually([&] { return PlaceOf("ann") == 1; })) << "a restart counts as a use";
  End(*bob);
  EXPECT_EQ(ann->ReadLine(kTurn).value_or("no answer"), "same");
  End(*ann);
}

TEST_F(PreemptTest, OneThatAsksForMemoryWhileItIsAwayComesBack) {
  StartMachine();
  auto ann = StartPreemptible("ann");
  ASSERT_EQ(AskInTurn(*ann, Alloc(140)), "ok");
  auto bob = StartPreemptible("bob");
  ASSERT_EQ(AskInTurn(*bob, Alloc(140)), "ok");
  ASSERT_TRUE(IsSuspended("ann"));
  EXPECT_EQ(AskInTurn(*ann, Alloc(20)), "ok");
  EXPECT_TRUE(IsSuspended("bob"));
  EXPECT_EQ(AskInTurn(*ann, "compare"), "same");
  End(*bob);
  End(*ann);
}

TEST_F(PreemptTest, OneThatCannotBeMovedIsLeftAloneAndTheRequestSaysSo) {
  StartMachine();
  auto ann = StartPreemptible("ann");
  ASSERT_EQ(AskInTurn(*ann, absl::StrCat("managed ", 160 * kMiB)), "ok");
  std::this_thread::sleep_for(2 * kIdle);
  auto bob = StartWith("bob", {"--preemptible", "--memory-wait", "500ms"});
  EXPECT_EQ(AskInTurn(*bob, Alloc(140)), "2");
  EXPECT_THAT(Run({"events"}).out, HasSubstr("could not be suspended: "));
  EXPECT_THAT(Run({"ls"}).out, Not(HasSubstr("SUSPENDED")));
  End(*bob);
  End(*ann);
}

TEST_F(PreemptTest, PreallocatedMemoryIsNotPreemptible) {
  StartMachine();
  const ProgramResult refused = Run({"create", "-m", "100MiB", "--preallocate", "--preemptible"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--preemptible cannot be used with --preallocate"));
  const ProgramResult unknown = Run({"create", "-m", "100MiB", "--preemptible=sometimes"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("the value must be idle (as without a value), always or never"));
}

}  // namespace
}  // namespace lgpu::testing
