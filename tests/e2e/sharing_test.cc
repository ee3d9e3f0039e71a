#include <signal.h>
#include <unistd.h>

#include <map>
#include <sstream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kGpu[] = "/job:localhost/replica:0/task:0/device:GPU:0";
constexpr char kCpu[] = "/job:localhost/replica:0/task:0/device:CPU:0";

class SharingTest : public E2eTest {
 protected:
  /// The daemon's figures of a lease's first device.
  v1::LogicalDeviceStats Device(const std::string& lease_id) {
    const v1::StatsSnapshot snapshot = Stats();
    for (const v1::LeaseStats& lease : snapshot.leases()) {
      if (lease.id() == lease_id && lease.devices_size() > 0) return lease.devices(0);
    }
    ADD_FAILURE() << "no lease " << lease_id;
    return {};
  }
  static std::string LeaseId(const std::string& answer) { return answer.substr(answer.find(' ') + 1); }
};

TEST_F(SharingTest, TwoDefaultProgramsShareACard) {
  StartDaemon({.simulate = "256MiB"});
  auto one = StartClient();
  auto two = StartClient();
  ASSERT_THAT(Ask(*one, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*two, "open c"), StartsWith("ok "));
  EXPECT_THAT(Ask(*one, "work c 10"), "ok");
  EXPECT_THAT(Ask(*two, "work c 10"), "ok");
  const v1::StatsSnapshot stats = Stats();
  EXPECT_EQ(stats.leases_size(), 2);
  EXPECT_EQ(stats.leases(0).devices(0).card_uuid(), stats.leases(1).devices(0).card_uuid());
  EXPECT_THAT(Ask(*one, "drop c"), "ok");
  EXPECT_THAT(Ask(*two, "work c"), "ok");
  EXPECT_THAT(Ask(*two, "close c"), "ok");
}

TEST_F(SharingTest, RefusedExactlyAtTheLimitWithTheNumbers) {
  StartDaemon();
  auto client = StartClient();
  const std::string lease =
      LeaseId(Ask(*client, absl::StrCat("open c timeout=0 lease_name=train limit=", 64 * kMiB)));
  // 64 MiB in all fit, in several blocks; 512 bytes more do not.
  for (int i = 0; i < 4; ++i) {
    ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t", i, " ", 16 * kMiB)), StartsWith("ok ")) << i;
  }
  EXPECT_EQ(Device(lease).held_bytes(), 64 * kMiB);
  EXPECT_THAT(Ask(*client, "alloc c more 512"),
              AllOf(StartsWith("error RESOURCE_EXHAUSTED"), HasSubstr("memory limit reached"),
                    HasSubstr("train"), HasSubstr("512"), HasSubstr("64.00MiB"), HasSubstr("device:GPU:0")));
  EXPECT_EQ(Device(lease).held_bytes(), 64 * kMiB);
  // Freed memory can be allocated again, and the refusal has not changed other tensors.
  EXPECT_THAT(Ask(*client, "free t0"), "ok");
  EXPECT_THAT(Ask(*client, absl::StrCat("alloc c t0 ", 16 * kMiB)), StartsWith("ok "));
  EXPECT_THAT(Ask(*client, "read t1"), absl::StrCat("ok ", "4.1943e+06"));
  EXPECT_THAT(Ask(*client, "close c"), "ok");
}

TEST_F(SharingTest, PreallocatedMemoryExistsFromTheStartAndNeverFails) {
  StartDaemon();
  constexpr std::uint64_t kLimit = 96 * kMiB;
  absl::StatusOr<v1::Lease> lease =
      control_->CreateLease(OneDevice(kLimit, /*preallocate=*/true, /*lasting=*/true));
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(ChunkBytesOpen(daemon_->pid()), kLimit);
  EXPECT_EQ(Device(lease->id()).held_bytes(), kLimit);
  EXPECT_EQ(Device(lease->id()).guarantee_bytes(), kLimit);

  auto client = StartClient({{"LGPU_LEASE", lease->id()}});
  ASSERT_THAT(Ask(*client, "open c timeout=0"), "ok " + lease->id());
  // Up to the limit every allocation succeeds, also when another program takes most of the card.
  auto other = StartClient();
  ASSERT_THAT(Ask(*other, "open c timeout=0"), StartsWith("ok "));
  ASSERT_THAT(Ask(*other, absl::StrCat("alloc c t ", 512 * kMiB)), StartsWith("ok "));
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 6; ++i) {
      ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t", i, " ", 16 * kMiB)), StartsWith("ok "));
    }
    EXPECT_THAT(Ask(*client, "alloc c more 512"), StartsWith("error RESOURCE_EXHAUSTED"));
    for (int i = 0; i < 6; ++i) ASSERT_EQ(Ask(*client, absl::StrCat("free t", i)), "ok");
  }
  EXPECT_EQ(Ask(*client, "close c"), "ok");
  EXPECT_EQ(Ask(*other, "close c"), "ok");
  EXPECT_EQ(Device(lease->id()).held_bytes(), kLimit);
  EXPECT_EQ(ChunkBytesOpen(daemon_->pid()), kLimit);
  EXPECT_TRUE(control_->RemoveLease(lease->id()).ok());
}

