#include "client/session/daemon_lease.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/runtime/open_lease.h"
#include "tests/client/fake_daemon.h"
#include "tests/support/daemon_process.h"

namespace lgpu {
namespace {

using ::lgpu::testing::DaemonProcess;
using ::lgpu::testing::FakeDaemon;
using ::lgpu::testing::FakePeer;
using ::testing::AllOf;
using ::testing::HasSubstr;

wire::LogicalDevice DeviceOn(const std::string& card, std::uint64_t id) {
  wire::LogicalDevice device;
  device.id = id;
  device.card_uuid = card;
  device.card_name = "a card";
  device.memory_limit_bytes = (16_MiB).count();
  device.granularity_bytes = (2_MiB).count();
  device.card_total_bytes = (64_MiB).count();
  device.simulated = true;
  return device;
}

class DaemonLeaseTest : public ::testing::Test {
 protected:
  ~DaemonLeaseTest() override {
    ::unsetenv("LGPU_LEASE");
    ::unsetenv("CUDA_VISIBLE_DEVICES");
  }

  /// A session whose lease has these devices.
  static absl::StatusOr<std::unique_ptr<Lease>> Open(std::vector<wire::LogicalDevice> devices) {
    FakeDaemon daemon([](FakePeer& peer) { peer.Greet(); });
    absl::StatusOr<std::unique_ptr<DaemonConnection>> connection = daemon.Connect();
    if (!connection.ok()) return connection.status();
    wire::Lease granted;
    granted.id = "handle";
    granted.name = "train";
    granted.devices = std::move(devices);
    return DaemonLease::Open(*std::move(connection), granted, {});
  }
};

TEST_F(DaemonLeaseTest, AttachesToALeaseByItsHandleAndCannotResizeIt) {
  const auto daemon = DaemonProcess::Start({.simulate = "64MiB"});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  ContextOptions options;
  options.endpoint = (*daemon)->dir();
  options.logical_devices = {{.memory_limit = 16_MiB}};
  const absl::StatusOr<std::unique_ptr<Lease>> made = OpenLease(options, Contents::kBlocksOfCaller);
  ASSERT_TRUE(made.ok()) << made.status();
  const Endpoint endpoint = {.directories = {(*daemon)->dir()}};
  const absl::StatusOr<std::unique_ptr<Lease>> lease = DaemonLease::Attach(endpoint, (*made)->id());
  ASSERT_TRUE(lease.ok()) << lease.status();
  ASSERT_EQ((*lease)->devices().size(), 1u);
  EXPECT_EQ((*lease)->devices()[0].memory_limit, 16_MiB);
  const absl::StatusOr<std::vector<Chunk>> chunks =
      (*lease)->TakeSource(0)->Grow({.at_least = 2_MiB, .wanted = 2_MiB});
  EXPECT_TRUE(chunks.ok()) << chunks.status();
  const absl::Status resized = (*lease)->Resize(0, 8_MiB, {});
  EXPECT_TRUE(absl::IsUnimplemented(resized)) << resized;
  EXPECT_THAT(std::string(resized.message()), HasSubstr("lgpu resize"));
  EXPECT_EQ((*lease)->Close(), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(DaemonLease::Attach(endpoint, "other").status()));
}

TEST_F(DaemonLeaseTest, InsideALeaseTheVariableChoosesTheDevices) {
  ::setenv("LGPU_LEASE", "train", 1);
  ::setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  const absl::StatusOr<std::unique_ptr<Lease>> lease =
      Open({DeviceOn("GPU-a", 1), DeviceOn("GPU-b", 2), DeviceOn("GPU-b", 3)});
  ASSERT_TRUE(lease.ok()) << lease.status();
  ASSERT_EQ((*lease)->devices().size(), 2u);
  EXPECT_EQ((*lease)->devices()[0].id, LogicalId{2});
  EXPECT_EQ((*lease)->devices()[0].lease_index, 1);
  EXPECT_EQ((*lease)->devices()[1].id, LogicalId{3});
  EXPECT_EQ((*lease)->backend().devices().size(), 1u) << "the two devices are on one card";
}

TEST_F(DaemonLeaseTest, AProgramOutsideOfTheLeaseHasAllOfItsDevices) {
  ::setenv("LGPU_LEASE", "another", 1);
  ::setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  const absl::StatusOr<std::unique_ptr<Lease>> lease = Open({DeviceOn("GPU-a", 1), DeviceOn("GPU-b", 2)});
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ((*lease)->devices().size(), 2u);
}

TEST_F(DaemonLeaseTest, ARealCardThatThisProcessCannotUseIsNamed) {
  wire::LogicalDevice device = DeviceOn("GPU-of-no-machine", 1);
  device.simulated = false;
  const absl::StatusOr<std::unique_ptr<Lease>> lease = Open({device});
  ASSERT_FALSE(lease.ok());
  EXPECT_THAT(std::string(lease.status().message()),
              AllOf(HasSubstr("lease train has a device on a card"), HasSubstr("this process")));
}

TEST_F(DaemonLeaseTest, UnitsThatNoSimulatedCardHasAreRefused) {
  wire::LogicalDevice device = DeviceOn("GPU-a", 1);
  device.granularity_bytes = 3000;
  const absl::StatusOr<std::unique_ptr<Lease>> lease = Open({device});
  EXPECT_TRUE(absl::IsInternal(lease.status())) << lease.status();
  EXPECT_THAT(std::string(lease.status().message()), HasSubstr("3000 bytes"));
}

}  // namespace
}  // namespace lgpu
