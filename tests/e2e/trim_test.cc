// Memory that comes back: by `lgpu trim`, from programs that answer and from programs that do not, and from
// leases whose limits change under load.

#include <signal.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class TrimTest : public E2eTest {
 protected:
  ChildProgram::Options Lgpu(std::vector<std::string> words) {
    words.insert(words.begin(), DaemonProcess::LgpuPath());
    return {.argv = std::move(words), .environment = {{"LGPU_ENDPOINT", daemon_->dir()}, {"NO_COLOR", "1"}}};
  }
  ProgramResult Run(std::vector<std::string> words) {
    const auto result = RunProgram(Lgpu(std::move(words)));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ProgramResult();
  }
  json RunJson(std::vector<std::string> words) {
    words.emplace_back("--json");
    const ProgramResult result = Run(std::move(words));
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  }
  /// Of the lease of that name.
  std::uint64_t Held(const std::string& name) {
    std::uint64_t held = 0;
    const v1::StatsSnapshot stats = Stats();
    for (const v1::LeaseStats& lease : stats.leases()) {
      if (lease.name() != name) continue;
      for (const v1::LogicalDeviceStats& device : lease.devices()) held += device.held_bytes();
    }
    return held;
  }
  /// A program with a lease of its own that keeps `keep` MiB and has freed `idle` MiB.
  std::unique_ptr<ChildProgram> Holder(const std::string& name, std::uint64_t keep, std::uint64_t idle,
                                       const std::string& options = "") {
    auto client = StartClient();
    EXPECT_THAT(Ask(*client, absl::StrCat("open c timeout=0 lease_name=", name, " ", options)),
                StartsWith("ok "));
    EXPECT_THAT(Ask(*client, absl::StrCat("alloc c keep ", keep * kMiB)), StartsWith("ok "));
    if (idle > 0) {
      EXPECT_THAT(Ask(*client, absl::StrCat("alloc c t ", idle * kMiB)), StartsWith("ok "));
      EXPECT_EQ(Ask(*client, "free t"), "ok");
    }
    return client;
  }
  ::testing::AssertionResult LedgerHolds() {
    const json diagnosis = RunJson({"doctor"});
    if (!diagnosis.contains("checks")) return ::testing::AssertionFailure() << diagnosis.dump();
    for (const json& finding : diagnosis["checks"]) {
      if (finding.value("id", "") != "ledger") continue;
      if (finding.value("level", "") == "ok") return ::testing::AssertionSuccess();
      return ::testing::AssertionFailure() << finding.dump();
    }
    return ::testing::AssertionFailure() << "doctor says nothing of the ledger: " << diagnosis.dump();
  }
};

// The program is stopped until it has been asked, so that it gives back nothing on its own before. The card
// has room for both until then: no other request asks it.
TEST_F(TrimTest, ReturnedMemoryIsGrantedToAnotherProgram) {
  StartDaemon({.simulate = "256MiB"});
  const auto two = Holder("two", 8, 0);
  const auto one = Holder("one", 8, 96);
  one->Signal(SIGSTOP);
  const std::uint64_t before = Held("one");
  const std::uint64_t asked_before = Stats().trims_total();
  EXPECT_GE(before, 104 * kMiB);
  auto trim = *ChildProgram::Start(Lgpu({"trim", "one", "--json", "--timeout", "20s"}));
  EXPECT_TRUE(Eventually([&] { return Stats().trims_total() > asked_before; }));
  one->Signal(SIGCONT);
  const json told = json::parse(trim->ReadAll(), nullptr, false);
  EXPECT_EQ(trim->Wait(), 0) << trim->Errors();
  EXPECT_EQ(told.value("schema", ""), "lgpu.trim/v1") << told.dump();
  EXPECT_EQ(told["name"], "one");
  EXPECT_EQ(told["sessions"][0]["answer"], "done");
  EXPECT_EQ(told["sessions"][0]["pid"], one->pid());
  const std::uint64_t returned = told["returned_bytes"];
  EXPECT_EQ(told["held_bytes"], Held("one"));
  EXPECT_EQ(returned, before - Held("one"));
  EXPECT_GE(returned, 96 * kMiB);

  const std::uint64_t free = 256 * kMiB - HeldBytes();
  EXPECT_GE(free, returned);
  EXPECT_THAT(Ask(*two, absl::StrCat("alloc c t ", free)), StartsWith("ok "));
  EXPECT_EQ(HeldBytes(), 256 * kMiB);
  EXPECT_EQ(Held("two"), 256 * kMiB - Held("one"));
  EXPECT_EQ(Stats().refusals_total(), 0u);
  EXPECT_EQ(Ask(*one, "read keep"), "ok 2.09715e+06");
  EXPECT_EQ(Ask(*one, "close c"), "ok");
  EXPECT_EQ(Ask(*two, "close c"), "ok");
}

