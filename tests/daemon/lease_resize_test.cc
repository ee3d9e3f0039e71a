// Resizes of leases with several devices: all of them or none, and the journal's record meanwhile.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "allocator/broker/broker.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "daemon/leases/lease_table.h"
#include "daemon/recovery/journal.h"
#include "daemon/server/config.h"
#include "daemon/server/event_log.h"
#include "daemon/sessions/session_state.h"
#include "tests/daemon/daemon_parts.h"
#include "tests/daemon/temporary_directory.h"
#include "tests/support/broker_testing.h"
#include "tests/support/failing_backend.h"

namespace lgpu::daemon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kBoot[] = "01234567-89ab-cdef-0123-456789abcdef";

// The state that the next daemon would read; this daemon still writes the file itself.
JournalState Read(const TemporaryDirectory& directory) {
  const TemporaryDirectory copy;
  std::filesystem::copy(directory.path(), copy.path());
  return Journal::Open(copy.path(), kBoot)->state;
}

v1::JournalLease Find(const JournalState& state, const std::string& name) {
  for (const auto& [key, lease] : state.leases()) {
    if (lease.name() == name) return lease;
  }
  ADD_FAILURE() << "no lease " << name;
  return {};
}

v1::CreateLeaseRequest TwoDevices(v1::LogicalDeviceSpec::Mode mode, Bytes first, Bytes second) {
  v1::CreateLeaseRequest request;
  request.set_lasting(true);
  request.set_name("two");
  for (const Bytes limit : {first, second}) {
    v1::LogicalDeviceSpec& device = *request.add_devices();
    device.set_memory_limit_bytes(limit.count());
    device.set_mode(mode);
  }
  return request;
}

v1::ResizeLeaseRequest NewLimits(Bytes first, Bytes second) {
  v1::ResizeLeaseRequest resize;
  resize.set_lease("two");
  for (const Bytes limit : {first, second}) {
    v1::ResizeLeaseRequest::Device& device = *resize.add_devices();
    device.set_index(static_cast<std::uint32_t>(resize.devices_size() - 1));
    device.set_memory_limit_bytes(limit.count());
  }
  return resize;
}

// The daemon dies when another lease has the freed memory: the next daemon must not promise it again.
TEST(LeaseResizeTest, FreedMemoryIsNotedBeforeItIsGrantedAgain) {
  const TemporaryDirectory directory;
  std::function<void()> at_create;
  FailingBackend backend(
      MakeSimulatedBackend({.devices = {SimulatedDevice(0, 64_MiB, "resize")}, .sparse = true}),
      {.before_create = [&at_create] {
        // A grant inside of the call makes chunks too.
        const auto call = std::exchange(at_create, nullptr);
        if (call) call();
        if (!at_create) at_create = call;
      }});
  const std::unique_ptr<Journal> journal = std::move(Journal::Open(directory.path(), kBoot)->journal);
  const TickedBroker broker{backend, *journal};
  SessionDirectory sessions(16);
  EventLog events{64};
  Config config;
  config.state_dir = directory.path();
  LeaseTable leases(config,
                    {.broker = *broker, .sessions = sessions, .events = events, .journal = journal.get()});

  const Caller root{.uid = 0, .session = nullptr};
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  v1::CreateLeaseRequest request = TwoDevices(v1::LogicalDeviceSpec::MODE_PREALLOCATE, 40_MiB, 8_MiB);
  const absl::StatusOr<v1::Lease> two = leases.Create(root, request, deadline);
  ASSERT_TRUE(two.ok()) << two.status();
  request.set_name("other");
  request.mutable_devices()->RemoveLast();
  request.mutable_devices(0)->set_mode(v1::LogicalDeviceSpec::MODE_GROWTH);
  const absl::StatusOr<v1::Lease> other = leases.Create(root, request, deadline);
  ASSERT_TRUE(other.ok()) << other.status();
  const LeaseKey key{Find(Read(directory), "other").key()};
  broker->AddSession(SessionId{1}, {.pid = 1});
  broker->AttachSession(SessionId{1}, key);
  v1::JournalRecord session;
  session.mutable_session()->set_id(1);
  session.mutable_session()->set_lease_key(key.value);
  journal->Note(session);

  // Chunks are made for the second device while the first has all of its memory, and for the first one when
  // it is smaller: a chunk of it was too large.
  std::optional<JournalState> before;
  Broker::Answer granted;
  std::optional<JournalState> seen;
  at_create = [&] {
    if (broker->Find(LogicalId{two->devices(0).id()})->limit == 40_MiB) {
      before = Read(directory);
    } else if (!seen) {
      granted = broker->Grow({.session = SessionId{1},
                              .device = LogicalId{other->devices(0).id()},
                              .at_least = 24_MiB,
                              .wanted = 24_MiB,
                              .asked_at = Clock::now(),
                              .deadline = Clock::now()});
      seen = Read(directory);
    }
  };
  const absl::StatusOr<v1::Lease> resized = leases.Resize(root, NewLimits(16_MiB, 16_MiB), deadline);
  EXPECT_TRUE(resized.ok()) << resized.status();
  ASSERT_TRUE(before.has_value());
  const v1::JournalLease unchanged = Find(*before, "two");
  EXPECT_EQ(Bytes(unchanged.devices(0).limit_bytes()), 40_MiB) << "the resize may still be refused";
  EXPECT_EQ(Bytes(unchanged.devices(1).limit_bytes()), 8_MiB);
  EXPECT_TRUE(granted.status.ok()) << granted.status;
  ASSERT_TRUE(seen.has_value());
  EXPECT_FALSE(seen->chunks().empty());
  const v1::JournalLease noted = Find(*seen, "two");
  EXPECT_EQ(Bytes(noted.devices(0).limit_bytes()), 16_MiB);
  EXPECT_EQ(Bytes(noted.devices(1).limit_bytes()), 16_MiB);
  broker->ReturnAll(SessionId{1});
}

