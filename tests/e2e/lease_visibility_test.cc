// CUDA_VISIBLE_DEVICES of programs inside a lease on simulated GPUs: it counts the lease's GPUs.

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class LeaseVisibilityTest : public E2eTest {
 protected:
  void SetUp() override {
    E2eTest::SetUp();
    StartDaemon({.simulate = "3x256MiB"});
    const v1::StatsSnapshot stats = Stats();
    for (const v1::CardStats& card : stats.cards()) uuids_.push_back(card.uuid());
  }
  /// A lease "job" with a logical device on each of these GPUs, in this order.
  void MakeLease(const std::vector<std::size_t>& gpus) {
    v1::CreateLeaseRequest request = OneDevice(32 * kMiB, /*preallocate=*/false, /*lasting=*/true);
    request.set_name("job");
    const v1::LogicalDeviceSpec device = request.devices(0);
    request.clear_devices();
    for (const std::size_t gpu : gpus) {
      *request.add_devices() = device;
      request.mutable_devices(request.devices_size() - 1)->set_card_uuid(uuids_.at(gpu));
    }
    const absl::StatusOr<v1::Lease> made = control_->CreateLease(request);
    ASSERT_TRUE(made.ok()) << made.status();
  }
  std::unique_ptr<ChildProgram> StartInside(std::optional<std::string> visible) {
    return StartClient({{"LGPU_LEASE", "job"}, {"CUDA_VISIBLE_DEVICES", std::move(visible)}});
  }
  std::string Visible(std::optional<std::string> value) {
    return Ask(*StartInside(std::move(value)), "visible");
  }
  std::uint64_t UsedOf(int device) { return Stats().leases(0).devices(device).used_bytes(); }

  std::vector<std::string> uuids_;
};

TEST_F(LeaseVisibilityTest, AnIndexIsAPlaceInTheLeasesList) {
  MakeLease({2, 1});
  EXPECT_EQ(Visible(std::nullopt), absl::StrCat("ok ", uuids_[2], " ", uuids_[1])) << "as in a container";
  EXPECT_EQ(Visible("0"), "ok " + uuids_[2]);
  EXPECT_EQ(Visible("1,0"), absl::StrCat("ok ", uuids_[1], " ", uuids_[2]));
  EXPECT_EQ(Visible("1,2,0"), "ok " + uuids_[1]) << "an invalid index ends the list";
  EXPECT_EQ(Visible(uuids_[1]), "ok " + uuids_[1]);
  for (const char* const none : {"", "-1", "2"}) EXPECT_EQ(Visible(none), "ok") << none;
  EXPECT_EQ(Visible(uuids_[0]), "ok") << "it is not the lease's";
}

TEST_F(LeaseVisibilityTest, AContextHasTheDevicesOfTheVisibleCardsOnly) {
  MakeLease({1, 0, 1});
  auto client = StartInside("1");
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, absl::StrCat("alloc c t ", 8 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(UsedOf(0), 0U);
  EXPECT_EQ(UsedOf(1), 8 * kMiB) << "GPU:0 of the program is GPU:1 of the lease";
  auto other = StartInside("0");
  ASSERT_THAT(Ask(*other, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*other, "resize c 1 16777216"), "ok");
  EXPECT_EQ(Stats().leases(0).devices(2).limit_bytes(), 16 * kMiB);
  EXPECT_EQ(Ask(*client, "close c"), "ok");
  EXPECT_EQ(Ask(*other, "close c"), "ok");
}

TEST_F(LeaseVisibilityTest, WhereNothingIsHiddenTheDevicesHaveTheLeasesOrder) {
  MakeLease({1, 0, 1});
  auto client = StartInside(absl::StrCat(uuids_[1], ",", uuids_[0]));
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, "resize c 1 16777216"), "ok");
  EXPECT_EQ(Stats().leases(0).devices(1).limit_bytes(), 16 * kMiB);
  EXPECT_EQ(Ask(*client, "close c"), "ok");
}

TEST_F(LeaseVisibilityTest, AListThatLeavesNoCardIsAnErrorThatSaysHowIndicesCount) {
  MakeLease({1});
  auto client = StartInside("1");
  EXPECT_THAT(Ask(*client, "open c"),
              AllOf(StartsWith("error NOT_FOUND no GPU is visible to this process"), HasSubstr(uuids_[1]),
                    HasSubstr("inside a lease an index counts the lease's GPUs, from 0")));
}

TEST_F(LeaseVisibilityTest, AProgramOutsideOfTheLeaseThatAttachesCountsTheMachinesCards) {
  MakeLease({1});
  auto client = StartClient({{"CUDA_VISIBLE_DEVICES", "1"}});
  EXPECT_EQ(Ask(*client, "visible"), "ok " + uuids_[1]);
  EXPECT_THAT(Ask(*client, "open c lease=job"), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "close c"), "ok");
}

}  // namespace
}  // namespace lgpu::testing