TEST_F(TrimTest, AllLeasesAreAskedAndPreallocatedOnesKeepTheirMemory) {
  StartDaemon({.simulate = "256MiB"});
  const auto one = Holder("one", 8, 32);
  const auto two = Holder("two", 8, 32);
  const auto fixed = Holder("fixed", 8, 0, absl::StrCat("prealloc=1 limit=", 64 * kMiB));
  const ProgramResult result = Run({"trim"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("one"), HasSubstr("two"), HasSubstr("fixed"), HasSubstr("1 answered")));
  EXPECT_EQ(Held("one"), 8 * kMiB);
  EXPECT_EQ(Held("two"), 8 * kMiB);
  EXPECT_EQ(Held("fixed"), 64 * kMiB);
  EXPECT_EQ(Run({"trim", "--idle-for", "1h"}).out, "No lease was asked.\n");
  EXPECT_EQ(Run({"trim", "--idle-for", "soon"}).code, 2);
  const ProgramResult unknown = Run({"trim", "one", "none"});
  EXPECT_EQ(unknown.code, 6);
  EXPECT_THAT(unknown.err, HasSubstr("you have no lease named \"none\""));
  for (ChildProgram* client : {one.get(), two.get(), fixed.get()}) EXPECT_EQ(Ask(*client, "close c"), "ok");
}

