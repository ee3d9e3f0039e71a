// Preallocated devices, guarantees and resizes, through a Broker.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "allocator/broker/broker.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/broker_rig.h"
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using Clock = std::chrono::steady_clock;

TEST(BrokerTest, ALoweredPreallocatedLimitIsStillGrantedInFull) {
  Rig rig(kMiB * 256);
  const SessionId session = rig.Session(1);
  const LogicalId device = *rig.Device(kMiB * 64, kLease, true);
  // All small chunks are in use, so that only large ones are left.
  std::vector<Chunk> small;
  while (true) {
    const Broker::Answer answer = rig.Grow(session, device, kMiB * 2);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    ASSERT_EQ(answer.chunks.size(), 1u);
    if (answer.chunks[0].bytes > kMiB * 2) {
      ASSERT_TRUE(rig.broker().Return(session, device, Ids(answer.chunks)).ok());
      break;
    }
    small.push_back(answer.chunks[0]);
  }
  ASSERT_EQ(small.size(), 16u);
  const Bytes limit = kMiB * 42;
  ASSERT_TRUE(rig.broker().ResizeDevice(device, limit, Bytes()).ok());
  for (Bytes held = kMiB * 32; held < limit; held += kMiB * 2) {
    const Broker::Answer answer = rig.Grow(session, device, kMiB * 2);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_TRUE(rig.broker().CheckInvariants().ok()) << rig.broker().CheckInvariants();
  }
  EXPECT_EQ(rig.Card().view.held, limit);
  EXPECT_EQ(GetRefusal(rig.Grow(session, device, kMiB * 2).status).value_or(Refusal()).reason,
            RefusalReason::kLimit);
  // As much comes back to the device as its limit promises, and no more.
  rig.broker().ReturnAll(session);
  EXPECT_EQ(rig.Card().view.held, limit);
}

TEST(BrokerTest, PreallocatedMemoryCannotFail) {
  Rig rig(kMiB * 256);
  const SessionId session = rig.Session(1);
  const LogicalId device = *rig.Device(kMiB * 128, kLease, true);
  EXPECT_EQ(rig.Card().view.held, kMiB * 128);
  rig.faults().FailFrom(1);
  Bytes sum;
  std::vector<ChunkId> all;
  while (sum < kMiB * 128) {
    const Broker::Answer answer = rig.Grow(session, device, kMiB * 2);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    for (const Chunk& chunk : answer.chunks) {
      sum += chunk.bytes;
      all.push_back(chunk.id);
    }
  }
  EXPECT_EQ(sum, kMiB * 128);
  EXPECT_FALSE(rig.Grow(session, device, kMiB * 2).status.ok());
  rig.faults().Heal();
  ASSERT_TRUE(rig.broker().Return(session, device, all).ok());
  EXPECT_TRUE(rig.Grow(session, device, kMiB * 128).status.ok());
  rig.broker().ReturnAll(session);
  EXPECT_EQ(rig.Card().view.held, kMiB * 128);
  rig.broker().RemoveDevice(device);
  EXPECT_EQ(rig.Card().view.held, Bytes());
  EXPECT_TRUE(rig.broker().CheckInvariants().ok());
}

// A process of the lease that keeps a returned chunk, or cut its memory off, cannot harm the next one.
TEST(BrokerTest, APreallocatedChunkIsGrantedOnceAndReplacedByAnEmptyOne) {
  testing::CountingBackend backend({kMiB * 64}, kMiB * 2);
  const std::unique_ptr<Broker> broker = MakeBroker(backend);
  const LogicalId device = *broker->AddDevice(
      {.card = broker->Cards().front().id, .limit = kMiB * 8, .preallocate = true, .lease = kLease});
  const auto grow = [&](std::uint64_t session) {
    return broker->Grow({.session = SessionId{session},
                         .device = device,
                         .at_least = kMiB * 8,
                         .wanted = kMiB * 8,
                         .asked_at = Clock::now(),
                         .deadline = Clock::now()});
  };
  for (const std::uint64_t id : {1, 2, 3}) {
    broker->AddSession(SessionId{id}, {.pid = 1});
    broker->AttachSession(SessionId{id}, kLease);
  }
  const Broker::Answer first = grow(1);
  ASSERT_EQ(first.chunks.size(), 4u) << first.status;
  ASSERT_TRUE(broker->Return(SessionId{1}, device, Ids(first.chunks)).ok());
  EXPECT_EQ(broker->Find(device)->missing, Bytes());
  const Broker::Answer second = grow(2);
  ASSERT_EQ(second.chunks.size(), 4u) << second.status;
  for (const Chunk& chunk : second.chunks) {
    EXPECT_THAT(Ids(first.chunks), ::testing::Not(::testing::Contains(chunk.id)));
  }
  // Also where the holder dies.
  broker->StartDraining(SessionId{2});
  EXPECT_THAT(broker->FinishDraining({SessionId{2}}), ElementsAre(SessionId{2}));
  // Where a new chunk cannot be made at once, the next request that needs it tries again.
  const Broker::Answer third = grow(3);
  ASSERT_EQ(third.chunks.size(), 4u) << third.status;
  backend.FailCreateAfter(0);
  ASSERT_TRUE(broker->Return(SessionId{3}, device, Ids(third.chunks)).ok());
  backend.FailCreateAfter(-1);
  EXPECT_EQ(broker->Find(device)->missing, kMiB * 8);
  EXPECT_EQ(grow(1).chunks.size(), 4u);
  EXPECT_EQ(broker->Find(device)->missing, Bytes());
  EXPECT_TRUE(broker->CheckInvariants().ok()) << broker->CheckInvariants();
}

