// Programs that take memory from a driver themselves and charge it (tests/e2e/charge_client.cc).

#include <signal.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ChargesTest : public E2eTest {
 protected:
  std::unique_ptr<ChildProgram> StartProgram(const std::string& lease) {
    auto program =
        ChildProgram::Start({.argv = {DaemonProcess::ProgramPath(LGPU_CHARGE_CLIENT), daemon_->dir()}});
    EXPECT_TRUE(program.ok()) << program.status();
    EXPECT_THAT(Ask(**program, absl::StrCat("attach ", lease)), StartsWith("ok "));
    return *std::move(program);
  }
  /// A lasting lease on one card; its id.
  std::string MakeLease(std::vector<std::uint64_t> limits, bool preallocate = false) {
    v1::CreateLeaseRequest request = OneDevice(limits.front(), preallocate, /*lasting=*/true);
    for (std::size_t i = 1; i < limits.size(); ++i) {
      *request.add_devices() = request.devices(0);
      request.mutable_devices(static_cast<int>(i))->set_memory_limit_bytes(limits[i]);
    }
    const auto lease = control_->CreateLease(request);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.ok() ? lease->id() : "";
  }
  static std::string Charge(ChildProgram& program, std::uint64_t mib, int timeout_ms = 0) {
    return Ask(program, absl::StrCat("charge ", mib * kMiB, " ", timeout_ms));
  }
  static std::string Free(ChildProgram& program, std::uint64_t mib) {
    return Ask(program, absl::StrCat("free ", mib * kMiB));
  }
  static void Kill(std::unique_ptr<ChildProgram> program) {
    program->Signal(SIGKILL);
    program->Wait();
  }
  void RemoveLeases() {
    const v1::StatsSnapshot stats = Stats();
    for (const v1::LeaseStats& lease : stats.leases()) EXPECT_TRUE(control_->RemoveLease(lease.id()).ok());
  }
};

TEST_F(ChargesTest, AProgramIsChargedAndRefusedAtTheLimitWithTheWholeExplanation) {
  StartDaemon({.simulate = "1GiB"});
  auto program = StartProgram(MakeLease({256 * kMiB}));
  EXPECT_EQ(Charge(*program, 100), "ok");
  EXPECT_EQ(Ask(*program, "words"), absl::StrCat("ok ", 32 * kMiB, " ", 32 * kMiB));
  EXPECT_EQ(HeldBytes(), 132 * kMiB);
  EXPECT_EQ(Charge(*program, 20), "ok") << "out of the allowance";
  EXPECT_EQ(HeldBytes(), 132 * kMiB);
  EXPECT_THAT(Charge(*program, 150), AllOf(StartsWith("error 8 "), HasSubstr("cuMemAlloc_v2"),
                                           HasSubstr("150.00MiB"), HasSubstr("256.00MiB")));
  EXPECT_EQ(Charge(*program, 136), "ok") << "a program that frees nothing goes on below the limit";
  EXPECT_EQ(Free(*program, 256), "ok");
  EXPECT_TRUE(Eventually([&] { return HeldBytes() <= 32 * kMiB; })) << "nothing but the allowance";
  EXPECT_THAT(Ask(*program, "charge 0"), "ok") << "nothing needs nothing";
  Kill(std::move(program));
  RemoveLeases();
}

TEST_F(ChargesTest, ASnapshotHasTheChargesOfAProgramWithoutBlocks) {
  StartDaemon({.simulate = "1GiB"});
  const std::string lease = MakeLease({256 * kMiB});
  auto program = StartProgram(lease);
  EXPECT_EQ(Charge(*program, 100), "ok");
  v1::GetMemorySnapshotRequest request;
  request.set_lease(lease);
  request.set_wait_ms(20'000);
  std::vector<v1::MemorySnapshotPart::Session> sessions;
  int blocks = 0;
  EXPECT_TRUE(control_
                  ->GetMemorySnapshot(request,
                                      [&](const v1::MemorySnapshotPart& part) {
                                        if (part.has_session()) sessions.push_back(part.session());
                                        blocks += part.blocks().bytes_size();
                                      })
                  .ok());
  ASSERT_EQ(sessions.size(), 1u);
  EXPECT_EQ(sessions[0].pid(), program->pid());
  EXPECT_EQ(sessions[0].code(), 0) << sessions[0].message();
  std::uint64_t charged = 0;
  for (const v1::ChargedKind& kind : sessions[0].charged_by_kind()) charged += kind.bytes();
  EXPECT_EQ(charged, 100 * kMiB);
  EXPECT_EQ(blocks, 0);
  Kill(std::move(program));
  RemoveLeases();
}

TEST_F(ChargesTest, UsedMemoryIsBlocksAndChargesOfAllProgramsWithoutTheAllowance) {
  StartDaemon({.simulate = "1GiB"});
  const std::string lease = MakeLease({256 * kMiB});
  auto client = StartClient({{"LGPU_LEASE", lease}});
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 60), StartsWith("ok "));
  auto program = StartProgram(lease);
  EXPECT_EQ(Charge(*program, 20), "ok");
  const v1::StatsSnapshot stats = Stats();
  ASSERT_EQ(stats.leases_size(), 1);
  ASSERT_EQ(stats.leases(0).sessions_size(), 2);
  const v1::LogicalDeviceStats& device = stats.leases(0).devices(0);
  EXPECT_EQ(device.charged_bytes(), 20 * kMiB);
  EXPECT_EQ(device.used_bytes(), 80 * kMiB);
  std::uint64_t charged = 0, held = 0;
  for (const v1::SessionStats& session : stats.leases(0).sessions()) {
    charged += session.charged_bytes();
    held += session.held_bytes();
  }
  EXPECT_EQ(charged, device.charged_bytes());
  EXPECT_EQ(held, device.held_bytes());
  Kill(std::move(program));
  EXPECT_THAT(Ask(*client, "close c"), StartsWith("ok"));
  RemoveLeases();
}

