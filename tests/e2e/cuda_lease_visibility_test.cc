// CUDA_VISIBLE_DEVICES of programs inside a lease on real GPUs, as far as liblgpu starts the driver.

#include "absl/strings/str_cat.h"
#include "tests/e2e/cuda_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CudaLeaseVisibilityTest : public CudaTest {
 protected:
  // Device 0 of the driver is the fastest card, the second one of the machine.
  CudaLeaseVisibilityTest() : CudaTest({{.speed = 1}, {.speed = 2}}) {}
  void MakeLease(const std::vector<int>& cards) {
    v1::CreateLeaseRequest request = OneDevice(32 * kMiB, /*preallocate=*/false, /*lasting=*/true);
    request.set_name("job");
    const v1::LogicalDeviceSpec device = request.devices(0);
    request.clear_devices();
    for (const int card : cards) {
      *request.add_devices() = device;
      request.mutable_devices(request.devices_size() - 1)->set_card_uuid(machine_.uuid(card));
    }
    const absl::StatusOr<v1::Lease> made = control_->CreateLease(request);
    ASSERT_TRUE(made.ok()) << made.status();
  }
  std::unique_ptr<ChildProgram> StartInside(const std::string& visible) {
    return StartOnGpu({{"LGPU_LEASE", "job"}, {"CUDA_VISIBLE_DEVICES", visible}});
  }
};

TEST_F(CudaLeaseVisibilityTest, AnIndexIsAPlaceInTheLeasesList) {
  FAKE_ONLY();
  StartOnMachine();
  MakeLease({0});
  auto client = StartInside("0");
  EXPECT_EQ(Ask(*client, "visible"), "ok " + machine_.uuid(0));
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 8 * kMiB)), StartsWith("ok "));
  EXPECT_GT(machine_.Used(0), Bytes());
  EXPECT_TRUE(machine_.Used(1).is_zero());
  End(*client);
}

TEST_F(CudaLeaseVisibilityTest, AContextHasTheDevicesOfTheVisibleCardsOnly) {
  FAKE_ONLY();
  StartOnMachine();
  MakeLease({1, 0});
  // A Context without a Config before it: it starts the driver itself.
  auto client = StartInside("1");
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 8 * kMiB)), StartsWith("ok "));
  EXPECT_GT(machine_.Used(0), Bytes());
  EXPECT_EQ(Stats().leases(0).devices(1).used_bytes(), 8 * kMiB);
  EXPECT_EQ(Ask(*client, "visible"), "ok " + machine_.uuid(0)) << "the variable has been rewritten";
  End(*client);
}

TEST_F(CudaLeaseVisibilityTest, AUuidThatIsNotTheLeasesIsAnErrorThatNamesTheLeasesCards) {
  FAKE_ONLY();
  StartOnMachine();
  MakeLease({0});
  auto client = StartInside(machine_.uuid(1));
  EXPECT_EQ(Ask(*client, "visible"), "ok");
  EXPECT_THAT(Ask(*client, "open c"), AllOf(StartsWith("error NOT_FOUND"), HasSubstr(machine_.uuid(0)),
                                            HasSubstr("which is the UUID of none of the GPUs")));
  End(*client);
}

}  // namespace
}  // namespace lgpu::testing