TEST_F(SharingTest, TheMachinesSharedMemoryRisesByExactlyThePreallocatedLimit) {
  StartDaemon();
  // Other processes use shared memory, too, so some attempts see their changes; a wrong amount is never
  // exact.
  const auto rises_exactly = [&] {
    const std::uint64_t before = MachineShmem();
    const auto lease = control_->CreateLease(OneDevice(78 * kMiB, /*preallocate=*/true, /*lasting=*/true));
    const std::uint64_t after = MachineShmem();
    if (!lease.ok()) return false;
    EXPECT_TRUE(control_->RemoveLease(lease->id()).ok());
    return after - before == 78 * kMiB;
  };
  EXPECT_TRUE(Eventually(rises_exactly));
}

TEST_F(SharingTest, TwoProcessesOfOneLeaseShareItsLimit) {
  StartDaemon();
  const auto lease = control_->CreateLease(OneDevice(64 * kMiB, false, /*lasting=*/true));
  ASSERT_TRUE(lease.ok()) << lease.status();
  auto one = StartClient({{"LGPU_LEASE", lease->id()}});
  auto two = StartClient({{"LGPU_LEASE", lease->name()}});
  ASSERT_EQ(Ask(*one, "open c timeout=0"), "ok " + lease->id());
  // Time for the first one to give back what it grew ahead.
  ASSERT_EQ(Ask(*two, "open c timeout=50000"), "ok " + lease->id());
  ASSERT_THAT(Ask(*one, absl::StrCat("alloc c t ", 40 * kMiB)), StartsWith("ok "));
  EXPECT_THAT(Ask(*two, absl::StrCat("alloc c t ", 40 * kMiB)),
              AllOf(StartsWith("error RESOURCE_EXHAUSTED"), HasSubstr("64.00MiB"), HasSubstr("40.00MiB")));
  ASSERT_THAT(Ask(*two, absl::StrCat("alloc c t ", 24 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(Device(lease->id()).held_bytes(), 64 * kMiB);
  // The end of one gives its part to the other.
  EXPECT_EQ(Ask(*one, "close c"), "ok");
  EXPECT_THAT(Ask(*two, absl::StrCat("alloc c u ", 40 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(Ask(*two, "close c"), "ok");
  EXPECT_TRUE(control_->RemoveLease(lease->id()).ok());
}

TEST_F(SharingTest, GrowthBeyondTheCardIsRefusedWithTheHolders) {
  StartDaemon({.simulate = "128MiB"});
  auto one = StartClient();
  auto two = StartClient();
  // It cannot grow ahead of its need.
  ASSERT_THAT(Ask(*one, absl::StrCat("open c timeout=0 lease_name=holder limit=", 96 * kMiB)),
              StartsWith("ok "));
  ASSERT_THAT(Ask(*two, "open c timeout=0 lease_name=asker"), StartsWith("ok "));
  ASSERT_THAT(Ask(*one, absl::StrCat("alloc c t ", 96 * kMiB)), StartsWith("ok "));
  EXPECT_THAT(
      Ask(*two, absl::StrCat("alloc c t ", 64 * kMiB)),
      AllOf(StartsWith("error RESOURCE_EXHAUSTED"), HasSubstr("not enough memory on"), HasSubstr("holder"),
            HasSubstr("96.00MiB"), HasSubstr(absl::StrCat(one->pid())), HasSubstr("32.00MiB")));
  // Both go on: one allocates a size that fits, the other uses its tensor.
  EXPECT_THAT(Ask(*two, absl::StrCat("alloc c t ", 32 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(Ask(*one, "read t"), "ok 2.51658e+07");
  EXPECT_EQ(Ask(*one, "close c"), "ok");
  EXPECT_EQ(Ask(*two, "close c"), "ok");
}

TEST_F(SharingTest, AGuaranteeThatTheCardCannotSetAsideIsRefusedAtOnce) {
  StartDaemon({.simulate = "128MiB"});
  auto one = StartClient();
  ASSERT_THAT(Ask(*one, absl::StrCat("open c prealloc=1 limit=", 96 * kMiB)), StartsWith("ok "));
  EXPECT_THAT(Ask(*one, absl::StrCat("open d timeout=0 prealloc=1 limit=", 64 * kMiB)),
              AllOf(StartsWith("error RESOURCE_EXHAUSTED"), HasSubstr("96.00MiB")));
  EXPECT_THAT(Ask(*one, absl::StrCat("open d timeout=0 prealloc=1 limit=", 256 * kMiB)),
              Not(StartsWith("ok ")));
  EXPECT_EQ(Stats().leases_size(), 1);
  EXPECT_EQ(Ask(*one, "close c"), "ok");
}

TEST_F(SharingTest, AProgramThatWaitsIsServedWhenAnotherCloses) {
  StartDaemon({.simulate = "128MiB"});
  auto one = StartClient();
  auto two = StartClient();
  ASSERT_THAT(Ask(*one, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*two, "open c timeout=20000"), StartsWith("ok "));
  ASSERT_THAT(Ask(*one, absl::StrCat("alloc c t ", 128 * kMiB)), StartsWith("ok "));
  two->WriteLine(absl::StrCat("alloc c t ", 64 * kMiB));
  ASSERT_TRUE(Eventually([&] { return Stats().cards(0).waiting_requests() == 1; }));
  EXPECT_EQ(Ask(*one, "close c"), "ok");
  const std::optional<std::string> answer = two->ReadLine();
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(*answer, StartsWith("ok "));
  EXPECT_EQ(Stats().cards(0).waiting_requests(), 0);
  EXPECT_EQ(Ask(*two, "close c"), "ok");
}

// A program keeps freed memory idle for a while: another program's request waits for it and is not refused.
TEST_F(SharingTest, IdleMemoryOfOneProgramServesAnother) {
  StartDaemon({.simulate = "128MiB"});
  auto one = StartClient();
  auto two = StartClient();
  ASSERT_THAT(Ask(*one, "open c timeout=20000"), StartsWith("ok "));
  ASSERT_THAT(Ask(*two, "open c timeout=20000"), StartsWith("ok "));
  ASSERT_THAT(Ask(*one, absl::StrCat("alloc c keep ", 8 * kMiB)), StartsWith("ok "));
  ASSERT_THAT(Ask(*one, absl::StrCat("alloc c t ", 112 * kMiB)), StartsWith("ok "));
  ASSERT_EQ(Ask(*one, "free t"), "ok");
  ASSERT_THAT(Ask(*two, absl::StrCat("alloc c u ", 116 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(Ask(*one, "read keep"), "ok 2.09715e+06");
  // And back again.
  ASSERT_EQ(Ask(*two, "free u"), "ok");
  ASSERT_THAT(Ask(*one, absl::StrCat("alloc c v ", 116 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(Stats().refusals_total(), 0u);
  EXPECT_EQ(Ask(*one, "close c"), "ok");
  EXPECT_EQ(Ask(*two, "close c"), "ok");
}

TEST_F(SharingTest, TwoWaitingProgramsGiveEachOtherIdleMemory) {
  StartDaemon({.simulate = "128MiB"});
  auto one = StartClient();
  auto two = StartClient();
  for (ChildProgram* client : {one.get(), two.get()}) {
    ASSERT_THAT(Ask(*client, "open c timeout=20000"), StartsWith("ok "));
  }
  for (int round = 0; round < 6; ++round) {
    for (ChildProgram* client : {one.get(), two.get()}) {
      client->WriteLine(absl::StrCat("alloc c t ", 60 * kMiB));
    }
    for (ChildProgram* client : {one.get(), two.get()}) ASSERT_THAT(*client->ReadLine(), StartsWith("ok "));
    for (ChildProgram* client : {one.get(), two.get()}) ASSERT_EQ(Ask(*client, "free t"), "ok");
    // 60 lie idle in each: together they need more than is left.
    ChildProgram& large = round % 2 == 0 ? *one : *two;
    ChildProgram& small = round % 2 == 0 ? *two : *one;
    large.WriteLine(absl::StrCat("alloc c t ", 100 * kMiB));
    small.WriteLine(absl::StrCat("alloc c t ", 24 * kMiB));
    for (ChildProgram* client : {one.get(), two.get()}) ASSERT_THAT(*client->ReadLine(), StartsWith("ok "));
    for (ChildProgram* client : {one.get(), two.get()}) ASSERT_EQ(Ask(*client, "free t"), "ok");
  }
  for (ChildProgram* client : {one.get(), two.get()}) EXPECT_EQ(Ask(*client, "close c"), "ok");
}

TEST_F(SharingTest, AProgramThatDiesWhileItWaitsLeavesTheQueue) {
  StartDaemon({.simulate = "128MiB"});
  auto one = StartClient();
  auto two = StartClient();
  ASSERT_THAT(Ask(*one, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*two, "open c timeout=20000"), StartsWith("ok "));
  ASSERT_THAT(Ask(*one, absl::StrCat("alloc c t ", 128 * kMiB)), StartsWith("ok "));
  two->WriteLine(absl::StrCat("alloc c t ", 64 * kMiB));
  ASSERT_TRUE(Eventually([&] { return Stats().cards(0).waiting_requests() == 1; }));
  two->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Stats().cards(0).waiting_requests() == 0; }));
  EXPECT_EQ(Ask(*one, "close c"), "ok");
}

TEST_F(SharingTest, TheDaemonKnowsWhereEveryOpOfTwoProgramsRan) {
  StartDaemon();
  auto one = StartClient();
  auto two = StartClient();
  const std::string first = LeaseId(Ask(*one, absl::StrCat("open c lease_name=one limit=", 64 * kMiB)));
  const std::string second = LeaseId(Ask(*two, absl::StrCat("open c lease_name=two limit=", 64 * kMiB)));
  ASSERT_EQ(Ask(*one, "work c 7"), "ok");
  ASSERT_EQ(Ask(*two, "work c 3"), "ok");

  using Counts = std::map<std::pair<std::string, std::string>, std::uint64_t>;  // op and device
  const auto counts_of = [&](const std::string& lease) {
    const auto report = control_->GetPlacements(lease);
    EXPECT_TRUE(report.ok()) << report.status();
    Counts counts;
    for (const auto& total : report->totals()) counts[{total.op(), total.device()}] += total.count();
    return counts;
  };
  const auto ops_of = [](const Counts& counts, const char* op, const char* device) {
    const auto found = counts.find({op, device});
    return found == counts.end() ? 0 : found->second;
  };
  for (const auto& expected : {std::pair(first, 7), std::pair(second, 3)}) {
    const auto& lease = expected.first;
    const auto all = static_cast<std::uint64_t>(expected.second);
    EXPECT_TRUE(Eventually([&] { return ops_of(counts_of(lease), "AddN", kCpu) == all; }));
    const Counts counts = counts_of(lease);
    EXPECT_EQ(ops_of(counts, "MatMul", kGpu), all);
    EXPECT_EQ(ops_of(counts, "MatMul", kCpu), 0u);
    EXPECT_EQ(ops_of(counts, "AddN", kGpu), 0u);
  }
  const auto report = control_->GetPlacements(first);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->dropped_total(), 0u);
  for (const auto& record : report->records()) EXPECT_EQ(record.pid(), one->pid());
  EXPECT_EQ(Ask(*one, "close c"), "ok");
  EXPECT_EQ(Ask(*two, "close c"), "ok");
}

TEST_F(SharingTest, OtherUsersLeasesAreInvisible) {
  if (::getuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  StartDaemon({.open_to_everybody = true});
  const auto mine = control_->CreateLease(OneDevice(8 * kMiB, false, /*lasting=*/true));
  ASSERT_TRUE(mine.ok()) << mine.status();
  auto other = StartClient();
  ASSERT_EQ(Ask(*other, "setuid 65534"), "ok");
  // Another user's lease is not found, by id and by name.
  EXPECT_THAT(Ask(*other, "open c lease=" + mine->id()), StartsWith("error NOT_FOUND"));
  EXPECT_THAT(Ask(*other, "open c lease=" + mine->name()), StartsWith("error NOT_FOUND"));
  const std::string his = LeaseId(Ask(*other, "open c"));
  EXPECT_EQ(Ask(*other, "work c"), "ok");
  // Root sees all, under the right owner.
  std::map<std::string, std::uint32_t> owners;
  const v1::StatsSnapshot snapshot = Stats();
  for (const v1::LeaseStats& lease : snapshot.leases()) owners[lease.id()] = lease.owner_uid();
  EXPECT_EQ(owners[mine->id()], 0u);
  EXPECT_EQ(owners[his], 65534u);
  EXPECT_EQ(Ask(*other, "close c"), "ok");
  EXPECT_TRUE(control_->RemoveLease(mine->id()).ok());
}

}  // namespace
}  // namespace lgpu::testing
