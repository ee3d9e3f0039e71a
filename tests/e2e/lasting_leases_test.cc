// Leases that outlive their programs, those of the configuration among them, over restarts of the daemon and
// of the machine, and their file.

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

class LastingLeasesTest : public E2eTest {
 protected:
  /// A daemon whose configuration has a lease "fixed" of 700 MiB, which is most of its card.
  DaemonProcess::Options WithStaticLease() const {
    return WithConfig("[[logical_device]]\nlease = \"fixed\"\nmemory = \"700MiB\"\nmode = \"preallocate\"\n");
  }
  DaemonProcess::Options WithConfig(std::string config) const {
    DaemonProcess::Options options = InDirectory();
    options.config = std::move(config);
    return options;
  }
};

// There is no room for a second one while the one that was removed still ends.
TEST_F(LastingLeasesTest, AStaticLeaseThatWasBeingRemovedIsThereAgain) {
  const DaemonProcess::Options options = WithStaticLease();
  StartDaemon(options);
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c lease=fixed"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 100), StartsWith("ok "));
  client->Signal(SIGSTOP);  // it does not hear that it is to go
  KillDaemonWhileItRemoves("fixed");
  StartDaemon(options);
  EXPECT_TRUE(control_->GetLease("fixed").ok());
  EXPECT_EQ(HeldBytes(), 700 * kMiB);
  client->Signal(SIGKILL);
  EXPECT_TRUE(control_->RemoveLease("fixed").ok());
}

// It has the removed one's name by now, and is another lease.
TEST_F(LastingLeasesTest, ALeaseThatWasMadeSinceKeepsTheNameOfTheRemovedOne) {
  const DaemonProcess::Options options =
      WithConfig("[[logical_device]]\nlease = \"fixed\"\nmemory = \"100MiB\"\n");
  StartDaemon(options);
  const auto removed = control_->GetLease("fixed");
  ASSERT_TRUE(removed.ok()) << removed.status();
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, "open c lease=fixed"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*client, "a", 50), StartsWith("ok "));
  client->Signal(SIGSTOP);
  std::thread remover([dir = daemon_->dir()] {
    auto control = Control::Open(dir);
    if (control.ok()) (*control)->RemoveLease("fixed").IgnoreError();
  });
  v1::CreateLeaseRequest request = OneDevice(200 * kMiB, /*preallocate=*/false, /*lasting=*/true);
  request.set_name("fixed");
  EXPECT_TRUE(Eventually([&] { return control_->CreateLease(request).ok(); }));
  const auto made = control_->GetLease("fixed");
  KillDaemon();
  remover.join();
  StartDaemon(options);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_NE(made->id(), removed->id());
  const auto there = control_->GetLease("fixed");
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_EQ(there->id(), made->id());
  client->Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 1; })) << Stats().DebugString();
  EXPECT_EQ(HeldBytes(), 0u);
  EXPECT_TRUE(control_->RemoveLease("fixed").ok());
}

// Names are a user's own.
TEST_F(LastingLeasesTest, LeasesOfOneNameOfTwoUsersAreThereSideBySide) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root's daemon serves another user";
  const auto device = [](const char* owner) {
    return absl::StrCat("[[logical_device]]\nlease = \"fixed\"\nmemory = \"100MiB\"\n", owner);
  };
  const DaemonProcess::Options options = WithConfig(device("owner = \"65534\"\n") + device(""));
  const auto owners = [&] {
    std::vector<std::uint32_t> uids;
    const v1::StatsSnapshot stats = Stats();
    for (const v1::LeaseStats& lease : stats.leases()) {
      EXPECT_EQ(lease.name(), "fixed");
      uids.push_back(lease.owner_uid());
    }
    return uids;
  };
  ASSERT_NO_FATAL_FAILURE(StartDaemon(options));
  EXPECT_THAT(owners(), UnorderedElementsAre(0u, 65534u));
  KillDaemon();
  ASSERT_NO_FATAL_FAILURE(StartDaemon(options));
  EXPECT_THAT(owners(), UnorderedElementsAre(0u, 65534u));
  const v1::StatsSnapshot stats = Stats();
  for (const v1::LeaseStats& lease : stats.leases()) EXPECT_TRUE(control_->RemoveLease(lease.id()).ok());
}

// Others have leases, which a daemon that does not start would keep from them.
TEST_F(LastingLeasesTest, AStaticLeaseThatHasNoRoomIsMadeByAReload) {
  const DaemonProcess::Options options = WithStaticLease();
  StartDaemon(options);
  EXPECT_TRUE(control_->RemoveLease("fixed").ok());
  v1::CreateLeaseRequest request = OneDevice(700 * kMiB, /*preallocate=*/true, /*lasting=*/true);
  request.set_name("other");
  ASSERT_TRUE(control_->CreateLease(request).ok());
  KillDaemon();
  StartDaemon(options);
  EXPECT_TRUE(control_->GetLease("other").ok());
  EXPECT_FALSE(control_->GetLease("fixed").ok());
  EXPECT_TRUE(control_->RemoveLease("other").ok());
  daemon_->program().Signal(SIGHUP);
  EXPECT_TRUE(Eventually([&] { return control_->GetLease("fixed").ok(); }));
  EXPECT_TRUE(control_->RemoveLease("fixed").ok());
}

