#include "daemon/server/device_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "daemon/leases/users.h"
#include "tests/daemon/temporary_directory.h"

namespace lgpu::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DeviceRegistryTest : public ::testing::Test {
 protected:
  DeviceRegistryTest() {
    config_.runtime_dir = "/run/first";
    config_.lock_dir = temporary_.path() + "/locks";
    config_.simulated = {{.memory = 64_MiB}, {.memory = 32_MiB, .uuid = "GPU-second", .name = "Small"}};
  }
  void Show(const std::string& visible) {
    config_.cuda_visible_devices = visible;
    config_.has_cuda_visible_devices = true;
  }

  TemporaryDirectory temporary_;
  Config config_;
};

TEST_F(DeviceRegistryTest, ServesTheSimulatedCardsOfTheConfiguration) {
  const auto registry = DeviceRegistry::Open(config_);
  ASSERT_EQ(registry.status(), absl::OkStatus());
  EXPECT_TRUE((*registry)->simulated());
  ASSERT_EQ((*registry)->cards().size(), 2u);
  EXPECT_EQ((*registry)->cards()[0].device.total, 64_MiB);
  EXPECT_EQ((*registry)->cards()[1].device.uuid, "GPU-second");
  EXPECT_EQ((*registry)->cards()[1].device.name, "Small");
  EXPECT_TRUE((*registry)->cards()[0].served);
  EXPECT_TRUE((*registry)->cards()[1].served);
  EXPECT_EQ((*registry)->cards()[1].not_served_because, "");
}

TEST_F(DeviceRegistryTest, ServesOnlyCardsThatTheConfigurationAllows) {
  Show("1");
  config_.origins["devices.visible"] = "lgpud.toml:2:1";
  const auto registry = DeviceRegistry::Open(config_);
  ASSERT_EQ(registry.status(), absl::OkStatus());
  EXPECT_FALSE((*registry)->cards()[0].served);
  EXPECT_EQ((*registry)->cards()[0].not_served_because,
            "left out by devices.visible = \"1\" (lgpud.toml:2:1)");
  EXPECT_TRUE((*registry)->cards()[1].served);
}

TEST_F(DeviceRegistryTest, UuidsAreTheSameEveryTimeAndDifferByDirectory) {
  const std::string uuid = (*DeviceRegistry::Open(config_))->cards()[0].device.uuid;
  EXPECT_EQ((*DeviceRegistry::Open(config_))->cards()[0].device.uuid, uuid);
  config_.runtime_dir = "/run/second";
  EXPECT_NE((*DeviceRegistry::Open(config_))->cards()[0].device.uuid, uuid);
}

TEST_F(DeviceRegistryTest, ACardOfAnotherDaemonIsListedAndNotServed) {
  const auto first = DeviceRegistry::Open(config_);
  ASSERT_EQ(first.status(), absl::OkStatus());
  config_.runtime_dir = "/run/second";
  const auto second = DeviceRegistry::Open(config_);
  ASSERT_EQ(second.status(), absl::OkStatus());
  EXPECT_TRUE((*second)->cards()[0].served);
  EXPECT_FALSE((*second)->cards()[1].served);
  EXPECT_EQ((*second)->cards()[1].not_served_because,
            "owned by the daemon of /run/first (pid " + std::to_string(::getpid()) + ")");
}

