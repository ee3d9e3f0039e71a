// Leases that outlive their programs, also leases of the configuration, over restarts of the daemon and of
// the machine, and their file.

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

std::string ContentsOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

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

// The newer lease has the removed one's name, and is another lease.
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

// The other leases of the configuration have room.
TEST_F(LastingLeasesTest, AStaticLeaseThatHasNoRoomKeepsNoOtherFromBeingMade) {
  const auto device = [](const char* lease, int mib) {
    return absl::StrCat("[[logical_device]]\nlease = \"", lease, "\"\nmemory = \"", mib,
                        "MiB\"\nmode = \"preallocate\"\n");
  };
  StartInDirectory();
  v1::CreateLeaseRequest request = OneDevice(600 * kMiB, /*preallocate=*/true, /*lasting=*/true);
  request.set_name("other");
  ASSERT_TRUE(control_->CreateLease(request).ok());
  KillDaemon();
  StartDaemon(WithConfig(device("a", 64) + device("b", 600) + device("c", 64)));
  EXPECT_FALSE(control_->GetLease("b").ok());
  for (const char* const name : {"a", "c", "other"}) {
    EXPECT_TRUE(control_->GetLease(name).ok()) << name;
    EXPECT_TRUE(control_->RemoveLease(name).ok()) << name;
  }
}

// The daemon starts without the static lease: other leases would be gone with a daemon that does not start.
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

TEST_F(LastingLeasesTest, ReadableLeasesOfADamagedFileAreKept) {
  StartInDirectory();
  v1::CreateLeaseRequest request = OneDevice(64 * kMiB, /*preallocate=*/false, /*lasting=*/true);
  for (const char* const name : {"whole", "cut"}) {
    request.set_name(name);
    ASSERT_TRUE(control_->CreateLease(request).ok());
  }
  const std::string file = directory_.path() + "/state/leases";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 3);
  for (int boot = 0; boot < 2; ++boot) {
    Boot();
    EXPECT_TRUE(control_->GetLease("whole").ok());
    EXPECT_FALSE(control_->GetLease("cut").ok());
  }
  EXPECT_TRUE(control_->RemoveLease("whole").ok());
}

TEST_F(LastingLeasesTest, LeasesBehindADamagedRecordAreKept) {
  StartInDirectory();
  v1::CreateLeaseRequest request = OneDevice(64 * kMiB, /*preallocate=*/false, /*lasting=*/true);
  for (const char* const name : {"first", "second", "third", "fourth"}) {
    request.set_name(name);
    ASSERT_TRUE(control_->CreateLease(request).ok());
  }
  const std::string path = directory_.path() + "/state/leases";
  const std::string bytes = ContentsOf(path);
  const std::size_t name = bytes.find("second");
  ASSERT_NE(name, std::string::npos);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(name));
    file.put('S');
  }
  for (int boot = 0; boot < 2; ++boot) {  // from the damaged file, then from the one that took its place
    Boot();
    for (const char* const kept : {"first", "third", "fourth"}) {
      EXPECT_TRUE(control_->GetLease(kept).ok()) << kept;
    }
    EXPECT_FALSE(control_->GetLease("second").ok());
    EXPECT_FALSE(control_->GetLease("Second").ok());
  }
  EXPECT_THAT(ContentsOf(path + ".damaged"), HasSubstr("Second"));
  for (const char* const kept : {"first", "third", "fourth"}) EXPECT_TRUE(control_->RemoveLease(kept).ok());
}

// The file is read twice: the daemon that found it damaged dies before it has written another one.
TEST_F(LastingLeasesTest, ADamagedFileOfLeasesStaysUntilAnotherOneIsWritten) {
  StartInDirectory();
  v1::CreateLeaseRequest request = OneDevice(64 * kMiB, /*preallocate=*/false, /*lasting=*/true);
  request.set_name("whole");
  ASSERT_TRUE(control_->CreateLease(request).ok());
  const std::string file = directory_.path() + "/state/leases";
  const auto damage = [&] {
    KillDaemon();
    std::filesystem::remove_all(directory_.path() + "/run");
    std::ofstream(file, std::ios::app) << "short";
  };
  damage();
  DaemonProcess::Options options = InDirectory();
  options.lgpud = LGPU_FAULTY_LGPUD;
  options.environment = {{"LGPU_TEST_JOURNAL_DIE", "2"}};  // the first write is the journal's
  EXPECT_FALSE(DaemonProcess::Start(options).ok());
  StartInDirectory();
  EXPECT_TRUE(control_->GetLease("whole").ok());
  // Or the disk is full, and has room later.
  damage();
  const std::string in_the_way = file + ".new";
  std::filesystem::create_directory(in_the_way);
  StartInDirectory();
  EXPECT_TRUE(control_->GetLease("whole").ok());
  const auto before = std::filesystem::file_size(file);
  std::filesystem::remove(in_the_way);
  EXPECT_TRUE(Eventually([&] { return std::filesystem::file_size(file) < before; }));
  Boot();
  EXPECT_TRUE(control_->RemoveLease("whole").ok());
}

// Several requests at once: each of them writes the file with the leases of all.
TEST_F(LastingLeasesTest, ALeaseExistsExactlyWhenItsRequestSucceeded) {
  StartInDirectory();
  const std::string in_the_way = directory_.path() + "/state/leases.new";
  std::atomic<bool> over = false;
  std::thread disk([&] {
    std::error_code error;
    while (!over) {
      std::filesystem::create_directory(in_the_way, error);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      (void)::rmdir(in_the_way.c_str());  // and no file that lies there now
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  std::map<std::string, bool> made;
  std::mutex mutex;
  std::vector<std::thread> users;
  for (int user = 0; user < 4; ++user) {
    users.emplace_back([&, user] {
      const auto control = Control::Open(daemon_->dir());
      if (!control.ok()) return;
      for (int i = 0; i < 40; ++i) {
        v1::CreateLeaseRequest request = OneDevice(2 * kMiB, /*preallocate=*/false, /*lasting=*/true);
        request.set_name(absl::StrCat("lease-", user, "-", i));
        const bool ok = (*control)->CreateLease(request).ok();
        const std::scoped_lock lock(mutex);
        made[request.name()] = ok;
      }
    });
  }
  for (std::thread& user : users) user.join();
  over = true;
  disk.join();
  EXPECT_EQ(made.size(), 160u);
  std::filesystem::remove(in_the_way);
  for (int start = 0; start < 2; ++start) {
    for (const auto& [name, ok] : made) EXPECT_EQ(control_->GetLease(name).ok(), ok) << name;
    Restart();
  }
  for (const auto& [name, ok] : made) {
    if (!ok) continue;
    EXPECT_TRUE(control_->RemoveLease(name).ok());
  }
}

TEST_F(LastingLeasesTest, ARemovedLeaseStaysRemovedWhileTheFileCannotBeWritten) {
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
  Boot();
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
  Boot();
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