TEST_F(LastingLeasesTest, LeasesOfACardThatIsNotThereWaitInTheFile) {
  StartInDirectory("2x1GiB");
  const auto create = [&](const char* name, int card) {
    v1::CreateLeaseRequest request = OneDevice(64 * kMiB, /*preallocate=*/false, /*lasting=*/true);
    request.set_name(name);
    request.mutable_devices(0)->set_card_uuid(Stats().cards(card).uuid());
    return control_->CreateLease(request).ok();
  };
  ASSERT_TRUE(create("first", 0) && create("waits", 1) && create("stays", 0));
  ASSERT_TRUE(control_->RemoveLease("first").ok());
  const auto boot = [&](const char* cards) {
    KillDaemon();
    std::filesystem::remove_all(directory_.path() + "/run");
    StartInDirectory(cards);
  };
  boot("1GiB");
  EXPECT_FALSE(control_->GetLease("waits").ok());
  ASSERT_TRUE(create("new", 0));
  boot("2x1GiB");
  for (const char* const name : {"waits", "stays", "new"}) {
    EXPECT_TRUE(control_->GetLease(name).ok()) << name;
    EXPECT_TRUE(control_->RemoveLease(name).ok()) << name;
  }
}

TEST_F(LastingLeasesTest, WhatCanBeReadOfADamagedFileOfLeasesIsKept) {
  StartInDirectory();
  v1::CreateLeaseRequest request = OneDevice(64 * kMiB, /*preallocate=*/false, /*lasting=*/true);
  for (const char* const name : {"whole", "cut"}) {
    request.set_name(name);
    ASSERT_TRUE(control_->CreateLease(request).ok());
  }
  const std::string file = directory_.path() + "/state/leases";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 3);
  for (int boot = 0; boot < 2; ++boot) {
    KillDaemon();
    std::filesystem::remove_all(directory_.path() + "/run");
    StartInDirectory();
    EXPECT_TRUE(control_->GetLease("whole").ok());
    EXPECT_FALSE(control_->GetLease("cut").ok());
  }
  EXPECT_TRUE(control_->RemoveLease("whole").ok());
}

TEST_F(LastingLeasesTest, ALeaseStaysRemovedWhoseFileCannotBeWritten) {
  StartInDirectory();
  v1::CreateLeaseRequest request = OneDevice(64 * kMiB, /*preallocate=*/true, /*lasting=*/true);
  for (const char* const name : {"removed", "stays"}) {
    request.set_name(name);
    ASSERT_TRUE(control_->CreateLease(request).ok());
  }
  const std::string in_the_way = directory_.path() + "/state/leases.new";
  std::filesystem::create_directory(in_the_way);
  EXPECT_TRUE(control_->RemoveLease("removed").ok());
  for (int i = 0; i < 2; ++i) {
    Restart();
    EXPECT_FALSE(control_->GetLease("removed").ok());
    EXPECT_TRUE(control_->GetLease("stays").ok());
  }
  // Once it can be written, the file says the same.
  std::filesystem::remove(in_the_way);
  Restart();
  KillDaemon();
  std::filesystem::remove_all(directory_.path() + "/run");
  StartInDirectory();
  EXPECT_FALSE(control_->GetLease("removed").ok());
  EXPECT_TRUE(control_->RemoveLease("stays").ok());
}

TEST_F(LastingLeasesTest, LeasesThatLastComeBack) {
  StartInDirectory();
  v1::CreateLeaseRequest request = OneDevice(256 * kMiB, /*preallocate=*/true, /*lasting=*/true);
  request.set_name("for-ever");
  const auto lease = control_->CreateLease(request);
  ASSERT_TRUE(lease.ok()) << lease.status();
  Restart();
  auto again = control_->GetLease("for-ever");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->id(), lease->id());
  EXPECT_EQ(HeldBytes(), 256 * kMiB);
  // As after a start of the machine: the runtime directory is new.
  KillDaemon();
  std::filesystem::remove_all(directory_.path() + "/run");
  StartInDirectory();
  again = control_->GetLease("for-ever");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->id(), lease->id());
  EXPECT_EQ(HeldBytes(), 256 * kMiB);
  EXPECT_TRUE(control_->RemoveLease("for-ever").ok());
  Restart();
  EXPECT_FALSE(control_->GetLease("for-ever").ok());
  EXPECT_EQ(HeldBytes(), 0u);
}

}  // namespace
}  // namespace lgpu::testing
