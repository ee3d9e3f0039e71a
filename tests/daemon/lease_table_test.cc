#include "daemon/leases/lease_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "tests/daemon/daemon_parts.h"
#include "tests/daemon/temporary_directory.h"

namespace lgpu::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class LeaseTableTest : public ::testing::Test {
 protected:
  absl::StatusOr<v1::Lease> Create(const Caller& caller, const std::string& name) {
    return parts_.CreateLease(caller, name);
  }

  const TemporaryDirectory directory_;
  DaemonParts parts_{directory_.path()};
  LeaseTable& leases_ = parts_.leases();
  const Caller anna_{.uid = 61301, .session = nullptr};
  const Caller ben_{.uid = 61302, .session = nullptr};
  const Caller root_{.uid = 0, .session = nullptr};
};

TEST_F(LeaseTableTest, ALeaseIsFoundByNameAndById) {
  const absl::StatusOr<v1::Lease> made = Create(anna_, "train");
  ASSERT_EQ(made.status(), absl::OkStatus());
  EXPECT_EQ(leases_.Get(anna_, "train")->id(), made->id());
  EXPECT_EQ(leases_.Get(anna_, made->id())->name(), "train");
  EXPECT_EQ(made->devices(0).memory_limit_bytes(), (32_MiB).count());
}

TEST_F(LeaseTableTest, AnotherUsersLeaseIsNotFoundAndRootSeesAll) {
  ASSERT_TRUE(Create(anna_, "train").ok());
  EXPECT_TRUE(absl::IsNotFound(leases_.Get(ben_, "train").status()));
  EXPECT_TRUE(absl::IsNotFound(leases_.Remove(ben_, "train", DaemonParts::Soon())));
  EXPECT_THAT(leases_.List(ben_), SizeIs(0));
  EXPECT_THAT(leases_.List(root_), SizeIs(1));
  EXPECT_TRUE(leases_.Get(root_, "train").ok());
}

TEST_F(LeaseTableTest, AnUnknownLeaseIsTheSameErrorAsAnotherUsers) {
  ASSERT_TRUE(Create(anna_, "train").ok());
  const std::string hidden(leases_.Get(ben_, "train").status().message());
  ASSERT_EQ(leases_.Remove(anna_, "train", DaemonParts::Soon()), absl::OkStatus());
  EXPECT_EQ(std::string(leases_.Get(ben_, "train").status().message()), hidden);
}

TEST_F(LeaseTableTest, AUserHasANameOnceAndTwoUsersMayShareIt) {
  ASSERT_TRUE(Create(anna_, "train").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Create(anna_, "train").status()));
  EXPECT_TRUE(Create(ben_, "train").ok());
  const absl::Status ambiguous = leases_.Get(root_, "train").status();
  EXPECT_TRUE(absl::IsInvalidArgument(ambiguous)) << ambiguous;
  EXPECT_THAT(std::string(ambiguous.message()), HasSubstr("2 users have a lease named train"));
}

TEST_F(LeaseTableTest, ANameOfADirectoryIsRefused) {
  for (const char* const name : {".", ".."}) {
    const absl::Status refused = Create(anna_, name).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("names a directory"));
  }
  EXPECT_TRUE(Create(anna_, "...").ok());
  EXPECT_TRUE(Create(anna_, ".train").ok());
}

TEST_F(LeaseTableTest, ADevicesNameThatBeginsAsAFormulaIsRefused) {
  v1::CreateLeaseRequest request;
  request.set_lasting(true);
  v1::LogicalDeviceSpec& device = *request.add_devices();
  device.set_memory_limit_bytes((8_MiB).count());
  device.set_name("=1+1");
  const absl::Status refused = leases_.Create(anna_, request, DaemonParts::Soon()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("a device cannot be named =1+1"));
  device.set_name("a=1");
  EXPECT_TRUE(leases_.Create(anna_, request, DaemonParts::Soon()).ok());
}

TEST_F(LeaseTableTest, ARemovedLeaseIsGoneAndItsNameIsFree) {
  ASSERT_TRUE(Create(anna_, "train").ok());
  EXPECT_EQ(leases_.Remove(anna_, "train", DaemonParts::Soon()), absl::OkStatus());
  EXPECT_EQ(leases_.size(), 0u);
  EXPECT_EQ(leases_.end_counts().by_request, 1u);
  EXPECT_TRUE(absl::IsNotFound(leases_.Remove(anna_, "train", DaemonParts::Soon())));
  EXPECT_TRUE(Create(anna_, "train").ok());
}

TEST_F(LeaseTableTest, AttachingNeedsASession) {
  ASSERT_TRUE(Create(anna_, "train").ok());
  EXPECT_FALSE(leases_.Attach(anna_, "train").ok());
}

