// Leases that wait to be made: their places in the queue of a card, beside the requests of sessions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "allocator/broker/broker.h"
#include "allocator/broker/card_observer.h"
#include "allocator/broker/reservations.h"
#include "allocator/broker/session_releases.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "lgpu/refusal.h"
#include "tests/support/broker_testing.h"

namespace lgpu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class BrokerRoomsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SimulatedBackendOptions simulated;
    simulated.devices = {SimulatedDevice(0, Bytes(64 * kMiB), "broker_rooms_test")};
    simulated.sparse = true;
    backend_ = MakeSimulatedBackend(std::move(simulated));
    Broker::Options options = AllCardsOf(*backend_);
    options.clock = [this] { return now_; };
    broker_ = *Broker::Create(*backend_, log_, options);
    card_ = broker_->Cards().front().id;
  }
  void TearDown() override { EXPECT_TRUE(broker_->CheckInvariants().ok()); }

  absl::StatusOr<LogicalId> Device(std::uint64_t mib, std::uint64_t guarantee_mib, WaiterId room = {},
                                   const std::string& owner = "kim") {
    const LeaseKey lease{++last_lease_};
    return broker_->AddDevice({.card = card_,
                               .limit = Bytes(mib * kMiB),
                               .guarantee = Bytes(guarantee_mib * kMiB),
                               .lease = lease,
                               .lease_name = "lease",
                               .owner = owner,
                               .room = room});
  }
  WaiterId Queue(std::uint64_t mib, const std::string& owner) {
    const auto waker = std::make_shared<FlagWaker>();
    const WaiterId id = broker_->reservations().Queue(
        {.card = card_, .bytes = Bytes(mib * kMiB), .lease_name = "new", .owner = owner, .waker = waker});
    wakers_[id] = waker;
    return id;
  }
  // Its time has come: its waker says so.
  bool IsOver(WaiterId id) {
    now_ += std::chrono::milliseconds(50);
    broker_->Tick();
    const bool is_over = !broker_->reservations().View(id);
    EXPECT_EQ(wakers_.at(id)->woken(), is_over);
    if (is_over) {
      EXPECT_TRUE(broker_->TakeAnswer(id)->status.ok());
    }
    return is_over;
  }

  NoGrantLog log_;
  std::unique_ptr<DeviceMemory> backend_;
  Clock::time_point now_ = Clock::now();
  std::unique_ptr<Broker> broker_;
  CardId card_;
  std::uint64_t last_lease_ = 0;
  std::map<WaiterId, std::shared_ptr<FlagWaker>> wakers_;
};

TEST_F(BrokerRoomsTest, WhatIsSetAsideIsForThatLeaseAlone) {
  const absl::StatusOr<LogicalId> first = Device(64, 48);
  ASSERT_TRUE(first.ok());
  const WaiterId room = Queue(32, "ann");
  EXPECT_FALSE(IsOver(room));
  broker_->RemoveDevice(*first);
  EXPECT_TRUE(IsOver(room));
  EXPECT_FALSE(Device(64, 40).ok()) << "32 MiB are set aside";
  ASSERT_TRUE(Device(64, 32).ok()) << "the rest is anybody's";
  EXPECT_TRUE(Device(20, 20, room, "ann").ok());
  EXPECT_TRUE(Device(12, 12, room, "ann").ok());
  EXPECT_FALSE(Device(2, 2, room, "ann").ok()) << "nothing is left";
  broker_->reservations().Leave(room);
}

TEST_F(BrokerRoomsTest, WhatProgramsOutsideLgpuTookOfItIsARefusal) {
  const WaiterId room = Queue(48, "ann");
  ASSERT_TRUE(IsOver(room));
  broker_->observer().SetForeign(card_, Bytes(32 * kMiB));
  const absl::StatusOr<LogicalId> device = Device(48, 48, room, "ann");
  ASSERT_TRUE(GetRefusal(device.status()).has_value()) << device.status();
  EXPECT_EQ(GetRefusal(device.status())->reason, RefusalReason::kCard);
  broker_->reservations().Leave(room);
}

TEST_F(BrokerRoomsTest, MoreThanTheCardEverHasWaitsForAnotherPlan) {
  const WaiterId room = Queue(128, "ann");
  EXPECT_FALSE(IsOver(room));
  broker_->reservations().Leave(room);
}

