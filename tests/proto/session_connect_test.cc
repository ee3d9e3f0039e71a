#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "proto/wire/connect.h"
#include "tests/support/generated_channel.h"

namespace lgpu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class SessionConnectTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "lgpu-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    path_ = directory_ + "/session.sock";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  UniqueFd Listen(int type, int backlog) {
    UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(socket.get(), backlog), 0);
    return socket;
  }

  absl::Status ConnectStatus() const { return GeneratedChannel::Connect(path_).status(); }

  std::string directory_;
  std::string path_;
};

TEST_F(SessionConnectTest, AListenerIsReached) {
  const UniqueFd listener = Listen(SOCK_SEQPACKET, 8);
  auto client = GeneratedChannel::Connect(path_);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(::fcntl(client->fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  GeneratedChannel daemon(UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  EXPECT_EQ(GetPeerCredentials(daemon.fd())->pid, ::getpid());
  v1::Frame hello;
  hello.mutable_hello()->set_client("test");
  ASSERT_TRUE(client->Send(hello).ok());
  EXPECT_EQ(daemon.Receive()->frame.hello().client(), "test");
}

TEST_F(SessionConnectTest, APathMustFitIntoASocketAddress) {
  EXPECT_EQ(GeneratedChannel::Connect("").status().code(), absl::StatusCode::kInvalidArgument);
  const std::string longest = "/" + std::string(106, 'x');
  EXPECT_EQ(GeneratedChannel::Connect(longest).status().code(), absl::StatusCode::kUnavailable);
  const absl::Status status = GeneratedChannel::Connect(longest + "x").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("108 bytes"));
}

TEST_F(SessionConnectTest, NoDaemonNamesTheDirectoryAndTheNextStep) {
  const absl::Status status = ConnectStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              StartsWith("no lgpud at " + directory_ + " (no such file)\n  try: "));
  std::filesystem::remove(directory_);
  EXPECT_EQ(ConnectStatus(), status);
}

TEST_F(SessionConnectTest, ASocketWithoutAListenerIsNoDaemon) {
  Listen(SOCK_SEQPACKET, 8).Reset();
  const absl::Status status = ConnectStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("(no process listens at its socket)"));
}

TEST_F(SessionConnectTest, AnotherKindOfSocketIsNoDaemon) {
  const UniqueFd listener = Listen(SOCK_STREAM, 8);
  const absl::Status status = ConnectStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("its socket is of another kind"));
}

TEST_F(SessionConnectTest, AClosedFolderNamesTheGroupAndTheUser) {
  constexpr uid_t kNobodyElse = 64217;
  const UniqueFd listener = Listen(SOCK_SEQPACKET, 8);
  absl::Status owner_only;
  absl::Status group_only;
  bool is_other_user = true;
  std::thread client([&] {
    ASSERT_EQ(::chmod(directory_.c_str(), ::geteuid() == 0 ? 0700 : 0), 0);
    // By system call: the library's functions would change every thread of the process. The right to search
    // any folder goes with the user id.
    is_other_user = ::geteuid() != 0 || (::syscall(SYS_setresgid, -1, kNobodyElse, -1) == 0 &&
                                         ::syscall(SYS_setresuid, -1, kNobodyElse, -1) == 0);
    owner_only = ConnectStatus();
  });
  client.join();
  if (!is_other_user) {
    GTEST_SKIP() << "root may search every folder, and this sandbox does not let a thread change its user";
  }
  EXPECT_EQ(owner_only.code(), absl::StatusCode::kPermissionDenied) << owner_only;
  EXPECT_THAT(std::string(owner_only.message()), HasSubstr("is open to its owner"));
  if (::geteuid() != 0) {
    ASSERT_EQ(::chmod(directory_.c_str(), 0700), 0);
    return;
  }
  ASSERT_EQ(::chmod(directory_.c_str(), 0750), 0);
  std::thread other_client([&] {
    ASSERT_EQ(::syscall(SYS_setgroups, 0, nullptr), 0);
    ASSERT_EQ(::syscall(SYS_setresgid, -1, kNobodyElse, -1), 0);
    ASSERT_EQ(::syscall(SYS_setresuid, -1, kNobodyElse, -1), 0);
    group_only = ConnectStatus();
  });
  other_client.join();
  EXPECT_EQ(group_only.code(), absl::StatusCode::kPermissionDenied) << group_only;
  EXPECT_THAT(std::string(group_only.message()),
              HasSubstr("belongs to group root; you are 64217, groups: 64217"));
  EXPECT_THAT(std::string(group_only.message()),
              AllOf(HasSubstr("groupadd --system lgpu"), Not(HasSubstr("usermod"))))
      << "nobody is to join root's group";
}

TEST_F(SessionConnectTest, AFullQueueIsWaitedFor) {
  constexpr int kClients = 24;
  const UniqueFd listener = Listen(SOCK_SEQPACKET, 1);
  std::atomic<int> connected = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([this, &connected] {
      const absl::Status status = ConnectStatus();
      EXPECT_TRUE(status.ok()) << status;
      connected += status.ok() ? 1 : 0;
    });
  }
  std::vector<UniqueFd> accepted;
  while (accepted.size() < kClients) {
    accepted.emplace_back(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(accepted.back());
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(connected.load(), kClients);
}

TEST_F(SessionConnectTest, ADaemonThatAcceptsNoConnectionIsUnavailable) {
  const UniqueFd listener = Listen(SOCK_SEQPACKET, 0);
  std::vector<UniqueFd> clients;
  absl::Status status;
  while (clients.size() < 10) {
    auto client = ConnectUnix(path_, SOCK_SEQPACKET, std::chrono::milliseconds(20));
    if (!client.ok()) {
      status = client.status();
      break;
    }
    clients.push_back(*std::move(client));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("its queue is full"));
}

}  // namespace
}  // namespace lgpu
