#include "daemon/server/server_dir.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "daemon/server/lock_file.h"
#include "tests/daemon/temporary_directory.h"

namespace lgpu::daemon {
namespace {

using ::testing::HasSubstr;

class ServerDirTest : public ::testing::Test {
 protected:
  ServerDirTest() {
    config_.runtime_dir = temporary_.path() + "/run";
    config_.socket_group = "";
  }
  absl::StatusOr<ServerDir> Open() { return ServerDir::Open(config_, {}); }
  std::string Path(const std::string& name) const { return config_.runtime_dir + "/" + name; }
  bool Exists(const std::string& name) const {
    struct stat info = {};
    return ::lstat(Path(name).c_str(), &info) == 0;
  }
  mode_t ModeOf(const std::string& path) const {
    struct stat info = {};
    return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
  }
  bool CanConnect(const std::string& name, int type) const {
    const UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, Path(name).c_str(), sizeof address.sun_path - 1);
    return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }

  TemporaryDirectory temporary_;
  Config config_;
};

TEST_F(ServerDirTest, ListensOnBothSocketsAndRemovesThemAtTheEnd) {
  {
    const absl::StatusOr<ServerDir> dir = Open();
    ASSERT_EQ(dir.status(), absl::OkStatus());
    EXPECT_TRUE(CanConnect("control.sock", SOCK_STREAM));
    EXPECT_TRUE(CanConnect("session.sock", SOCK_SEQPACKET));
    EXPECT_EQ(ModeOf(config_.runtime_dir), 0700u);
    EXPECT_EQ(ModeOf(Path("control.sock")), 0660u);
    EXPECT_EQ(ModeOf(Path("lock")), 0600u);
  }
  EXPECT_FALSE(Exists("control.sock"));
  EXPECT_FALSE(Exists("session.sock"));
  EXPECT_EQ(Open().status(), absl::OkStatus());
}

TEST_F(ServerDirTest, ASecondOneIsRefusedAndTheFirstGoesOn) {
  const absl::StatusOr<ServerDir> first = Open();
  ASSERT_EQ(first.status(), absl::OkStatus());
  const absl::Status second = Open().status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()), HasSubstr("pid " + std::to_string(::getpid())));
  EXPECT_TRUE(CanConnect("control.sock", SOCK_STREAM));
}

TEST_F(ServerDirTest, AStaleSocketIsReplaced) {
  std::optional<ServerDir> dead = *Open();
  // A killed daemon leaves socket files without a listener.
  ASSERT_EQ(::link(Path("control.sock").c_str(), Path("kept").c_str()), 0);
  dead.reset();
  ASSERT_EQ(::rename(Path("kept").c_str(), Path("control.sock").c_str()), 0);
  ASSERT_FALSE(CanConnect("control.sock", SOCK_STREAM));
  const absl::StatusOr<ServerDir> dir = Open();
  ASSERT_EQ(dir.status(), absl::OkStatus());
  EXPECT_TRUE(CanConnect("control.sock", SOCK_STREAM));
}

TEST_F(ServerDirTest, AFileThatIsNoSocketIsLeftAlone) {
  ASSERT_EQ(::mkdir(config_.runtime_dir.c_str(), 0700), 0);
  std::ofstream(Path("control.sock")) << "precious";
  const absl::Status status = Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not a socket"));
  EXPECT_TRUE(Exists("control.sock"));
  EXPECT_FALSE(Exists("session.sock"));
}

TEST_F(ServerDirTest, ASocketOfAnotherProgramIsNotRemoved) {
  std::optional<ServerDir> dir = *Open();
  ASSERT_EQ(::unlink(Path("control.sock").c_str()), 0);
  std::ofstream(Path("control.sock")) << "not ours";
  dir.reset();
  EXPECT_TRUE(Exists("control.sock"));
  EXPECT_FALSE(Exists("session.sock"));
}

TEST_F(ServerDirTest, AForeignDirectoryIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  ASSERT_EQ(::mkdir(config_.runtime_dir.c_str(), 0700), 0);
  ASSERT_EQ(::chown(config_.runtime_dir.c_str(), 12345, 12345), 0);
  const absl::Status status = Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("belongs to user 12345"));
}

TEST_F(ServerDirTest, ADirectoryThatIsALinkIsRefused) {
  ASSERT_EQ(::symlink("/tmp", config_.runtime_dir.c_str()), 0);
  EXPECT_FALSE(Open().ok());
}

TEST_F(ServerDirTest, OtherUsersLoseTheRightToWrite) {
  ASSERT_EQ(::mkdir(config_.runtime_dir.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(config_.runtime_dir.c_str(), 0777), 0);
  const absl::StatusOr<ServerDir> dir = Open();
  ASSERT_EQ(dir.status(), absl::OkStatus());
  EXPECT_EQ(ModeOf(config_.runtime_dir), 0755u);
}

TEST_F(ServerDirTest, APathThatIsTooLongForASocketIsExplained) {
  config_.runtime_dir = temporary_.path() + "/" + std::string(100, 'x');
  const absl::Status status = Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the system allows 107"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--dir"));
}

TEST_F(ServerDirTest, TheGroupGetsADirectoryThatWasThereBefore) {
  if (::geteuid() != 0) GTEST_SKIP() << "an ordinary user's directory stays as it is";
  constexpr gid_t kDaemonGroup = 1;  // "daemon", on every Debian
  ASSERT_EQ(::mkdir(config_.runtime_dir.c_str(), 0700), 0);
  config_.socket_group = "daemon";
  ASSERT_EQ(Open().status(), absl::OkStatus());
  struct stat info = {};
  ASSERT_EQ(::stat(config_.runtime_dir.c_str(), &info), 0);
  EXPECT_EQ(info.st_gid, kDaemonGroup);
  EXPECT_EQ(info.st_mode & 07777, 0750u);
}