TEST_F(BrokerRoomsTest, LeavingFreesWhatWasSetAside) {
  const WaiterId room = Queue(64, "ann");
  ASSERT_TRUE(IsOver(room));
  EXPECT_FALSE(Device(2, 2).ok());
  broker_->reservations().Leave(room);
  EXPECT_TRUE(Device(64, 64).ok());
  EXPECT_TRUE(broker_->Cards().front().queue.empty());
}

TEST_F(BrokerRoomsTest, WhatADeviceDidNotTakeServesRequestsThatWait) {
  const auto grow = [&](std::uint64_t id, std::uint64_t mib) {
    const absl::StatusOr<LogicalId> device = Device(64, 0);
    broker_->AddSession(SessionId{id}, {.pid = 1});
    broker_->AttachSession(SessionId{id}, LeaseKey{last_lease_});
    return broker_->Grow({.session = SessionId{id},
                          .device = device.value_or(LogicalId()),
                          .at_least = Bytes(mib * kMiB),
                          .wanted = Bytes(mib * kMiB),
                          .asked_at = now_,
                          .deadline = now_ + std::chrono::hours(1)});
  };
  ASSERT_EQ(grow(1, 40).status, absl::OkStatus());
  const WaiterId room = Queue(24, "ann");
  ASSERT_TRUE(IsOver(room));
  const Broker::Answer waits = grow(2, 20);
  ASSERT_TRUE(waits.wait.has_value()) << waits.status;
  EXPECT_FALSE(Device(40, 40, room, "ann").ok()) << "24 MiB are set aside";
  EXPECT_FALSE(AskAgain(*broker_, *waits.wait).chunks.empty());
  broker_->reservations().Leave(room);
}

TEST_F(BrokerRoomsTest, UsersAreServedInTheirOrder) {
  const absl::StatusOr<LogicalId> all = Device(64, 64);
  ASSERT_TRUE(all.ok());
  const WaiterId ann_first = Queue(40, "ann");
  const WaiterId ann_second = Queue(40, "ann");
  const WaiterId bob = Queue(40, "bob");
  broker_->RemoveDevice(*all);
  EXPECT_TRUE(IsOver(ann_first));
  EXPECT_FALSE(IsOver(ann_second));
  EXPECT_FALSE(IsOver(bob));
  broker_->reservations().Leave(ann_first);
  EXPECT_TRUE(IsOver(bob)) << "users take turns";
  EXPECT_FALSE(IsOver(ann_second));
  broker_->reservations().Leave(bob);
  EXPECT_TRUE(IsOver(ann_second));
  broker_->reservations().Leave(ann_second);
}

TEST_F(BrokerRoomsTest, APlaceIsToldWithoutTheNamesOfLeases) {
  ASSERT_TRUE(Device(64, 48).ok());
  const WaiterId before = Queue(32, "ann");
  const WaiterId room = Queue(20, "bob");
  const Reservations::Place view = *broker_->reservations().View(room);
  EXPECT_EQ(view.place, 2u);
  EXPECT_EQ(view.waiting, 2u);
  EXPECT_THAT(view.text, AllOf(HasSubstr("20.00MiB on GPU 0: behind user ann's request for 32.00MiB; "),
                               HasSubstr("16.00MiB can be promised, user kim has most: 48.00MiB"),
                               Not(HasSubstr("lease"))));
  broker_->reservations().Leave(before);
  EXPECT_EQ(broker_->reservations().View(room)->place, 1u);
  broker_->reservations().Leave(room);
}