TEST_F(DeviceRegistryTest, WhenOtherDaemonsOwnAllCardsItRefusesAndNamesThem) {
  std::unique_ptr<DeviceRegistry> first = *DeviceRegistry::Open(config_);
  const absl::Status status = DeviceRegistry::Open(config_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("owned by the daemon of /run/first"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("GPU-second"));
  first.reset();
  EXPECT_EQ(DeviceRegistry::Open(config_).status(), absl::OkStatus());
}

TEST_F(DeviceRegistryTest, CudaVisibleDevicesLeavesHiddenCardsToOtherDaemons) {
  Show("1");
  const auto registry = DeviceRegistry::Open(config_);
  ASSERT_EQ(registry.status(), absl::OkStatus());
  EXPECT_FALSE((*registry)->cards()[0].served);
  EXPECT_THAT((*registry)->cards()[0].not_served_because, HasSubstr("CUDA_VISIBLE_DEVICES=1"));
  EXPECT_TRUE((*registry)->cards()[1].served);
  Show("0");
  EXPECT_EQ(DeviceRegistry::Open(config_).status(), absl::OkStatus());
}

TEST_F(DeviceRegistryTest, AnEmptyListServesNothing) {
  Show("");
  const absl::Status status = DeviceRegistry::Open(config_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("hidden from this lgpud by CUDA_VISIBLE_DEVICES"));
}

TEST_F(DeviceRegistryTest, WithoutAGpuItSaysHowToSimulateOne) {
  config_.simulated.clear();
  const absl::Status status = DeviceRegistry::Open(config_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("lgpud --simulate 2x1GiB"));
}

TEST_F(DeviceRegistryTest, AUuidThatIsNoFileNameIsRefused) {
  config_.simulated[1].uuid = "../../etc/passwd";
  EXPECT_EQ(DeviceRegistry::Open(config_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DeviceRegistryTest, TheLockDirectoryIsOpenToEveryUser) {
  const auto registry = DeviceRegistry::Open(config_);
  struct stat info = {};
  ASSERT_EQ(::stat(config_.lock_dir.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 01777u);
  ASSERT_EQ(::stat((config_.lock_dir + "/GPU-second.lock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0666u);
}

TEST_F(DeviceRegistryTest, AFileThatIsNoLockKeepsItsCardAloneFromBeingServed) {
  // Of another user where the test may give it away.
  const uid_t owner = ::geteuid() == 0 ? 61301 : ::geteuid();
  ASSERT_EQ(::mkdir(config_.lock_dir.c_str(), 0777), 0);
  const std::string path = config_.lock_dir + "/GPU-second.lock";
  const std::function<int()> makes[] = {
      [&] { return ::mkfifo(path.c_str(), 0666); },
      [&] { return ::mkdir(path.c_str(), 0777); },
      [&] { return ::symlink("/nonexistent", path.c_str()); },
      [&] { return ::geteuid() == 0 ? ::mkfifo(path.c_str(), 0) : ::mknod(path.c_str(), S_IFREG, 0); },
  };
  for (const auto& make : makes) {
    ASSERT_EQ(make(), 0);
    ASSERT_EQ(::lchown(path.c_str(), owner, static_cast<gid_t>(-1)), 0);
    const auto registry = DeviceRegistry::Open(config_);
    ASSERT_EQ(registry.status(), absl::OkStatus());
    EXPECT_TRUE((*registry)->cards()[0].served);
    EXPECT_FALSE((*registry)->cards()[1].served);
    const std::string file = "the lock file GPU-second.lock of user " + UserName(owner);
    EXPECT_THAT((*registry)->cards()[1].not_served_because,
                AllOf(HasSubstr("no lock in " + config_.lock_dir + ": " + file), HasSubstr("remove it")));
    ASSERT_EQ(::remove(path.c_str()), 0);
  }
}

TEST_F(DeviceRegistryTest, ALockDirectoryThatIsNoneNamesItsOwner) {
  ASSERT_EQ(::symlink("/tmp", config_.lock_dir.c_str()), 0);
  const absl::Status status = DeviceRegistry::Open(config_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("GPU-second: no lock in " + config_.lock_dir),
                                                   HasSubstr("of user " + UserName(::geteuid()))));
}

TEST_F(DeviceRegistryTest, RootMendsALockDirectoryThatAUserMadeFirst) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root mends it";
  ASSERT_EQ(::mkdir(config_.lock_dir.c_str(), 0700), 0);
  ASSERT_EQ(::chown(config_.lock_dir.c_str(), 61301, 61301), 0);
  EXPECT_EQ(DeviceRegistry::Open(config_).status(), absl::OkStatus());
  struct stat info = {};
  ASSERT_EQ(::stat(config_.lock_dir.c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 0u);
  EXPECT_EQ(info.st_mode & 07777, 01777u);
}

}  // namespace
}  // namespace lgpu::daemon
