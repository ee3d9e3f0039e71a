// Programs that move their contents by themselves, by order: what they need to come back is guaranteed.

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include "allocator/broker/lease_suspensions.h"
#include "tests/allocator/broker/charges_fixture.h"

namespace lgpu {
namespace {

using std::chrono::seconds;

constexpr LeaseKey kMovingLease{1};

/// A card of 1 GiB.
class SuspendsItselfTest : public BrokerChargesTest {
 protected:
  SuspendsItselfTest() : BrokerChargesTest(1_GiB) {}

  LeaseSuspensions& suspensions() { return broker_->suspensions(); }
  /// A device of ann's lease.
  LogicalId Add(Bytes limit, Bytes guarantee = {}) {
    const auto id = broker_->AddDevice({.card = Card(0),
                                        .limit = limit,
                                        .guarantee = guarantee,
                                        .lease = kMovingLease,
                                        .device_name = "/device:GPU:0",
                                        .lease_name = "ann"});
    EXPECT_TRUE(id.ok()) << id.status();
    return *id;
  }
};

TEST_F(SuspendsItselfTest, WhatAProgramNeedsToComeBackIsGuaranteedUntilItIsBack) {
  const LogicalId device = Add(1_GiB, 64_MiB);
  const SessionId ann = Session(1, kMovingLease);
  ASSERT_EQ(suspensions().BeginOwn(kMovingLease, ann, {{device, 600_MiB}}), absl::OkStatus());
  suspensions().Park(kMovingLease);
  EXPECT_EQ(suspensions().NeedOf(kMovingLease).at(Card(0)), 600_MiB);
  ASSERT_EQ(suspensions().Charges(kMovingLease).size(), 1u) << "for the journal";
  EXPECT_EQ(suspensions().Charges(kMovingLease)[0].bytes, 600_MiB);
  const Bytes free = CardFree();
  ASSERT_EQ(suspensions().TakeBack(kMovingLease, {}), absl::OkStatus());
  Check();
  EXPECT_EQ(CardFree(), free - 600_MiB) << "no other lease gets it";
  const Broker::Answer grown = Grow(ann, device, 600_MiB);
  EXPECT_TRUE(grown.status.ok()) << "it is not held back: " << grown.status;
  suspensions().End(kMovingLease);
  Check();
  EXPECT_EQ(CardFree(), free - 600_MiB);
  for (const Chunk& chunk : grown.chunks) {
    ASSERT_TRUE(broker_->Return(ann, device, std::vector<ChunkId>{chunk.id}).ok());
  }
  EXPECT_EQ(CardFree(), free - 64_MiB) << "its guarantee is as before";
}

TEST_F(SuspendsItselfTest, WhatIsGuaranteedForAWhileMakesNoRequestHopeless) {
  const LogicalId device = Add(1_GiB);
  const SessionId ann = Session(1, kMovingLease);
  ASSERT_EQ(suspensions().BeginOwn(kMovingLease, ann, {{device, 600_MiB}}), absl::OkStatus());
  suspensions().Park(kMovingLease);
  ASSERT_EQ(suspensions().TakeBack(kMovingLease, {}), absl::OkStatus());
  const LogicalId other = Device(1_GiB, LeaseKey{2});
  const Broker::Answer waiting = Grow(Session(2, LeaseKey{2}), other, 700_MiB, seconds(60));
  ASSERT_TRUE(waiting.wait) << waiting.status;
  suspensions().End(kMovingLease);
  Check();
  const std::optional<Broker::Answer> answer = broker_->TakeAnswer(*waiting.wait);
  EXPECT_TRUE(answer && answer->status.ok()) << "the program took none of it";
}

TEST_F(SuspendsItselfTest, WhatItNeedsIsRoundedAsGuaranteesAre) {
  const LogicalId first = Add(101_MiB);
  const LogicalId second = Add(101_MiB);
  const SessionId ann = Session(1, kMovingLease);
  ASSERT_EQ(suspensions().BeginOwn(kMovingLease, ann, {{first, 102_MiB}, {second, Bytes(1)}}),
            absl::OkStatus());
  suspensions().Park(kMovingLease);
  EXPECT_EQ(suspensions().NeedOf(kMovingLease).at(Card(0)), 104_MiB);
  const Bytes free = CardFree();
  ASSERT_EQ(suspensions().TakeBack(kMovingLease, {}), absl::OkStatus());
  EXPECT_EQ(CardFree(), free - 104_MiB);
  suspensions().End(kMovingLease);
  Check();
  EXPECT_EQ(CardFree(), free);
}

TEST_F(SuspendsItselfTest, AnotherProgramOfTheLeaseDoesNotGetWhatOneNeedsToComeBack) {
  const LogicalId device = Add(1_GiB);
  const SessionId ann = Session(1, kMovingLease);
  ASSERT_EQ(suspensions().BeginOwn(kMovingLease, ann, {{device, 600_MiB}}), absl::OkStatus());
  suspensions().Park(kMovingLease);
  const SessionId second{2};
  broker_->AddSession(second, {.pid = 1002, .waker = wakers_[2], .waits_longer = true});
  broker_->AttachSession(second, kMovingLease);
  const Broker::Answer other = Grow(second, device, 600_MiB, seconds(5));
  ASSERT_TRUE(other.wait);
  ASSERT_EQ(suspensions().TakeBack(kMovingLease, {}), absl::OkStatus());
  EXPECT_FALSE(broker_->TakeAnswer(*other.wait).has_value());
  EXPECT_TRUE(Grow(ann, device, 600_MiB).status.ok());
  suspensions().End(kMovingLease);
  Check();
}

TEST_F(SuspendsItselfTest, AProgramThatEndedInHostMemoryNeedsNothing) {
  const LogicalId device = Add(1_GiB);
  const SessionId ann = Session(1, kMovingLease);
  ASSERT_EQ(suspensions().BeginOwn(kMovingLease, ann, {{device, 600_MiB}}), absl::OkStatus());
  suspensions().Park(kMovingLease);
  broker_->RemoveSession(ann);
  const Bytes free = CardFree();
  EXPECT_TRUE(suspensions().NeedOf(kMovingLease).empty());
  ASSERT_EQ(suspensions().TakeBack(kMovingLease, {}), absl::OkStatus());
  suspensions().End(kMovingLease);
  Check();
  EXPECT_EQ(CardFree(), free);
}

}  // namespace
}  // namespace lgpu