TEST_F(BrokerRoomsTest, WhatBecomesFreeInItsTurnIsForTheLease) {
  const absl::StatusOr<LogicalId> device = Device(64, 0);
  ASSERT_TRUE(device.ok());
  const SessionId holder{1};
  broker_->AddSession(holder, {.pid = 1});
  broker_->AttachSession(holder, LeaseKey{last_lease_});
  const absl::StatusOr<LogicalId> other = Device(64, 0, {}, "bob");
  ASSERT_TRUE(other.ok());
  const SessionId late{2};
  broker_->AddSession(late, {.pid = 2});
  broker_->AttachSession(late, LeaseKey{last_lease_});
  const auto grow = [&](SessionId session, LogicalId of, std::uint64_t mib) {
    return broker_->Grow({.session = session,
                          .device = of,
                          .at_least = Bytes(mib * kMiB),
                          .wanted = Bytes(mib * kMiB),
                          .asked_at = now_,
                          .deadline = now_ + std::chrono::hours(1)});
  };
  std::vector<ChunkId> held;
  for (int i = 0; i < 32; ++i) held.push_back(grow(holder, *device, 2).chunks.front().id);
  const WaiterId room = Queue(16, "ann");
  EXPECT_FALSE(IsOver(room));
  const Broker::Answer waits = grow(late, *other, 2);
  ASSERT_TRUE(waits.wait.has_value());
  for (int i = 0; i < 8; ++i) {
    EXPECT_FALSE(IsOver(room));
    ASSERT_TRUE(broker_->Return(holder, *device, std::vector{held.back()}).ok());
    held.pop_back();
  }
  EXPECT_TRUE(IsOver(room));
  EXPECT_TRUE(AskAgain(*broker_, *waits.wait).wait.has_value()) << "it asked later";
  broker_->reservations().Leave(room);
  EXPECT_EQ(AskAgain(*broker_, *waits.wait).chunks.size(), 1u);
  broker_->ReturnAll(holder);
  broker_->ReturnAll(late);
}

// A program of another user holds the card, is idle, and has a release hook.
class BrokerRoomsGivingWayTest : public BrokerRoomsTest {
 protected:
  static constexpr SessionId kHolder{1};
  static constexpr SessionId kHook{2};
  void SetUp() override {
    BrokerRoomsTest::SetUp();
    const LogicalId device = *Device(64, 0);
    broker_->AddSession(kHolder, {.pid = 11});
    broker_->AttachSession(kHolder, LeaseKey{1});
    broker_->AddSession(kHook, {.pid = 12, .runs_release = true});
    broker_->AttachSession(kHook, LeaseKey{1});
    const Broker::Answer held = broker_->Grow({.session = kHolder,
                                               .device = device,
                                               .at_least = Bytes(64 * kMiB),
                                               .wanted = Bytes(64 * kMiB),
                                               .asked_at = now_,
                                               .deadline = now_});
    ASSERT_TRUE(held.status.ok()) << held.status;
    broker_->NoteLastUses({{.device = device, .at = now_ - std::chrono::minutes(1)}});
  }
  /// Whether a request of ann makes the holder give way.
  bool Asks() {
    const WaiterId room = Queue(16, "ann");
    const bool asks = !broker_->releases().TakeOrders(kHook).empty();
    if (asks) asked_ = room;
    return asks;
  }
  void Answer() {
    // The ask is over, and the lease may be asked anew.
    EXPECT_TRUE(broker_->releases().Answer(kHook, ReleaseId{++answered_}, ReleaseOutcome::kNotIdle).ok());
  }

  WaiterId asked_;
  std::uint64_t answered_ = 0;
};

TEST_F(BrokerRoomsGivingWayTest, ALeaseWhoseMakerLeavesPaysAtOnce) {
  ASSERT_TRUE(Asks());
  now_ += std::chrono::seconds(7);
  broker_->reservations().Leave(asked_);
  EXPECT_EQ(broker_->releases().counters().waited, std::chrono::seconds(7));
  Answer();
  now_ += std::chrono::seconds(6);
  EXPECT_FALSE(Asks());
  now_ += std::chrono::seconds(1);
  EXPECT_TRUE(Asks());
}

TEST_F(BrokerRoomsGivingWayTest, ALeaseWhoseMakerLeavesLongAfterTheAskPaysFromThenOn) {
  ASSERT_TRUE(Asks());
  now_ += std::chrono::seconds(7);
  Answer();
  now_ += std::chrono::minutes(10);
  broker_->reservations().Leave(asked_);
  now_ += std::chrono::seconds(8);
  EXPECT_TRUE(Asks()) << "it has paid";
}

TEST_F(BrokerRoomsGivingWayTest, ALeaseThatWasMadeElsewherePaysNothing) {
  ASSERT_TRUE(Asks());
  now_ += std::chrono::seconds(7);
  broker_->reservations().Leave(asked_, /*is_served=*/true);
  Answer();
  EXPECT_TRUE(Asks());
}

}  // namespace
}  // namespace lgpu