TEST_F(LeaseTableTest, ASessionHasOneLease) {
  ASSERT_TRUE(Create(anna_, "train").ok());
  ASSERT_TRUE(Create(anna_, "eval").ok());
  const Caller session{.uid = anna_.uid, .session = parts_.AddSession(anna_.uid, *HoldProcess(::getpid()))};
  EXPECT_TRUE(leases_.Attach(session, "train").ok());
  EXPECT_TRUE(leases_.Attach(session, "train").ok()) << "the same lease again";
  EXPECT_TRUE(absl::IsFailedPrecondition(leases_.Attach(session, "eval").status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(Create(session, "third").status()));
  EXPECT_EQ(leases_.size(), 2u) << "the lease that could not be attached does not stay";
}

TEST_F(LeaseTableTest, ASessionOfAnotherUserIsNotAttached) {
  ASSERT_TRUE(Create(anna_, "train").ok());
  const Caller session{.uid = ben_.uid, .session = parts_.AddSession(ben_.uid, *HoldProcess(::getpid()))};
  EXPECT_TRUE(absl::IsNotFound(leases_.Attach(session, "train").status()));
}

TEST_F(LeaseTableTest, ALeaseWithoutRoomIsRefusedAndSetsNothingAside) {
  v1::CreateLeaseRequest request;
  request.set_lasting(true);
  for (int i = 0; i < 2; ++i) {
    v1::LogicalDeviceSpec& device = *request.add_devices();
    device.set_memory_limit_bytes((40_MiB).count());
    device.set_mode(v1::LogicalDeviceSpec::MODE_PREALLOCATE);
  }
  const Bytes before = parts_.FreeOfCard();
  EXPECT_FALSE(leases_.Create(anna_, request, std::chrono::steady_clock::now()).ok());
  EXPECT_EQ(parts_.FreeOfCard(), before);
  EXPECT_EQ(leases_.size(), 0u);
}

TEST_F(LeaseTableTest, AUsersLeasesStayWithinTheCap) {
  LeasePolicy policy;
  policy.user_caps = {{.name = std::to_string(anna_.uid), .leases = 1}};
  leases_.SetPolicy(policy);
  ASSERT_TRUE(Create(anna_, "train").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Create(anna_, "eval").status()));
  EXPECT_TRUE(Create(ben_, "eval").ok()) << "the cap names one user";
}

TEST_F(LeaseTableTest, AUserHasABoundedNumberOfLogicalDevices) {
  v1::CreateLeaseRequest request;
  request.set_lasting(true);
  for (int i = 0; i < 64; ++i) request.add_devices()->set_memory_limit_bytes((2_MiB).count());
  for (std::size_t devices = 0; devices < LeaseTable::kMaxDevices; devices += 64) {
    ASSERT_EQ(leases_.Create(anna_, request, DaemonParts::Soon()).status(), absl::OkStatus()) << devices;
  }
  const absl::Status refused = Create(anna_, "more").status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("has 4096 logical devices and asks for 1 more"));
  EXPECT_TRUE(Create(ben_, "more").ok()) << "each user has a share";
}

TEST_F(LeaseTableTest, AResizeChangesTheLimitThatTheLeaseReports) {
  ASSERT_TRUE(Create(anna_, "train").ok());
  v1::ResizeLeaseRequest resize;
  resize.set_lease("train");
  resize.add_devices()->set_memory_limit_bytes((16_MiB).count());
  ASSERT_EQ(leases_.Resize(anna_, resize, DaemonParts::Soon()).status(), absl::OkStatus());
  EXPECT_EQ(leases_.Get(anna_, "train")->devices(0).memory_limit_bytes(), (16_MiB).count());
}

TEST_F(LeaseTableTest, ACallerOfOneLeasesDirectorySeesThatLeaseAlone) {
  const absl::StatusOr<v1::Lease> train = Create(anna_, "train");
  const absl::StatusOr<v1::Lease> eval = Create(anna_, "eval");
  ASSERT_TRUE(train.ok() && eval.ok());
  const absl::StatusOr<LeaseTable::WithDirectory> opened = leases_.OpenDirectory(root_, "train");
  ASSERT_EQ(opened.status(), absl::OkStatus());
  const Caller inside{.uid = anna_.uid, .session = nullptr, .only = opened->key};
  EXPECT_TRUE(leases_.Get(inside, "train").ok());
  EXPECT_TRUE(absl::IsNotFound(leases_.Get(inside, "eval").status()));
  EXPECT_FALSE(leases_.Remove(inside, "train", DaemonParts::Soon()).ok());
  EXPECT_FALSE(Create(inside, "third").ok());
}

}  // namespace
}  // namespace lgpu::daemon
