// Programs of liblgpu that suspend themselves: their tensors are in host memory, and others have the GPU.

#include <signal.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class SuspensionTest : public E2eTest {
 protected:
  /// A program with a context c, and tensors large, small and freed.
  std::unique_ptr<ChildProgram> StartHolder(const std::string& options = "timeout=0") {
    auto holder = StartClient();
    EXPECT_THAT(Ask(*holder, "open c " + options), StartsWith("ok "));
    large_ = Ask(*holder, absl::StrCat("numbers c large ", 150 * kMiB, " 7"));
    small_ = Ask(*holder, "numbers c small 1000 8");
    EXPECT_THAT(Ask(*holder, absl::StrCat("numbers c freed ", 20 * kMiB, " 9")), StartsWith("ok "));
    EXPECT_THAT(large_, StartsWith("ok 0x"));
    EXPECT_THAT(small_, StartsWith("ok 0x"));
    EXPECT_GE(HeldBytes(), 170 * kMiB);
    return holder;
  }
  void ExpectContentsOf(ChildProgram& holder) {
    EXPECT_EQ(Ask(holder, "digest large"), large_);
    EXPECT_EQ(Ask(holder, "digest small"), small_);
    EXPECT_EQ(Ask(holder, "work c"), "ok");
    EXPECT_TRUE(LedgerIsTrue({holder.pid()}));
  }

  /// What lgpud tells of the only lease with that name; nothing: it is not suspended.
  std::optional<v1::LeaseSuspension> SuspensionOf(const std::string& name) {
    const v1::StatsSnapshot stats = Stats();
    for (const v1::LeaseStats& lease : stats.leases()) {
      if (lease.name() == name && lease.has_suspension()) return lease.suspension();
    }
    return std::nullopt;
  }
  static std::string Guaranteed(std::uint64_t mib) {
    return absl::StrCat(" limit=", mib * kMiB, " guarantee=", mib * kMiB);
  }

  std::string large_, small_;
};

TEST_F(SuspensionTest, AnotherProgramUsesTheMemoryMeanwhile) {
  StartDaemon({.simulate = "256MiB"});
  auto holder = StartHolder();
  auto other = StartClient();
  ASSERT_THAT(Ask(*other, "open c timeout=0"), StartsWith("ok "));
  EXPECT_THAT(Ask(*other, absl::StrCat("numbers c a ", 200 * kMiB, " 1")),
              StartsWith("error RESOURCE_EXHAUSTED"));
  ASSERT_EQ(Ask(*holder, "suspend c"), "ok");
  EXPECT_EQ(HeldBytes(), 0u);
  EXPECT_EQ(ChunkBytesOpen(holder->pid()), 0u);
  EXPECT_EQ(Ask(*holder, "free freed"), "ok");
  EXPECT_THAT(Ask(*other, absl::StrCat("numbers c a ", 200 * kMiB, " 1")), StartsWith("ok "));
  EXPECT_THAT(Ask(*holder, "digest large"),
              AllOf(StartsWith("error FAILED_PRECONDITION"), HasSubstr("try: Resume")));
  EXPECT_THAT(Ask(*holder, "resume c"),
              AllOf(StartsWith("error RESOURCE_EXHAUSTED the Context stays suspended: "),
                    HasSubstr("152.00MiB"), HasSubstr("contents of suspended tensors")));
  EXPECT_TRUE(LedgerIsTrue({other->pid()}));
  EXPECT_EQ(Ask(*other, "close c"), "ok");
  ASSERT_EQ(Ask(*holder, "resume c"), "ok");
  EXPECT_EQ(HeldBytes(), 152 * kMiB);
  ExpectContentsOf(*holder);
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(Ask(*holder, "suspend c"), "ok");
    ASSERT_EQ(Ask(*holder, "resume c"), "ok");
  }
  ExpectContentsOf(*holder);
}

TEST_F(SuspensionTest, ARestartOfLgpudChangesNothing) {
  StartInDirectory("256MiB");
  auto holder = StartHolder();
  ASSERT_EQ(Ask(*holder, "suspend c"), "ok");
  KillDaemon();
  EXPECT_THAT(Ask(*holder, "resume c"), StartsWith("error UNAVAILABLE the Context stays suspended: "));
  StartInDirectory("256MiB");
  ASSERT_TRUE(Eventually([&] { return IsBack(holder->pid()); }));
  EXPECT_EQ(HeldBytes(), 0u);
  ASSERT_EQ(Ask(*holder, "resume c"), "ok");
  ExpectContentsOf(*holder);
}

TEST_F(SuspensionTest, ItEndsBySigkillAndByClose) {
  StartDaemon({.simulate = "256MiB"});
  auto killed = StartHolder();
  ASSERT_EQ(Ask(*killed, "suspend c"), "ok");
  killed->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return EverythingIsBack(); }));
  auto closed = StartHolder();
  ASSERT_EQ(Ask(*closed, "suspend c"), "ok");
  EXPECT_EQ(Ask(*closed, "close c"), "ok");
  EXPECT_TRUE(EverythingIsBack());
  EXPECT_THAT(Ask(*closed, "digest large"), HasSubstr("closed"));
}

