// Programs of liblgpu that suspend themselves, on the fake driver's GPUs.

#include "absl/strings/str_cat.h"
#include "tests/e2e/cuda_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::StartsWith;

class CudaSuspensionTest : public CudaTest {};

TEST_F(CudaSuspensionTest, AnotherProgramUsesTheMemoryMeanwhile) {
  FAKE_ONLY();
  StartOnMachine();
  const std::uint64_t most = (machine_.state().cards[0].total * 6 / 10) & ~(kMiB - 1);
  auto holder = StartOnGpu();
  ASSERT_THAT(Ask(*holder, "open c timeout=2000"), StartsWith("ok "));
  const std::string large = Ask(*holder, absl::StrCat("numbers c large ", most, " 7"));
  const std::string small = Ask(*holder, "numbers c small 1000 8");
  ASSERT_THAT(large, StartsWith("ok 0x"));
  const Bytes used = machine_.Used(0);
  ASSERT_EQ(Ask(*holder, "suspend c"), "ok");
  EXPECT_LE(machine_.Used(0), used - Bytes(most));
  auto other = StartOnGpu();
  ASSERT_THAT(Ask(*other, "open c timeout=0"), StartsWith("ok "));
  EXPECT_THAT(Ask(*other, absl::StrCat("numbers c a ", most, " 1")), StartsWith("ok "));
  EXPECT_THAT(Ask(*holder, "resume c"), StartsWith("error RESOURCE_EXHAUSTED"));
  EXPECT_EQ(Ask(*other, "close c"), "ok");
  ASSERT_EQ(Ask(*holder, "resume c"), "ok");
  EXPECT_EQ(Ask(*holder, "digest large"), large);
  EXPECT_EQ(Ask(*holder, "digest small"), small);
  EXPECT_EQ(Ask(*holder, "work c"), "ok");
  ASSERT_EQ(Ask(*holder, "suspend c"), "ok");
  End(*holder);
}

TEST_F(CudaSuspensionTest, AProgramWithoutLgpudGivesItsMemoryToTheDriver) {
  FAKE_ONLY();
  StartOnMachine();
  auto holder = StartOnGpu();
  ASSERT_THAT(Ask(*holder, "open c endpoint=local card=1"), StartsWith("ok"));
  const std::string numbers = Ask(*holder, absl::StrCat("numbers c a ", 100 * kMiB, " 7"));
  const Bytes used = machine_.Used(1);
  ASSERT_EQ(Ask(*holder, "suspend c"), "ok");
  EXPECT_LE(machine_.Used(1), used - Bytes(100 * kMiB));
  ASSERT_EQ(Ask(*holder, "resume c"), "ok");
  EXPECT_EQ(Ask(*holder, "digest a"), numbers);
  End(*holder);
}

}  // namespace
}  // namespace lgpu::testing
