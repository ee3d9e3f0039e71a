#include "daemon/server/lease_directories.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "tests/daemon/daemon_parts.h"
#include "tests/daemon/temporary_directory.h"

namespace lgpu::daemon {
namespace {

namespace fs = std::filesystem;

class LeaseDirectoriesTest : public ::testing::Test {
 protected:
  /// The folder of a lease of an earlier daemon, with its sockets as files.
  std::string MakeEnded(const std::string& id) {
    const std::string path = directory_.path() + "/leases/" + id + "/run";
    fs::create_directories(path);
    for (const char* const socket : {"session.sock", "control.sock"}) std::ofstream(path + "/" + socket);
    return path;
  }

  const TemporaryDirectory directory_;
  const TemporaryDirectory state_;
  DaemonParts parts_{state_.path()};
  const Caller root_{.uid = 0, .session = nullptr};
  const std::unique_ptr<LeaseDirectories> directories_ = *LeaseDirectories::Start(
      directory_.path(), {.session = [](UniqueFd, const PeerCredentials&, LeaseKey) {},
                          .control = [](UniqueFd, const PeerCredentials&, LeaseKey) {}});
};

TEST_F(LeaseDirectoriesTest, TheFolderOfALeaseGoesWithIt) {
  ASSERT_TRUE(parts_.CreateLease(root_, "train").ok());
  const absl::StatusOr<LeaseTable::WithDirectory> lease = parts_.leases().OpenDirectory(root_, "train");
  ASSERT_TRUE(lease.ok()) << lease.status();
  const absl::StatusOr<std::string> path = directories_->Open(*lease);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_TRUE(directories_->RemoveEnded(parts_.leases()).empty());
  EXPECT_TRUE(fs::exists(*path + "/control.sock"));
  ASSERT_EQ(parts_.leases().Remove(root_, "train", DaemonParts::Soon()), absl::OkStatus());
  EXPECT_EQ(directories_->RemoveEnded(parts_.leases()).size(), 1u);
  EXPECT_FALSE(fs::exists(*path));
}

TEST_F(LeaseDirectoriesTest, FilesOfAContainerStayAndKeepNoOtherFolder) {
  const std::string deep = MakeEnded("l-00000001");
  const std::string empty = MakeEnded("l-00000002");
  // Deeper than a path may be long, as a container makes it from inside.
  UniqueFd folder(::open(deep.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  constexpr int kDepth = 3000;
  for (int i = 0; i < kDepth; ++i) {
    ASSERT_EQ(::mkdirat(folder.get(), "d", 0700), 0);
    folder.Reset(::openat(folder.get(), "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(folder);
  }
  for (int i = 0; i < 2; ++i) directories_->RemoveEnded(parts_.leases());
  EXPECT_FALSE(fs::exists(empty));
  EXPECT_TRUE(fs::exists(deep + "/d")) << "lgpud removes what it made, and looks at nothing else";
  EXPECT_FALSE(fs::exists(deep + "/session.sock"));
  EXPECT_FALSE(fs::exists(deep + "/control.sock"));
  // From the innermost one up, so that this needs few descriptors as well.
  for (int i = 0; i < kDepth; ++i) {
    folder.Reset(::openat(folder.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_EQ(::unlinkat(folder.get(), "d", AT_REMOVEDIR), 0);
  }
  directories_->RemoveEnded(parts_.leases());
  EXPECT_FALSE(fs::exists(deep)) << "it goes as soon as it is empty";
}

}  // namespace
}  // namespace lgpu::daemon