TEST_F(ServerDirTest, InheritedSocketsAreUsedAndStay) {
  std::optional<ServerDir> maker = *Open();
  ServerDir::Inherited inherited;
  inherited.control = UniqueFd(::fcntl(maker->control_socket(), F_DUPFD_CLOEXEC, 0));
  ASSERT_EQ(::link(Path("control.sock").c_str(), Path("kept").c_str()), 0);
  maker.reset();
  ASSERT_EQ(::rename(Path("kept").c_str(), Path("control.sock").c_str()), 0);
  {
    const absl::StatusOr<ServerDir> dir = ServerDir::Open(config_, std::move(inherited));
    ASSERT_EQ(dir.status(), absl::OkStatus());
    EXPECT_TRUE(CanConnect("control.sock", SOCK_STREAM));
    EXPECT_TRUE(CanConnect("session.sock", SOCK_SEQPACKET));
  }
  EXPECT_TRUE(Exists("control.sock"));
  EXPECT_FALSE(Exists("session.sock"));
}

// In a child, whose descriptors 3 and 4 the test may replace. Returns 0, or the number of the failed check.
int TakeInheritedInChild(int control, int session, bool ours) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::dup2(control, 3) != 3 || ::dup2(session, 4) != 4) ::_exit(1);
    ::setenv("LISTEN_FDS", "2", 1);
    ::setenv("LISTEN_PID", std::to_string(ours ? ::getpid() : 1).c_str(), 1);
    const absl::StatusOr<ServerDir::Inherited> inherited = ServerDir::TakeInherited();
    if (!inherited.ok()) ::_exit(2);
    if (::getenv("LISTEN_FDS") != nullptr) ::_exit(3);
    if (!ours) ::_exit(inherited->control || inherited->session ? 4 : 0);
    const bool right = inherited->control.get() == 3 && inherited->session.get() == 4 &&
                       (::fcntl(3, F_GETFD) & FD_CLOEXEC) != 0 && (::fcntl(4, F_GETFL) & O_NONBLOCK) != 0;
    ::_exit(right ? 0 : 5);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(ServerDirTest, TakesTheSocketsOfAServiceManagerByTheirType) {
  const absl::StatusOr<ServerDir> dir = Open();
  ASSERT_EQ(dir.status(), absl::OkStatus());
  // High numbers, so that neither is in the way of the other's place.
  const UniqueFd control(::fcntl(dir->control_socket(), F_DUPFD_CLOEXEC, 100));
  const UniqueFd session(::fcntl(dir->session_socket(), F_DUPFD_CLOEXEC, 100));
  EXPECT_EQ(TakeInheritedInChild(control.get(), session.get(), /*ours=*/true), 0);
  EXPECT_EQ(TakeInheritedInChild(control.get(), session.get(), /*ours=*/false), 0);
  EXPECT_EQ(TakeInheritedInChild(control.get(), control.get(), /*ours=*/true), 2);
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd high(::fcntl(file.get(), F_DUPFD_CLOEXEC, 100));
  EXPECT_EQ(TakeInheritedInChild(high.get(), session.get(), /*ours=*/true), 2);
}

TEST(LockFileTest, OneOwnerAtATimeThatNamesItself) {
  const TemporaryDirectory temporary;
  const UniqueFd directory(::open(temporary.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  absl::StatusOr<UniqueFd> first = LockFile(directory.get(), "GPU-1.lock", 0666);
  ASSERT_EQ(first.status(), absl::OkStatus());
  ASSERT_EQ(WriteLockFile(first->get(), "a daemon with a long name (pid 1)\n"), absl::OkStatus());
  ASSERT_EQ(WriteLockFile(first->get(), "me \x1b[31m(pid 1)\nmore\n"), absl::OkStatus());
  const absl::Status second = LockFile(directory.get(), "GPU-1.lock", 0666).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(second.message(), "me ?[31m(pid 1)");
  EXPECT_EQ(LockFile(directory.get(), "GPU-2.lock", 0666).status(), absl::OkStatus());
  first->Reset();
  EXPECT_EQ(LockFile(directory.get(), "GPU-1.lock", 0666).status(), absl::OkStatus());
}

TEST(LockFileTest, ALinkOrAPipeIsNotFollowed) {
  const TemporaryDirectory temporary;
  const UniqueFd directory(::open(temporary.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::symlinkat("/tmp/lgpu-test-target", directory.get(), "link"), 0);
  EXPECT_FALSE(LockFile(directory.get(), "link", 0666).ok());
  ASSERT_EQ(::mkfifoat(directory.get(), "pipe", 0666), 0);
  EXPECT_FALSE(LockFile(directory.get(), "pipe", 0666).ok());
}

TEST(LockFileTest, AnUnlinkedLockDoesNotCount) {
  const TemporaryDirectory temporary;
  const UniqueFd directory(::open(temporary.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const absl::StatusOr<UniqueFd> first = LockFile(directory.get(), "lock", 0600);
  ASSERT_EQ(::unlinkat(directory.get(), "lock", 0), 0);
  const absl::StatusOr<UniqueFd> second = LockFile(directory.get(), "lock", 0600);
  ASSERT_EQ(second.status(), absl::OkStatus());
  EXPECT_EQ(LockFile(directory.get(), "lock", 0600).status().code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace lgpu::daemon
