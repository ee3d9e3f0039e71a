// Addresses in the place of handles, and wrong use of both.

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <string>

#include "tests/support/pool_fixture.h"
#include "tests/support/test_seed.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;

class PoolFindTest : public PoolFixture {
 protected:
  void ExpectWrong(const absl::Status& status, const std::string& text) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
};

TEST_F(PoolFindTest, FindsAndFreesByAddress) {
  Open({});
  const Block small = Must(Bytes(1000));
  const Block large = Must(3_MiB);
  const absl::StatusOr<Block> found = pool_->Find(small.address);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, small);
  EXPECT_EQ(*pool_->Find(large.address), large);
  EXPECT_TRUE(pool_->Free(large.address).ok());
  EXPECT_TRUE(pool_->Free(small.address).ok());
  EXPECT_EQ(pool_->stats().live_blocks, 0u);
  ExpectEmptyAfterTrim();
}

TEST_F(PoolFindTest, WrongAddressesAreErrorsThatNameTheMemoryThere) {
  Open({});
  const Block block = Must(8_KiB, {.op = "MatMul"});
  const Block large = Must(2_MiB);
  int host = 0;
  ExpectWrong(pool_->Free(&host), "outside this pool's region");
  ExpectWrong(pool_->Free(nullptr), "outside this pool's region");
  ExpectWrong(pool_->Free(block.address + 1),
              "1 bytes inside this address lies a live block of 8192 bytes of op MatMul");
  ExpectWrong(pool_->Free(block.address + 512), "512 bytes inside");
  ExpectWrong(pool_->Find(large.address + (1_MiB).count()).status(), "inside");
  MustFree(block);
  ExpectWrong(pool_->Free(block.address), "freed before");
  MustFree(large);
  ExpectWrong(pool_->Free(large.address), "freed before, or never allocated");
  ExpectEmptyAfterTrim();
}

TEST_F(PoolFindTest, WrongHandlesAreErrorsThatSayWhy) {
  Open({});
  for (const Bytes bytes : {8_KiB, 2_MiB}) {
    const Block block = Must(bytes);
    Block wrong = block;
    wrong.bytes = bytes - 512_B;
    ExpectWrong(pool_->Free(wrong), "bytes");
    wrong = block;
    wrong.address += 512;
    ExpectWrong(pool_->Free(wrong), "inside");
    wrong = block;
    ++wrong.generation;
    ExpectWrong(pool_->Free(wrong), "freed before");
    wrong = block;
    wrong.node += 12345;
    ExpectWrong(pool_->Free(wrong), "live block");
    wrong.node = ~std::uint32_t{0};
    ExpectWrong(pool_->Free(wrong), "live block");
    ExpectWrong(pool_->UseOn(block, 1), "one stream only");
    MustFree(block);
    ExpectWrong(pool_->Free(block), "freed before");
    const Block again = Must(bytes);
    EXPECT_EQ(again.address, block.address);
    ExpectWrong(pool_->Free(block), "freed before");
    MustFree(again);
  }
  ExpectWrong(pool_->Free(Block{}), "outside");
  ExpectEmptyAfterTrim();
}

TEST_F(PoolFindTest, TheIndexKeepsUpWithEverything) {
  Open({.limit = 64_MiB});
  std::mt19937 random(TestSeed());
  std::map<std::byte*, Block> live;
  for (int i = 0; i < 6000; ++i) {
    if (live.empty() || random() % 8 < 5) {
      const auto block = pool_->Allocate(Bytes(1 + random() % (random() % 16 == 0 ? 2'000'000 : 20'000)));
      if (block.ok()) {
        ASSERT_TRUE(live.emplace(block->address, *block).second);
      }
    } else {
      const auto victim = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      ASSERT_EQ(*pool_->Find(victim->first), victim->second);
      ASSERT_TRUE((random() % 2 == 0 ? pool_->Free(victim->first) : pool_->Free(victim->second)).ok());
      ASSERT_FALSE(pool_->Find(victim->first).ok());
      live.erase(victim);
    }
    if (random() % 512 == 0) {
      ASSERT_TRUE(pool_->Trim(8_MiB).ok());
    }
  }
  for (const auto& [address, block] : live) {
    ASSERT_EQ(*pool_->Find(address), block);
    ASSERT_TRUE(pool_->Free(address).ok());
  }
  ExpectEmptyAfterTrim();
}

}  // namespace
}  // namespace lgpu
