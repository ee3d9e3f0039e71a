#include "allocator/broker/unreturned_memory.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <vector>

#include "allocator/broker/card_observer.h"
#include "lgpu/bytes.h"
#include "tests/allocator/broker/requests_fixture.h"

namespace lgpu {
namespace {

class UnreturnedMemoryTest : public RequestsFixture {
 protected:
  // The session returns 64 MiB, and the backend drops its reference. `free_after`: as the card reports then.
  absl::Status Release(Bytes free_after) {
    StartReturning(chunk_);
    const CardReport before{.free = 100_MiB, .processes = {}};
    const CardReport after{.free = free_after, .processes = {}};
    EXPECT_TRUE(unreturned_.TakeCard(card_));
    const std::vector<ChunkId> chunks = {chunk_};
    unreturned_.StartRelease(chunks, {{card_, before}});
    EXPECT_TRUE(unreturned_.CardsToLookAt().empty()) << "the card is taken";
    std::vector<absl::Status> results = {absl::OkStatus()};
    unreturned_.Doubt(card_, before, after, chunks, results);
    ChunkTable::Missing missing;
    chunks_.Settle(chunk_, results[0], missing);
    EXPECT_FALSE(unreturned_.GiveCard(card_));
    return results[0];
  }

  UnreturnedMemory unreturned_{tables_};
  const LogicalId device_ = AddDevice(128_MiB);
  const ChunkId chunk_ = Hold(kSession, device_, 64_MiB);
};

TEST_F(UnreturnedMemoryTest, MemoryThatTheCardHasBackIsNotDoubted) {
  EXPECT_TRUE(Release(164_MiB).ok());
  EXPECT_TRUE(View().held.is_zero());
  EXPECT_TRUE(unreturned_.CardsToLookAt().empty());
  EXPECT_TRUE(unreturned_.is_idle());
}

TEST_F(UnreturnedMemoryTest, MemoryThatAProgramKeepsIsChargedToItUntilTheCardHasItBack) {
  EXPECT_TRUE(absl::IsUnavailable(Release(100_MiB)));
  EXPECT_TRUE(unreturned_.Watches(card_));
  ASSERT_EQ(unreturned_.CardsToLookAt().size(), 1u);
  const CardReport kept{.free = 100_MiB, .processes = {}};
  EXPECT_TRUE(unreturned_.Back(card_, &kept).empty());
  EXPECT_TRUE(unreturned_.TakeUnreturned().empty()) << "the driver may need a moment";
  now_ += std::chrono::seconds(3);
  EXPECT_TRUE(unreturned_.Back(card_, &kept).empty());
  const std::vector<CardObserver::Unreturned> found = unreturned_.TakeUnreturned();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].session, kSession);
  EXPECT_EQ(found[0].bytes, 64_MiB);
  EXPECT_TRUE(unreturned_.TakeUnreturned().empty()) << "told once";
  EXPECT_TRUE(unreturned_.CardsToLookAt().empty()) << "it is asked less often from here on";
  EXPECT_TRUE(absl::IsFailedPrecondition(tables_.CheckMayGrow(tables_.sessions.at(kSession))));

  const CardReport back{.free = 164_MiB, .processes = {}};
  EXPECT_EQ(unreturned_.Back(card_, &back), std::set<ChunkId>{chunk_});
  Confirm(chunk_);
  EXPECT_TRUE(tables_.CheckMayGrow(tables_.sessions.at(kSession)).ok());
  EXPECT_TRUE(unreturned_.CardsToLookAt().empty());
  EXPECT_TRUE(unreturned_.is_idle());
  ExpectInStep();
}

TEST_F(UnreturnedMemoryTest, ACardWithoutReportsIsTrusted) {
  EXPECT_FALSE(Release(100_MiB).ok());
  EXPECT_EQ(unreturned_.Back(card_, nullptr), std::set<ChunkId>{chunk_});
}

TEST_F(UnreturnedMemoryTest, SimulatedCardsAreNotAsked) {
  EXPECT_TRUE(unreturned_.IsReal(tables_.chunks.at(chunk_)));
  tables_.cards.at(card_).device.simulated = true;
  EXPECT_FALSE(unreturned_.IsReal(tables_.chunks.at(chunk_)));
}

TEST_F(UnreturnedMemoryTest, ACardIsTakenByOneThreadWhichIsToldOfOthers) {
  EXPECT_TRUE(unreturned_.TakeCard(card_));
  EXPECT_FALSE(unreturned_.IsPutOff(card_));
  EXPECT_FALSE(unreturned_.TakeCard(card_));
  EXPECT_TRUE(unreturned_.IsPutOff(card_));
  EXPECT_TRUE(unreturned_.GiveCard(card_));
  EXPECT_FALSE(unreturned_.IsTaken(card_));
  EXPECT_TRUE(unreturned_.IsPutOff(card_)) << "what was put off comes first";
  unreturned_.ForgetPutOff(card_);
  EXPECT_TRUE(unreturned_.TakeCard(card_));
  EXPECT_FALSE(unreturned_.GiveCard(card_));
}

}  // namespace
}  // namespace lgpu