TEST(BrokerTest, AGuaranteeThatGoesIsForThoseWhoWait) {
  Rig rig(kMiB * 64);
  const SessionId session = rig.Session(1);
  const LogicalId device = *rig.Device(kMiB * 64);
  const absl::StatusOr<LogicalId> guaranteed = rig.broker().AddDevice({.card = rig.Card().id,
                                                                       .limit = kMiB * 32,
                                                                       .guarantee = kMiB * 32,
                                                                       .preallocate = false,
                                                                       .lease = LeaseKey{2},
                                                                       .device_name = "/device:GPU:0",
                                                                       .lease_name = "lease-2",
                                                                       .owner = "kim"});
  ASSERT_TRUE(guaranteed.ok()) << guaranteed.status();
  const SessionId idle = rig.Session(2, LeaseKey{3});
  const LogicalId held = *rig.Device(kMiB * 64, LeaseKey{3});
  ASSERT_TRUE(rig.Grow(idle, held, kMiB * 8).status.ok());
  const Broker::Answer waiting = rig.Grow(session, device, kMiB * 32, std::chrono::hours(1));
  ASSERT_TRUE(waiting.wait.has_value()) << waiting.status;
  rig.broker().RemoveDevice(*guaranteed);
  const Broker::Answer granted = AskAgain(rig.broker(), *waiting.wait);
  EXPECT_FALSE(granted.wait.has_value());
  EXPECT_EQ(granted.chunks.size(), 16u) << granted.status;
}

// A backend that could not confirm a returned chunk must not cost a preallocated device its memory.
TEST(BrokerTest, AResizeCountsOnlyMemoryThatIsThere) {
  Rig rig(kMiB * 256, {.code = absl::StatusCode::kResourceExhausted, .cleanup_fails = true});
  const SessionId session = rig.Session(1);
  const LogicalId device = *rig.Device(kMiB * 128, kLease, true);
  rig.faults().FailFrom(1);
  ASSERT_TRUE(rig.broker().ResizeDevice(device, kMiB * 64, Bytes()).ok());
  EXPECT_EQ(rig.broker().Find(device)->leaving, kMiB * 64);
  ASSERT_TRUE(rig.broker().ResizeDevice(device, kMiB * 64, Bytes()).ok());
  EXPECT_EQ(rig.broker().Find(device)->leaving, kMiB * 64);
  EXPECT_TRUE(absl::IsUnavailable(rig.broker().ResizeDevice(device, kMiB * 128, Bytes())));
  EXPECT_EQ(rig.broker().Find(device)->limit, kMiB * 64);
  EXPECT_TRUE(rig.broker().CheckInvariants().ok()) << rig.broker().CheckInvariants();
  rig.faults().Heal();
  ASSERT_TRUE(rig.broker().RetryUnconfirmed());
  ASSERT_TRUE(rig.broker().ResizeDevice(device, kMiB * 128, Bytes()).ok());
  const Broker::Answer granted = rig.Grow(session, device, kMiB * 128);
  EXPECT_TRUE(granted.status.ok()) << granted.status;
  EXPECT_TRUE(rig.broker().CheckInvariants().ok()) << rig.broker().CheckInvariants();
}

TEST(BrokerTest, AResizeThatFailsLeavesThePreallocatedChunksAsTheyWere) {
  Rig rig(kMiB * 256, {.code = absl::StatusCode::kResourceExhausted, .cleanup_fails = false});
  const SessionId session = rig.Session(1);
  const LogicalId device = *rig.Device(kMiB * 64, kLease, true);
  rig.faults().FailCall(3);  // after two large chunks
  EXPECT_FALSE(rig.broker().ResizeDevice(device, kMiB * 164, Bytes()).ok());
  EXPECT_EQ(rig.broker().Find(device)->limit, kMiB * 64);
  EXPECT_EQ(rig.Card().view.held, kMiB * 64);
  const Broker::Answer granted = rig.Grow(session, device, kMiB * 2);
  ASSERT_EQ(granted.chunks.size(), 1u) << granted.status;
  EXPECT_EQ(granted.chunks.front().bytes, kMiB * 2);
  EXPECT_TRUE(rig.broker().CheckInvariants().ok()) << rig.broker().CheckInvariants();
}

}  // namespace
}  // namespace lgpu
