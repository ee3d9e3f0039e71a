#include <signal.h>

#include <cstdlib>
#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/cuda_fixture.h"
#include "tests/support/cases.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using ::testing::StartsWith;

TEST_F(CudaTest, DaemonServesTheGpusOfTheDriverAndHasNoContext) {
  FAKE_ONLY();
  StartOnMachine();
  EXPECT_THAT(daemon_->program().Errors(), HasSubstr("ready: 2 GPUs"));
  const v1::StatsSnapshot stats = Stats();
  ASSERT_EQ(stats.cards_size(), 2);
  EXPECT_EQ(stats.cards(0).uuid(), machine_.uuid(0));
  EXPECT_EQ(stats.cards(0).name(), "Fake GPU");
  EXPECT_EQ(stats.cards(0).pci_bus_id(), "0000:01:00.0");
  EXPECT_EQ(stats.cards(0).total_bytes(), 256 * kMiB);
  EXPECT_EQ(stats.cards(0).compute_major(), 9u);
  EXPECT_EQ(stats.cards(0).multiprocessors(), 132u);
  EXPECT_FALSE(stats.cards(0).simulated());
  EXPECT_EQ(machine_.Used(0), Bytes());
}

TEST_F(CudaTest, TwoProgramsShareACardAndComputeOnIt) {
  StartOnMachine();
  auto one = StartOnGpu();
  auto two = StartOnGpu();
  ASSERT_THAT(Ask(*one, absl::StrCat("open c timeout=0 limit=", 64 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Ask(*two, absl::StrCat("open c limit=", 64 * kMiB)), StartsWith("ok "));
  for (ChildProgram* const client : {one.get(), two.get()}) {
    EXPECT_EQ(Ask(*client, absl::StrCat("alloc c t ", 8 * kMiB)), absl::StrCat("ok ", kGpu));
    EXPECT_EQ(Ask(*client, "read t"), "ok 2.09715e+06");
    EXPECT_EQ(Ask(*client, "sum c t 3"), absl::StrCat("ok 6.29146e+06 ", kGpu)) << "a kernel of the GPU";
    EXPECT_EQ(Ask(*client, "sum c t 19"), absl::StrCat("ok 3.98459e+07 ", kGpu));
    EXPECT_EQ(Ask(*client, "work c 3"), "ok");
    if (!real_) {
      EXPECT_EQ(machine_.ContextsCreated(static_cast<int>(client->pid())), 1);
    }
  }
  EXPECT_THAT(Ask(*one, absl::StrCat("alloc c more ", 64 * kMiB)), HasSubstr("memory limit reached"));
  EXPECT_EQ(Ask(*one, "read t"), "ok 2.09715e+06") << "what was there is untouched";
  End(*one);
  EXPECT_EQ(Ask(*two, "sum c t 2"), absl::StrCat("ok 4.1943e+06 ", kGpu));
  End(*two);
}

TEST_F(CudaTest, MemoryGrowsAndIsGivenBackToTheCard) {
  FAKE_ONLY();
  StartOnMachine();
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 50 * kMiB)), StartsWith("ok "));
  EXPECT_GE(machine_.Used(0), 66_MiB) << "and a context";
  const std::uint64_t access_calls = machine_.CallsOf("cuMemSetAccess");
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c u ", 100 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(machine_.CallsOf("cuMemSetAccess"), access_calls + 1) << "one access call per grant";
  EXPECT_EQ(Ask(*client, "free t"), "ok");
  EXPECT_EQ(Ask(*client, "free u"), "ok");
  EXPECT_THAT(Ask(*client, "trim c"), StartsWith("ok "));
  EXPECT_TRUE(Eventually([&] { return HeldBytes() == 0; }));
  EXPECT_EQ(machine_.Used(0), 16_MiB) << "the context";
  End(*client);
}