// A lease of two devices of 16 MiB on a card of 64 MiB.
class RefusedResizeTest : public ::testing::TestWithParam<v1::LogicalDeviceSpec::Mode> {
 protected:
  RefusedResizeTest() {
    const absl::StatusOr<v1::Lease> made =
        parts_.leases().Create(root_, TwoDevices(GetParam(), 16_MiB, 16_MiB), DaemonParts::Soon());
    EXPECT_TRUE(made.ok()) << made.status();
    free_ = parts_.FreeOfCard();
  }
  /// The lease, its devices in the broker, the journal and the card are as they were.
  void ExpectUnchanged() {
    const absl::StatusOr<v1::Lease> lease = parts_.leases().Get(root_, "two");
    ASSERT_TRUE(lease.ok()) << lease.status();
    ASSERT_EQ(parts_.opened().journal->Commit(), absl::OkStatus());
    const v1::JournalLease noted = Find(Read(directory_), "two");
    const Bytes guarantee = GetParam() == v1::LogicalDeviceSpec::MODE_PREALLOCATE ? 16_MiB : Bytes();
    for (int i = 0; i < 2; ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(Bytes(lease->devices(i).memory_limit_bytes()), 16_MiB);
      EXPECT_EQ(Bytes(lease->devices(i).guarantee_bytes()), guarantee);
      EXPECT_EQ(Bytes(noted.devices(i).limit_bytes()), 16_MiB);
      EXPECT_EQ(Bytes(noted.devices(i).guarantee_bytes()), guarantee);
      const auto device = parts_.broker().Find(LogicalId{lease->devices(i).id()});
      ASSERT_TRUE(device.has_value());
      EXPECT_EQ(device->limit, 16_MiB);
      EXPECT_EQ(device->guarantee, guarantee);
      EXPECT_EQ(device->held, guarantee);
    }
    EXPECT_EQ(parts_.FreeOfCard(), free_) << "nothing stays set aside";
    EXPECT_EQ(parts_.broker().CheckInvariants(), absl::OkStatus());
  }

  const TemporaryDirectory directory_;
  DaemonParts parts_{directory_.path()};
  const Caller root_{.uid = 0, .session = nullptr};
  Bytes free_;
};

TEST_P(RefusedResizeTest, ChangesNoDeviceWhereTheCardHasNoRoomForTheLastOne) {
  v1::ResizeLeaseRequest resize = NewLimits(40_MiB, 40_MiB);
  if (GetParam() == v1::LogicalDeviceSpec::MODE_GROWTH) {
    for (v1::ResizeLeaseRequest::Device& device : *resize.mutable_devices()) {
      device.set_guarantee_bytes((40_MiB).count());
    }
  }
  const absl::Status refused = parts_.leases().Resize(root_, resize, Clock::now()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  ExpectUnchanged();
  for (v1::ResizeLeaseRequest::Device& device : *resize.mutable_devices()) {
    device.set_memory_limit_bytes((24_MiB).count());
    if (device.has_guarantee_bytes()) device.set_guarantee_bytes((24_MiB).count());
  }
  EXPECT_TRUE(parts_.leases().Resize(root_, resize, Clock::now()).ok()) << "the next one is free to start";
  EXPECT_EQ(parts_.FreeOfCard(), 16_MiB);
}

TEST_P(RefusedResizeTest, ChangesNoDeviceWhereTheLastOneCanNeverHaveItsSize) {
  const v1::ResizeLeaseRequest resize = NewLimits(8_MiB, 128_MiB);
  const absl::Status refused = parts_.leases().Resize(root_, resize, Clock::now()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  ExpectUnchanged();
}

TEST_P(RefusedResizeTest, ChangesNoDeviceThatWasToBeSmaller) {
  v1::ResizeLeaseRequest resize = NewLimits(8_MiB, 60_MiB);
  if (GetParam() == v1::LogicalDeviceSpec::MODE_GROWTH) {
    // Another lease has the memory that the second device would need.
    v1::CreateLeaseRequest other = TwoDevices(v1::LogicalDeviceSpec::MODE_PREALLOCATE, 32_MiB, 8_MiB);
    other.set_name("other");
    ASSERT_TRUE(parts_.leases().Create(root_, other, DaemonParts::Soon()).ok());
    free_ = parts_.FreeOfCard();
    resize.mutable_devices(1)->set_guarantee_bytes((60_MiB).count());
  }
  const absl::Status refused = parts_.leases().Resize(root_, resize, Clock::now()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  ExpectUnchanged();
}

INSTANTIATE_TEST_SUITE_P(Modes, RefusedResizeTest,
                         ::testing::Values(v1::LogicalDeviceSpec::MODE_GROWTH,
                                           v1::LogicalDeviceSpec::MODE_PREALLOCATE));

}  // namespace
}  // namespace lgpu::daemon