TEST_F(TrimTest, AStoppedProgramIsReportedAndCostsOneDeadline) {
  StartDaemon({.simulate = "128MiB"});
  auto two = StartClient();
  ASSERT_THAT(Ask(*two, "open c timeout=3000 lease_name=asker"), StartsWith("ok "));
  const auto one = Holder("stopped", 8, 112);
  one->Signal(SIGSTOP);  // at once: after a second it would give back on its own
  const std::uint64_t held = Held("stopped");

  // A person's request is answered at the end of the wait, and the answer names the program.
  const ProgramResult trim = Run({"trim", "stopped", "--timeout", "2s"});
  EXPECT_EQ(trim.code, 0) << trim.err;
  EXPECT_THAT(trim.out, HasSubstr(absl::StrCat("1 without an answer (pid ", one->pid(), ")")));
  EXPECT_THAT(trim.err, AllOf(HasSubstr(absl::StrCat("(pid ", one->pid(), ") of lease stopped")),
                              HasSubstr("did not answer in time")));
  EXPECT_EQ(Held("stopped"), held);

  // A program that asks is refused at its deadline.
  EXPECT_THAT(Ask(*two, absl::StrCat("alloc c t ", 64 * kMiB)),
              AllOf(StartsWith("error RESOURCE_EXHAUSTED"), HasSubstr("stopped")));

  EXPECT_TRUE(Eventually([&] {
    const auto session = SessionOf(one->pid());
    return session && session->ignores_trim() && session->trims_ignored() > 0;
  }));
  EXPECT_GT(Stats().trims_ignored_total(), 0u);
  EXPECT_THAT(Run({"inspect", "stopped"}).out,
              AllOf(HasSubstr(absl::StrCat("Pid ", one->pid(), " did not answer 1 request to give back")),
                    HasSubstr("has not answered the last one yet")));
  EXPECT_THAT(Run({"events", "--lease", "stopped"}).out,
              AllOf(HasSubstr("did not answer within 1s"), HasSubstr("no longer wait for its answer")));

  one->Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] {
    const auto session = SessionOf(one->pid());
    return session && !session->ignores_trim();
  }));
  EXPECT_THAT(Ask(*two, absl::StrCat("alloc c t ", 64 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(Ask(*one, "close c"), "ok");
  EXPECT_EQ(Ask(*two, "close c"), "ok");
}

// Its own lease is short: the request waits for answers only, so an ignored one ends it before its timeout.
TEST_F(TrimTest, ARequestBelowItsLimitDoesNotWaitForAProgramThatIgnoresTrims) {
  StartDaemon();
  const auto lease = control_->CreateLease(OneDevice(64 * kMiB, false, /*lasting=*/true));
  ASSERT_TRUE(lease.ok()) << lease.status();
  auto one = StartClient({{"LGPU_LEASE", lease->id()}});
  auto two = StartClient({{"LGPU_LEASE", lease->id()}});
  ASSERT_THAT(Ask(*one, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*two, "open c timeout=600000"), StartsWith("ok "));  // longer than Ask waits
  ASSERT_THAT(Ask(*one, absl::StrCat("alloc c t ", 60 * kMiB)), StartsWith("ok "));
  ASSERT_EQ(Ask(*one, "free t"), "ok");
  one->Signal(SIGSTOP);
  ASSERT_GE(Held(lease->name()), 60 * kMiB);
  EXPECT_THAT(Ask(*two, absl::StrCat("alloc c t ", 40 * kMiB)), StartsWith("error RESOURCE_EXHAUSTED"));
  EXPECT_EQ(SessionOf(one->pid())->trims_ignored(), 1u);
  one->Signal(SIGCONT);
  EXPECT_THAT(Ask(*two, absl::StrCat("alloc c t ", 40 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(Ask(*one, "close c"), "ok");
  EXPECT_EQ(Ask(*two, "close c"), "ok");
  EXPECT_TRUE(control_->RemoveLease(lease->id()).ok());
}

TEST_F(TrimTest, UsersTrimTheirOwnLeasesAndRootAll) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may start programs of several users";
  StartDaemon({.simulate = "128MiB", .open_to_everybody = true});
  const auto roots = Holder("roots", 8, 32);
  auto theirs = StartClient();
  ASSERT_EQ(Ask(*theirs, "setuid 61301"), "ok");
  ASSERT_THAT(Ask(*theirs, "open c lease_name=theirs"), StartsWith("ok "));
  ASSERT_THAT(Ask(*theirs, absl::StrCat("alloc c t ", 32 * kMiB)), StartsWith("ok "));
  const auto as_user = [&](std::vector<std::string> words) {
    std::vector<std::string> argv = {
        "setpriv", "--reuid", "61301", "--regid", "61301", "--clear-groups", DaemonProcess::LgpuPath()};
    argv.insert(argv.end(), words.begin(), words.end());
    const auto result = RunProgram(
        {.argv = argv,
         .environment = {{"LGPU_ENDPOINT", daemon_->dir()}, {"HOME", "/nonexistent"}, {"NO_COLOR", "1"}}});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ProgramResult();
  };
  const std::uint64_t asked = Stats().trims_total();
  const ProgramResult others = as_user({"trim", "roots"});
  const ProgramResult nobodys = as_user({"trim", "nobodys"});
  EXPECT_EQ(others.code, 6);
  EXPECT_EQ(nobodys.code, 6);
  EXPECT_THAT(others.err, HasSubstr("you have no lease named \"roots\"")) << "as if there were none";
  EXPECT_THAT(nobodys.err, HasSubstr("you have no lease named \"nobodys\""));
  EXPECT_EQ(Stats().trims_total(), asked);
  const ProgramResult own = as_user({"trim"});
  EXPECT_EQ(own.code, 0) << own.err;
  EXPECT_THAT(own.out, AllOf(HasSubstr("theirs"), ::testing::Not(HasSubstr("roots"))));
  EXPECT_THAT(Run({"trim"}).out, AllOf(HasSubstr("theirs"), HasSubstr("roots")));
  EXPECT_EQ(Ask(*roots, "close c"), "ok");
  EXPECT_EQ(Ask(*theirs, "close c"), "ok");
}

// Two programs allocate and free without a pause while the limits of their leases rise and fall.
TEST_F(TrimTest, LimitsRiseAndFallUnderLoadAndTheLedgerHolds) {
  constexpr std::uint32_t kSeed = 28;
  constexpr int kRounds = 6;
  RecordProperty("seed", kSeed);
  StartDaemon({.simulate = "256MiB"});
  std::mt19937 random(kSeed);
  std::map<std::string, std::unique_ptr<ChildProgram>> clients;
  std::map<std::string, std::uint64_t> limits = {{"a", 96 * kMiB}, {"b", 96 * kMiB}};
  for (const char* const name : {"a", "b"}) {
    clients[name] = StartClient();
    ASSERT_THAT(Ask(*clients[name], absl::StrCat("open c timeout=0 lease_name=", name, " limit=", 96 * kMiB)),
                StartsWith("ok "));
  }
  constexpr int kCommands = 40;
  for (int round = 0; round < kRounds; ++round) {
    for (auto& [name, client] : clients) {
      for (int i = 0; i < kCommands / 2; ++i) {
        const std::string id = absl::StrCat("t", random() % 6);
        client->WriteLine(absl::StrCat("alloc c ", id, " ", (1 + random() % 24) * kMiB));
        client->WriteLine(absl::StrCat("free ", id));
      }
    }
    for (int step = 0; step < 4; ++step) {
      const std::string name = step % 2 == 0 ? "a" : "b";
      const std::uint64_t limit = (4 + 2 * (random() % 60)) * kMiB;
      v1::ResizeLeaseRequest request;
      request.set_lease(name);
      request.add_devices()->set_memory_limit_bytes(limit);
      const absl::StatusOr<v1::Lease> resized = control_->ResizeLease(request);
      ASSERT_TRUE(resized.ok()) << resized.status() << " seed " << kSeed;
      ASSERT_TRUE(LedgerHolds()) << "seed " << kSeed << ", round " << round;
      const std::uint64_t before = std::exchange(limits[name], limit);
      EXPECT_LE(Held(name), std::max(before, limit)) << "seed " << kSeed << ", round " << round;
    }
    for (auto& [name, client] : clients) {
      for (int i = 0; i < kCommands; ++i) {
        const auto answer = client->ReadLine();
        ASSERT_TRUE(answer.has_value());
        ASSERT_THAT(*answer, AnyOf(StartsWith("ok"), StartsWith("error RESOURCE_EXHAUSTED"), "error none"));
      }
    }
  }
  for (auto& [name, client] : clients) {
    v1::ResizeLeaseRequest request;
    request.set_lease(name);
    // A limit below the held bytes: growth is refused until the program frees and so returns below the limit.
    for (int i = 0; i < 6; ++i) Ask(*client, absl::StrCat("free t", i));
    request.add_devices()->set_memory_limit_bytes(96 * kMiB);
    ASSERT_TRUE(control_->ResizeLease(request).ok());
    ASSERT_THAT(Ask(*client, absl::StrCat("alloc c large ", 80 * kMiB)), StartsWith("ok "));
    request.mutable_devices(0)->set_memory_limit_bytes(16 * kMiB);
    ASSERT_TRUE(control_->ResizeLease(request).ok());
    EXPECT_GE(Held(name), 80 * kMiB);
    EXPECT_THAT(Ask(*client, absl::StrCat("alloc c more ", 8 * kMiB)),
                StartsWith("error RESOURCE_EXHAUSTED"));
    ASSERT_EQ(Ask(*client, "free large"), "ok");
    EXPECT_TRUE(Eventually([&, lease = std::string(name)] { return Held(lease) <= 16 * kMiB; }));
    request.mutable_devices(0)->set_memory_limit_bytes(120 * kMiB);
    ASSERT_TRUE(control_->ResizeLease(request).ok());
    EXPECT_THAT(Ask(*client, absl::StrCat("alloc c more ", 112 * kMiB)), StartsWith("ok "));
    ASSERT_TRUE(LedgerHolds());
    EXPECT_EQ(Ask(*client, "close c"), "ok");
  }
}

}  // namespace
}  // namespace lgpu::testing