TEST_F(SuspensionTest, PreallocatedMemoryStays) {
  StartDaemon({.simulate = "256MiB"});
  auto holder = StartClient();
  ASSERT_THAT(Ask(*holder, absl::StrCat("open c limit=", 64 * kMiB, " prealloc=1")), StartsWith("ok "));
  EXPECT_THAT(Ask(*holder, "suspend c"),
              AllOf(StartsWith("error FAILED_PRECONDITION"), HasSubstr("preallocated")));
  EXPECT_EQ(Ask(*holder, "work c"), "ok");
}

TEST_F(SuspensionTest, TheLeaseIsShownAndOthersGetItsGuarantee) {
  StartInDirectory("256MiB");
  auto holder = StartHolder("timeout=0 lease_name=mine" + Guaranteed(200));
  auto other = StartClient();
  EXPECT_THAT(Ask(*other, "open c" + Guaranteed(230)), StartsWith("error RESOURCE_EXHAUSTED"));
  ASSERT_EQ(Ask(*holder, "suspend c"), "ok");
  const auto shown = SuspensionOf("mine");
  ASSERT_TRUE(shown.has_value());
  EXPECT_TRUE(shown->in_host_memory());
  EXPECT_EQ(shown->bytes(), 170 * kMiB + 1024);
  ASSERT_THAT(Ask(*other, "open c" + Guaranteed(230)), StartsWith("ok "));
  const auto no_room = AllOf(StartsWith("error RESOURCE_EXHAUSTED the Context stays suspended: "),
                             HasSubstr("no room for lease mine"));
  EXPECT_THAT(Ask(*holder, "resume c"), no_room);
  Restart();
  ASSERT_TRUE(Eventually([&] { return IsBack(holder->pid()) && IsBack(other->pid()); }));
  EXPECT_EQ(SuspensionOf("mine")->bytes(), 170 * kMiB + 1024);
  EXPECT_THAT(Ask(*holder, "resume c"), no_room);
  EXPECT_EQ(Ask(*other, "close c"), "ok");
  ASSERT_EQ(Ask(*holder, "resume c"), "ok");
  EXPECT_FALSE(SuspensionOf("mine").has_value());
  ExpectContentsOf(*holder);
  EXPECT_THAT(Ask(*other, "open c" + Guaranteed(230)), StartsWith("error RESOURCE_EXHAUSTED"));
}

TEST_F(SuspensionTest, ALastingLeaseWhoseSuspendedProgramDiesIsAsBefore) {
  StartDaemon({.simulate = "256MiB"});
  v1::CreateLeaseRequest request = OneDevice(200 * kMiB, /*preallocate=*/false, /*lasting=*/true);
  request.mutable_devices(0)->set_guarantee_bytes(200 * kMiB);
  const auto lease = control_->CreateLease(request);
  ASSERT_TRUE(lease.ok()) << lease.status();
  auto killed = StartHolder("timeout=0 lease=" + lease->id());
  ASSERT_EQ(Ask(*killed, "suspend c"), "ok");
  EXPECT_TRUE(SuspensionOf(lease->name()).has_value());
  killed->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return !SuspensionOf(lease->name()).has_value(); }));
  auto other = StartClient();
  EXPECT_THAT(Ask(*other, "open c" + Guaranteed(100)), StartsWith("error RESOURCE_EXHAUSTED"));
  EXPECT_TRUE(control_->RemoveLease(lease->id()).ok());
}

TEST_F(SuspensionTest, ALeaseWithAnotherProgramStaysAsItIs) {
  StartDaemon({.simulate = "512MiB"});
  v1::CreateLeaseRequest request = OneDevice(400 * kMiB, /*preallocate=*/false, /*lasting=*/true);
  const auto lease = control_->CreateLease(request);
  ASSERT_TRUE(lease.ok()) << lease.status();
  auto holder = StartHolder("timeout=0 lease=" + lease->id());
  auto other = StartClient();
  ASSERT_THAT(Ask(*other, "open c lease=" + lease->id()), StartsWith("ok "));
  ASSERT_EQ(Ask(*holder, "suspend c"), "ok");
  EXPECT_FALSE(SuspensionOf(lease->name()).has_value());
  EXPECT_EQ(Ask(*other, "work c"), "ok");
  ASSERT_EQ(Ask(*holder, "resume c"), "ok");
  EXPECT_EQ(Ask(*holder, "digest large"), large_);
  for (ChildProgram* const program : {holder.get(), other.get()}) EXPECT_EQ(Ask(*program, "close c"), "ok");
  EXPECT_TRUE(control_->RemoveLease(lease->id()).ok());
}

}  // namespace
}  // namespace lgpu::testing