TEST_F(ChargesTest, TwoProgramsOfALeaseShareItsLimitAndADeadOneGivesItBack) {
  StartDaemon({.simulate = "1GiB"});
  const std::string lease = MakeLease({64 * kMiB, 64 * kMiB});
  auto first = StartProgram(lease);
  auto second = StartProgram(lease);
  EXPECT_EQ(Charge(*first, 100), "ok") << "both devices of the card together";
  EXPECT_THAT(Charge(*second, 40), StartsWith("error 8 "));
  EXPECT_EQ(Charge(*second, 28), "ok") << "what the first one did not use of its allowance is taken back";
  Kill(std::move(first));
  EXPECT_TRUE(Eventually([&] { return HeldBytes() <= 44 * kMiB; }));
  EXPECT_EQ(Charge(*second, 100), "ok");
  Kill(std::move(second));
  EXPECT_TRUE(Eventually([&] { return HeldBytes() == 0; }));
  RemoveLeases();
}

TEST_F(ChargesTest, AChargeWaitsForTheCardAndAChunkForACharge) {
  StartDaemon({.simulate = "512MiB"});
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 400), StartsWith("ok "));
  auto program = StartProgram(MakeLease({512 * kMiB}));
  EXPECT_THAT(Charge(*program, 300), AllOf(StartsWith("error 8 "), HasSubstr("cuMemAlloc_v2")));
  EXPECT_EQ(Ask(*client, "free a"), "ok");
  EXPECT_EQ(Charge(*program, 300, 50'000), "ok") << "the client is asked for what lies idle";
  EXPECT_EQ(Free(*program, 300), "ok");
  EXPECT_THAT(Alloc(*client, "b", 300), StartsWith("ok "));
  Kill(std::move(program));
  EXPECT_THAT(Ask(*client, "close c"), StartsWith("ok"));
  RemoveLeases();
}

TEST_F(ChargesTest, FalseWordsHarmNoOtherSession) {
  StartDaemon({.simulate = "1GiB"});
  const std::string lease = MakeLease({256 * kMiB});
  auto honest = StartProgram(lease);
  auto liar = StartProgram(lease);
  EXPECT_EQ(Charge(*honest, 128), "ok");
  EXPECT_EQ(Charge(*liar, 64), "ok");
  for (const std::uint64_t word : {~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{1}}) {
    EXPECT_EQ(Ask(*liar, absl::StrCat("lie ", word)), "ok");
    EXPECT_THAT(Charge(*honest, 1000), StartsWith("error 8 "));
    EXPECT_GE(HeldBytes(), 128 * kMiB);
    EXPECT_LE(HeldBytes(), 256 * kMiB);
  }
  Kill(std::move(liar));
  EXPECT_TRUE(Eventually([&] { return HeldBytes() <= 160 * kMiB; }));
  Kill(std::move(honest));
  RemoveLeases();
}

TEST_F(ChargesTest, ARestartOfTheDaemonLosesNoCharge) {
  StartInDirectory();
  const std::string lease = MakeLease({512 * kMiB});
  auto program = StartProgram(lease);
  auto other = StartProgram(lease);
  EXPECT_EQ(Charge(*program, 300), "ok");
  EXPECT_EQ(Free(*program, 100), "ok");
  EXPECT_EQ(Charge(*other, 50), "ok");
  Restart();
  EXPECT_GE(HeldBytes(), 250 * kMiB) << "absent sessions are charged in full";
  EXPECT_TRUE(IsInState(program->pid(), v1::SessionStats::STATE_ABSENT));
  EXPECT_EQ(Charge(*program, 64), "ok") << "out of what the earlier daemon lent, or of this one";
  EXPECT_EQ(Charge(*program, 100), "ok");
  EXPECT_TRUE(IsBack(program->pid()));
  EXPECT_EQ(Ask(*program, "used"), absl::StrCat("ok ", 364 * kMiB));
  EXPECT_GE(HeldBytes(), 414 * kMiB);
  Kill(std::move(other));
  EXPECT_TRUE(Eventually([&] { return HeldBytes() <= 364 * kMiB + 64 * kMiB; }));
  EXPECT_EQ(Free(*program, 364), "ok");
  EXPECT_TRUE(Eventually([&] { return HeldBytes() <= 64 * kMiB; })) << "nothing but the allowance";
  Kill(std::move(program));
  RemoveLeases();
}

TEST_F(ChargesTest, RestartsUnderLoadAndDeathsLeaveNothingBehind) {
  StartInDirectory();
  const std::string lease = MakeLease({512 * kMiB});
  std::vector<std::unique_ptr<ChildProgram>> programs;
  for (int i = 0; i < 3; ++i) programs.push_back(StartProgram(lease));
  for (int round = 0; round < 3; ++round) {
    for (auto& program : programs) program->WriteLine(absl::StrCat("churn 3000 ", (3 + round) * kMiB));
    Restart();
    for (auto& program : programs) EXPECT_EQ(program->ReadLine(), "ok 0");
    EXPECT_LE(HeldBytes(), 3 * 64 * kMiB) << "nothing but allowances";
  }
  for (auto& program : programs) program->WriteLine(absl::StrCat("churn 1000000 ", 100 * kMiB));
  for (auto& program : programs) Kill(std::move(program));
  EXPECT_TRUE(Eventually([&] { return HeldBytes() == 0; }));
  RemoveLeases();
}

TEST_F(ChargesTest, AProgramThatLosesItsConnectionKeepsItsChargesAndComesBack) {
  StartInDirectory();
  auto program = StartProgram(MakeLease({512 * kMiB}));
  EXPECT_EQ(Charge(*program, 200), "ok");
  EXPECT_EQ(Ask(*program, "disconnect"), "ok");
  EXPECT_TRUE(Eventually([&] { return IsInState(program->pid(), v1::SessionStats::STATE_ABSENT); }));
  EXPECT_GE(HeldBytes(), 200 * kMiB);
  EXPECT_EQ(Charge(*program, 150), "ok");
  EXPECT_GE(HeldBytes(), 350 * kMiB);
  EXPECT_EQ(Ask(*program, "used"), absl::StrCat("ok ", 350 * kMiB));
  Kill(std::move(program));
  RemoveLeases();
}

TEST_F(ChargesTest, AnExecEndsTheChargesOfTheProgramBefore) {
  StartInDirectory();
  const std::string lease = MakeLease({512 * kMiB});
  auto program = StartProgram(lease);
  EXPECT_EQ(Charge(*program, 200), "ok");
  EXPECT_EQ(Ask(*program, "exec"), "ok");
  EXPECT_THAT(Ask(*program, absl::StrCat("attach ", lease)), StartsWith("ok "));
  EXPECT_TRUE(Eventually([&] { return HeldBytes() == 0; }));
  EXPECT_EQ(Charge(*program, 512), "ok");
  Kill(std::move(program));
  RemoveLeases();
}

TEST_F(ChargesTest, ARemovedLeaseKeepsTheChargesOfAProgramThatLives) {
  StartInDirectory();
  const std::string lease = MakeLease({256 * kMiB});
  auto program = StartProgram(lease);
  EXPECT_EQ(Charge(*program, 128), "ok");
  control_->RemoveLease(lease).IgnoreError();  // it waits for the memory, and says that some is left
  EXPECT_GE(HeldBytes(), 128 * kMiB) << "nobody can take it from the driver";
  Kill(std::move(program));
  EXPECT_TRUE(Eventually([&] { return HeldBytes() == 0; }));
}

TEST_F(ChargesTest, PreallocatedMemoryMakesRoomForCharges) {
  StartDaemon({.simulate = "512MiB"});
  auto program = StartProgram(MakeLease({256 * kMiB}, /*preallocate=*/true));
  EXPECT_EQ(HeldBytes(), 256 * kMiB);
  EXPECT_EQ(Charge(*program, 256), "ok");
  EXPECT_EQ(HeldBytes(), 256 * kMiB);
  EXPECT_THAT(Charge(*program, 1), StartsWith("error 8 "));
  Kill(std::move(program));
  EXPECT_TRUE(Eventually([&] { return HeldBytes() == 256 * kMiB && Stats().leases(0).sessions_size() == 0; }))
      << "its chunks are made again";
  RemoveLeases();
}

}  // namespace
}  // namespace lgpu::testing
