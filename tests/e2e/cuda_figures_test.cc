// What lgpud measures where a driver's sizes are known at run time alone.

#include "absl/strings/str_cat.h"
#include "tests/e2e/cuda_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::StartsWith;

class CudaSizesTest : public CudaTest {
 protected:
  CudaSizesTest()
      : CudaTest({FakeMachine::CardOptions{
            .context_step = 8_MiB, .first_module = 24_MiB, .first_create = 4_MiB}}) {}

  bool OverheadBecomes(const ChildProgram& client, std::uint64_t bytes) {
    return Eventually([&] {
      const auto session = SessionOf(client.pid());
      return session && session->overhead_bytes() == bytes;
    });
  }
  bool FreeBecomes(std::uint64_t bytes) {
    return Eventually([&] { return Stats().cards(0).free_bytes() == bytes; });
  }
};

TEST_F(CudaSizesTest, ContextsOfDifferentSizesAreMeasuredAndSoIsTheirGrowth) {
  FAKE_ONLY();
  StartOnMachine();
  auto first = StartOnGpu();
  auto second = StartOnGpu();
  for (ChildProgram* const client : {first.get(), second.get()}) {
    ASSERT_THAT(Ask(*client, absl::StrCat("open c timeout=0 limit=", 32 * kMiB)), StartsWith("ok "));
  }
  EXPECT_TRUE(OverheadBecomes(*first, 16 * kMiB)) << Stats().DebugString();
  EXPECT_TRUE(OverheadBecomes(*second, 24 * kMiB)) << Stats().DebugString();
  ASSERT_THAT(Ask(*first, absl::StrCat("alloc c t ", kMiB)), StartsWith("ok "));
  ASSERT_EQ(Ask(*first, "sum c t 2"), absl::StrCat("ok 524288 ", kGpu));
  EXPECT_TRUE(OverheadBecomes(*first, 40 * kMiB)) << "its first module came";
  EXPECT_TRUE(OverheadBecomes(*second, 24 * kMiB)) << "another program's context is as it was";
  EXPECT_EQ(Stats().cards(0).overhead_bytes(), 64 * kMiB);
  End(*first);
  EXPECT_TRUE(Eventually([&] { return Stats().cards(0).overhead_bytes() == 24 * kMiB; }));
  End(*second);
}

TEST_F(CudaSizesTest, MemoryThatLgpudTakesWithItsFirstChunkIsNotPromised) {
  FAKE_ONLY();
  StartOnMachine();
  EXPECT_TRUE(FreeBecomes(256 * kMiB));
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, absl::StrCat("open c limit=", 64 * kMiB)), StartsWith("ok "));
  for (const char* const tensor : {"t", "u"}) {
    ASSERT_THAT(Ask(*client, absl::StrCat("alloc c ", tensor, " ", 8 * kMiB)), StartsWith("ok "));
    EXPECT_TRUE(Eventually([&] { return Stats().cards(0).foreign_bytes() == 4 * kMiB; }))
        << tensor << ": the first chunk alone takes it\n"
        << Stats().DebugString();
  }
  End(*client);
  EXPECT_TRUE(FreeBecomes(252 * kMiB)) << "lgpud keeps it";
}

}  // namespace
}  // namespace lgpu::testing