TEST_F(CudaTest, PoolHitCallsNoMemoryCallOfTheDriver) {
  FAKE_ONLY();
  StartOnMachine();
  auto client = StartOnGpu();
  // It cannot grow ahead of its need meanwhile.
  ASSERT_THAT(Ask(*client, absl::StrCat("open c limit=", 4 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 4 * kMiB)), StartsWith("ok "));
  std::map<std::string, std::uint64_t> before;
  const char* const calls[] = {"cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemSetAccess",
                               "cuMemImportFromShareableHandle"};
  for (const char* const call : calls) before[call] = machine_.CallsOf(call);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Ask(*client, "free t"), "ok");
    ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 4 * kMiB)), StartsWith("ok "));
  }
  for (const char* const call : calls) EXPECT_EQ(machine_.CallsOf(call), before[call]) << call;
  End(*client);
}

TEST_F(CudaTest, TensorsMoveBetweenDevicesOfOneCardOfTwoAndTheHost) {
  FAKE_ONLY();
  StartOnMachine();
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, absl::StrCat("open c devices=2 limit=", 32 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("open d card=1 limit=", 32 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", kMiB)), StartsWith("ok "));
  EXPECT_THAT(Ask(*client, "move t GPU:1"), HasSubstr("device:GPU:1"));
  EXPECT_THAT(Ask(*client, "move t GPU:0"), HasSubstr("device:GPU:0"));
  EXPECT_EQ(Ask(*client, "move t CPU:0"), absl::StrCat("ok ", kCpu));
  EXPECT_EQ(Ask(*client, "read t"), "ok 262144");
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc d u ", kMiB)), StartsWith("ok "));
  EXPECT_GE(machine_.Used(1), 16_MiB);
  End(*client);
}

TEST_F(CudaTest, LargeTensorsMoveBetweenTheCardsOfOneProgram) {
  FAKE_ONLY();
  StartOnMachine();
  constexpr std::uint64_t kBytes = 11 * kMiB;
  for (const bool peers : {false, true}) {
    machine_.state().peers = peers;
    auto client = StartOnGpu();
    ASSERT_THAT(Ask(*client, absl::StrCat("open c cards=01 limit=", 32 * kMiB)), StartsWith("ok "));
    ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", kBytes)), StartsWith("ok "));
    const std::uint64_t read_by_the_host = machine_.CallsOf("cuMemcpyDtoHAsync");
    for (const char* device : {"GPU:1", "GPU:0", "GPU:1"}) {
      EXPECT_THAT(Ask(*client, absl::StrCat("move t ", device)), HasSubstr(device));
    }
    EXPECT_EQ(machine_.CallsOf("cuMemcpyDtoHAsync") != read_by_the_host, !peers);
    EXPECT_EQ(Ask(*client, "read t"), absl::StrCat("ok ", static_cast<double>(kBytes / 4)));
    EXPECT_GE(machine_.Used(1), 16_MiB) << "the second device is on the second card";
    End(*client);
  }
}

TEST_F(CudaTest, MemoryOfAKilledProgramIsTheNextOnes) {
  StartOnMachine();
  auto victim = StartOnGpu();
  ASSERT_THAT(Ask(*victim, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*victim, absl::StrCat("alloc c t ", 200 * kMiB)), StartsWith("ok "));
  victim->Signal(SIGKILL);
  ASSERT_TRUE(victim->Wait().has_value());
  auto next = StartOnGpu();
  ASSERT_THAT(Ask(*next, "open c"), StartsWith("ok "));
  EXPECT_THAT(Ask(*next, absl::StrCat("alloc c t ", 200 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(Ask(*next, "read t"), "ok 5.24288e+07");
  End(*next);
}

TEST_F(CudaTest, FullCardIsRefusedAndNothingBreaks) {
  FAKE_ONLY();
  StartOnMachine();
  auto one = StartOnGpu();
  auto two = StartOnGpu();
  ASSERT_THAT(Ask(*one, "open c timeout=200"), StartsWith("ok "));
  ASSERT_THAT(Ask(*two, "open c timeout=200"), StartsWith("ok "));
  ASSERT_THAT(Ask(*one, absl::StrCat("alloc c t ", 150 * kMiB)), StartsWith("ok "));
  EXPECT_THAT(Ask(*two, absl::StrCat("alloc c t ", 150 * kMiB)), StartsWith("error RESOURCE_EXHAUSTED"));
  // The ledger has room for this, and the card does not: contexts are on it.
  EXPECT_THAT(Ask(*two, absl::StrCat("alloc c t ", 80 * kMiB)), StartsWith("error RESOURCE_EXHAUSTED"));
  EXPECT_THAT(Ask(*two, absl::StrCat("alloc c t ", 50 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(Ask(*one, "read t"), "ok 3.93216e+07");
  End(*one);
  End(*two);
}

TEST_F(CudaTest, MemoryOfContextsIsNotPromised) {
  FAKE_ONLY();
  StartOnMachine();
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c timeout=200"), StartsWith("ok "));
  EXPECT_TRUE(Eventually([&] { return Stats().cards(0).overhead_bytes() == 16 * kMiB; }))
      << Stats().DebugString();
  EXPECT_EQ(Stats().cards(0).free_bytes(), 240 * kMiB);
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 200 * kMiB)), StartsWith("ok "));
  EXPECT_THAT(Ask(*client, absl::StrCat("alloc c u ", 50 * kMiB)),
              AllOf(StartsWith("error RESOURCE_EXHAUSTED"), HasSubstr("not promised")));
  End(*client);
  EXPECT_TRUE(Eventually([&] { return Stats().cards(0).free_bytes() == 256 * kMiB; }))
      << Stats().DebugString();
}

TEST_F(CudaTest, TheDriversMemoryOfEachProgramIsSetAsideAndThenMeasured) {
  FAKE_ONLY();
  machine_.state().card_count = 1;
  StartOnMachine({}, "[memory]\noverhead_allowance = \"100MiB\"\n");
  EXPECT_EQ(Stats().accounting(), "exact");
  auto first = StartOnGpu();
  auto second = StartOnGpu();
  ASSERT_THAT(Ask(*first, "open c timeout=0"), StartsWith("ok "));
  ASSERT_THAT(Ask(*second, "open c timeout=0"), StartsWith("ok "));
  const auto overhead_is = [this](std::uint64_t bytes) {
    return Eventually([&] { return Stats().cards(0).overhead_bytes() == bytes; });
  };
  EXPECT_TRUE(overhead_is(32 * kMiB)) << Stats().DebugString();
  EXPECT_EQ(SessionOf(first->pid())->overhead_bytes(), 16 * kMiB);
  const v1::LogicalDeviceStats device = Stats().leases(0).devices(0);
  EXPECT_EQ(device.overhead_bytes(), 16 * kMiB);
  EXPECT_EQ(device.total_limit_bytes(), device.limit_bytes() + 16 * kMiB);
  // It is measured again after a restart, chunks are no part of it, and it goes with its program.
  ASSERT_THAT(Ask(*first, absl::StrCat("alloc c t ", 100 * kMiB)), StartsWith("ok "));
  KillDaemon();
  StartOnMachine({}, "[memory]\noverhead_allowance = \"100MiB\"\n");
  EXPECT_TRUE(overhead_is(32 * kMiB)) << Stats().DebugString();
  ASSERT_TRUE(Eventually([&] { return IsBack(first->pid()) && IsBack(second->pid()); }));
  End(*second);
  EXPECT_TRUE(overhead_is(16 * kMiB)) << Stats().DebugString();
  // A second Context of a process shares the first one's.
  ASSERT_THAT(Ask(*first, "open d timeout=0"), StartsWith("ok "));
  EXPECT_EQ(Stats().cards(0).overhead_bytes(), 16 * kMiB);
  ASSERT_EQ(Ask(*first, "close d"), "ok");
  EXPECT_EQ(Stats().cards(0).overhead_bytes(), 16 * kMiB);
  // It refuses no attachment: as much as there is room for is set aside.
  ASSERT_THAT(Ask(*first, absl::StrCat("alloc c u ", 100 * kMiB)), StartsWith("ok "));
  auto third = StartOnGpu();
  EXPECT_THAT(Ask(*third, "open c timeout=0"), StartsWith("ok "));
  EXPECT_LE(Stats().cards(0).overhead_bytes(), 56 * kMiB) << "not 116: chunks and allowance fill the card";
  End(*third);
  End(*first);
}

TEST_F(CudaTest, WithoutNvmlTheAllowanceStays) {
  FAKE_ONLY();
  machine_.state().nvml_absent = true;
  StartOnMachine({}, "[memory]\noverhead_allowance = \"100MiB\"\n");
  const std::uint64_t total = Stats().cards(0).total_bytes();
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c timeout=0"), StartsWith("ok "));
  EXPECT_EQ(Stats().cards(0).overhead_bytes(), 100 * kMiB);
  EXPECT_EQ(SessionOf(client->pid())->overhead_bytes(), 100 * kMiB);
  EXPECT_THAT(Ask(*client, absl::StrCat("alloc c t ", total - 50 * kMiB)),
              StartsWith("error RESOURCE_EXHAUSTED"));
  End(*client);
}

TEST_F(CudaTest, ProcessesOutsideLgpuAreNamed) {
  FAKE_ONLY();
  StartOnMachine();
  auto stranger = StartOnGpu();
  ASSERT_THAT(Ask(*stranger, "open c endpoint=local"), StartsWith("ok "));
  ASSERT_TRUE(Eventually([&] { return Stats().cards(0).foreign_processes_size() == 1; }))
      << Stats().DebugString();
  const v1::ForeignProcess process = Stats().cards(0).foreign_processes(0);
  EXPECT_EQ(process.pid(), stranger->pid());
  EXPECT_EQ(process.uid(), ::getuid());
  EXPECT_EQ(process.command(), "e2e_client");
  EXPECT_EQ(process.used_bytes(), 16 * kMiB);
  EXPECT_EQ(Stats().cards(0).foreign_bytes(), 16 * kMiB);
  EXPECT_EQ(Stats().cards(0).overhead_bytes(), 0);
  End(*stranger);
  EXPECT_TRUE(Eventually([&] { return Stats().cards(0).foreign_processes_size() == 0; }));
  // The kernel cuts names in the middle of a character, and a program may have any bytes there.
  stranger = StartOnGpu();
  ASSERT_EQ(Ask(*stranger, "rename \xd0\xbe\xd0"), "ok");
  ASSERT_THAT(Ask(*stranger, "open c endpoint=local"), StartsWith("ok "));
  ASSERT_TRUE(Eventually([&] { return Stats().cards(0).foreign_processes_size() == 1; }));
  EXPECT_EQ(Stats().cards(0).foreign_processes(0).command(), "\xd0\xbe?");
  auto client = StartOnGpu();
  EXPECT_THAT(Ask(*client, "open c"), StartsWith("ok ")) << "and others can still open a context";
  End(*client);
  End(*stranger);
  EXPECT_TRUE(Eventually([&] { return Stats().cards(0).foreign_processes_size() == 0; }));
}

TEST_F(CudaTest, FaultsOfTheDriverAreErrorsAndLeaveNothingBehind) {
  FAKE_ONLY();
  StartOnMachine();
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c timeout=100"), StartsWith("ok "));
  const auto pid = static_cast<int>(client->pid());
  for (const char* const call : {"cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"}) {
    machine_.FailCall(call, 999, 0, 1, pid);
    EXPECT_THAT(Ask(*client, absl::StrCat("alloc c t ", 8 * kMiB)), StartsWith("error INTERNAL")) << call;
    machine_.ClearFaults();
    EXPECT_TRUE(Eventually([&] { return HeldBytes() == 0; })) << call;
  }
  for (const char* const call : {"cuMemCreate", "cuMemExportToShareableHandle"}) {
    machine_.FailCall(call, 2, 0, -1);
    EXPECT_THAT(Ask(*client, absl::StrCat("alloc c t ", 8 * kMiB)), StartsWith("error RESOURCE_EXHAUSTED"))
        << call;
    machine_.ClearFaults();
  }
  EXPECT_THAT(Ask(*client, absl::StrCat("alloc c t ", 8 * kMiB)), StartsWith("ok "));
  End(*client);
}

// A client that speaks the protocol by hand keeps chunks that it has returned: the daemon cannot take them.
TEST_F(CudaTest, KeptMemoryIsChargedReportedAndStopsGrantsUntilItIsBack) {
  StartOnMachine();
  absl::StatusOr<RawSession> liar = RawSession::Open(daemon_->dir());
  ASSERT_TRUE(liar.ok()) << liar.status();
  control_->SetSessionToken(liar->token);
  const absl::StatusOr<v1::Lease> lease = control_->CreateLease(OneDevice(32 * kMiB));
  control_->SetSessionToken("");
  ASSERT_TRUE(lease.ok()) << lease.status();
  const std::uint64_t device = lease->devices(0).id();
  absl::StatusOr<RawSession::Grown> grown = liar->Grow(1, device, 8 * kMiB);
  ASSERT_TRUE(grown.ok()) << grown.status();
  auto honest = StartOnGpu();
  ASSERT_THAT(Ask(*honest, absl::StrCat("open c limit=", 64 * kMiB)), StartsWith("ok "));

  v1::Frame give_back;
  give_back.mutable_return_chunks()->set_request_id(2);
  give_back.mutable_return_chunks()->set_device_id(device);
  for (const v1::Chunk& chunk : grown->chunks) give_back.mutable_return_chunks()->add_chunk_ids(chunk.id());
  ASSERT_TRUE(liar->Ask(give_back).ok());
  const auto unreturned = [&] {
    std::uint64_t bytes = 0;
    const v1::StatsSnapshot snapshot = Stats();
    for (const v1::LeaseStats& of : snapshot.leases()) {
      for (const v1::SessionStats& session : of.sessions()) bytes += session.unreturned_bytes();
    }
    return bytes;
  };
  // Memory and contexts of the honest program come and go meanwhile, and are not counted as unreturned.
  ASSERT_THAT(Ask(*honest, absl::StrCat("alloc c t ", 8 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(Ask(*honest, "free t"), "ok");
  EXPECT_THAT(Ask(*honest, "trim c"), StartsWith("ok "));
  EXPECT_TRUE(Eventually([&] { return unreturned() == 8 * kMiB; })) << Stats().DebugString();
  EXPECT_TRUE(Eventually([&] { return HeldBytes() == 8 * kMiB; })) << "charged, and to no other session";
  EXPECT_EQ(liar->Grow(3, device, 2 * kMiB).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_THAT(Ask(*honest, absl::StrCat("alloc c t ", 8 * kMiB)), StartsWith("ok "))
      << "the other program goes on";

  grown->fds.clear();
  EXPECT_TRUE(Eventually([&] { return unreturned() == 0; })) << Stats().DebugString();
  EXPECT_TRUE(liar->Grow(4, device, 2 * kMiB).ok());
  const absl::StatusOr<ProgramResult> events = RunProgram(
      {.argv = {DaemonProcess::LgpuPath(), "events"}, .environment = {{"LGPU_ENDPOINT", daemon_->dir()}}});
  ASSERT_TRUE(events.ok()) << events.status();
  EXPECT_THAT(events->out + events->err, HasSubstr("gave back 8.00MiB that the card does not have"));
  liar = absl::CancelledError("done");
  End(*honest);
}

TEST_F(CudaTest, ProgramsGoOnWhenTheirDaemonIsKilledAndStartedAgain) {
  StartOnMachine();
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, absl::StrCat("open c limit=", 64 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 8 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, "alloc c s 4096"), StartsWith("ok "));
  ASSERT_EQ(Ask(*client, "sum c s 2"), absl::StrCat("ok 2048 ", kGpu));
  KillDaemon();
  EXPECT_EQ(Ask(*client, "sum c s 2"), absl::StrCat("ok 2048 ", kGpu))
      << "the memory is there, the kernel runs";
  StartOnMachine();
  EXPECT_TRUE(Eventually([&] { return HeldBytes() >= 8 * kMiB; }));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c u ", 32 * kMiB)), StartsWith("ok "))
      << "it is connected again";
  EXPECT_EQ(Ask(*client, "read t"), "ok 2.09715e+06");
  End(*client);
  EXPECT_TRUE(Eventually([&] { return HeldBytes() == 0; }));
}

TEST_F(CudaTest, WithoutNvmlReturnsAreTakenOnTrust) {
  FAKE_ONLY();
  machine_.state().nvml_absent = true;
  StartOnMachine();
  EXPECT_EQ(Stats().cards_size(), 2);
  EXPECT_EQ(Stats().accounting(), "estimated");
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 50 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "free t"), "ok");
  EXPECT_THAT(Ask(*client, "trim c"), StartsWith("ok "));
  EXPECT_TRUE(Eventually([&] { return HeldBytes() == 0; }));
  End(*client);
}

class CudaOldCardTest : public CudaTest {
 protected:
  CudaOldCardTest() : CudaTest({{.compute_capability = 70}, {.compute_capability = 80}}) {}
};

// With NVML and without.
TEST_F(CudaOldCardTest, CardThatIsTooOldIsListedWithTheReasonAndTheOtherIsServed) {
  FAKE_ONLY();
  for (const bool absent : {false, true}) {
    machine_.state().nvml_absent = absent;
    StartOnMachine();
    const auto stats = Stats();
    ASSERT_EQ(stats.cards_size(), 2);
    for (const auto& card : stats.cards()) {
      const bool old = card.uuid() == machine_.uuid(0);
      EXPECT_EQ(card.served(), !old);
      EXPECT_THAT(card.not_served_because(),
                  old ? StartsWith("its compute capability 7.0 is below 7.5") : StartsWith(""));
    }
    EXPECT_EQ(daemon_->Stop(), 0);
  }
}

class CudaVisibilityTest : public CudaTest {
 protected:
  CudaVisibilityTest() : CudaTest({{.speed = 2}, {.speed = 0}, {.speed = 3}, {.speed = 1}}) {}

  std::optional<std::string> Value(const std::string& text) const {
    if (text == "(unset)") return std::nullopt;
    std::string value = text;
    for (int card = 0; card < 4; ++card) {
      absl::StrReplaceAll({{absl::StrCat("PREFIX", card), machine_.uuid(card).substr(0, 10)}}, &value);
    }
    return value;
  }
};

TEST_F(CudaVisibilityTest, ProgramsSeeTheCardsOfBothListsInTheirOwnOrder) {
  FAKE_ONLY();
  const std::vector<Case> cases = ReadCases("cuda_visibility.tsv");
  ASSERT_GE(cases.size(), 17u);
  std::string daemon_value = "(none yet)";
  for (const Case& row : cases) {
    if (row[1] != daemon_value) {
      daemon_value = row[1];
      if (daemon_) {
        EXPECT_EQ(daemon_->Stop(), 0);
      }
      StartOnMachine({{"CUDA_VISIBLE_DEVICES", Value(row[1])}, {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}});
      ASSERT_EQ(Stats().cards_size(), 4) << "hidden cards are listed too: NVML knows them";
    }
    auto client = StartOnGpu({{"CUDA_VISIBLE_DEVICES", Value(row[2])}, {"CUDA_DEVICE_ORDER", Value(row[3])}});
    std::string expected = "ok";
    if (row[4] != "(none)") {
      for (const absl::string_view card : absl::StrSplit(row[4], ',')) {
        absl::StrAppend(&expected, " ", machine_.uuid(std::stoi(std::string(card))));
      }
    }
    EXPECT_EQ(Ask(*client, "visible"), expected) << row.where;
    const std::string opened = Ask(*client, "open c");
    EXPECT_THAT(opened, StartsWith(row[4] == "(none)" ? "error NOT_FOUND no GPU is visible" : "ok "))
        << row.where;
    if (row[4] != "(none)") {
      const int first = row[4][0] - '0';
      ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", kMiB)), StartsWith("ok "));
      EXPECT_GT(machine_.Used(first), Bytes()) << row.where;
    }
    End(*client);
  }
}

}  // namespace
}  // namespace lgpu::testing
