#include "daemon/server/acceptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "tests/daemon/temporary_directory.h"

namespace lgpu::daemon {
namespace {

// Keeps accepted connections, and lets the test wait for them.
class Accepted {
 public:
  Acceptor::Handler Handler() {
    return [this](UniqueFd socket, const PeerCredentials& peer) {
      const MutexLock lock(mutex_);
      sockets_.push_back(std::move(socket));
      peers_.push_back(peer);
      changed_.NotifyAll();
    };
  }
  bool WaitFor(std::size_t count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    const MutexLock lock(mutex_);
    while (sockets_.size() < count) {
      if (!changed_.WaitUntil(mutex_, deadline)) return false;
    }
    return true;
  }
  PeerCredentials peer(std::size_t i) {
    const MutexLock lock(mutex_);
    return peers_[i];
  }
  std::size_t count() {
    const MutexLock lock(mutex_);
    return sockets_.size();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<UniqueFd> sockets_ ABSL_GUARDED_BY(mutex_);
  std::vector<PeerCredentials> peers_ ABSL_GUARDED_BY(mutex_);
};

class AcceptorTest : public ::testing::Test {
 protected:
  AcceptorTest() : path_(temporary_.path() + "/socket") {
    address_.sun_family = AF_UNIX;
    std::strncpy(address_.sun_path, path_.c_str(), sizeof address_.sun_path - 1);
    listening_.Reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    EXPECT_EQ(::bind(listening_.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_), 0);
    EXPECT_EQ(::listen(listening_.get(), 256), 0);
  }
  static UniqueFd Socket() { return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }
  bool Connect(const UniqueFd& socket) const {
    return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_) == 0;
  }

  TemporaryDirectory temporary_;
  std::string path_;
  sockaddr_un address_ = {};
  UniqueFd listening_;
  Accepted accepted_;
};

TEST_F(AcceptorTest, HandsOverEveryConnectionWithItsPeer) {
  const auto acceptor = Acceptor::Start(listening_.get(), "test", accepted_.Handler());
  ASSERT_EQ(acceptor.status(), absl::OkStatus());
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 100; ++i) {
    clients.push_back(Socket());
    ASSERT_TRUE(Connect(clients.back())) << std::strerror(errno);
  }
  ASSERT_TRUE(accepted_.WaitFor(100));
  EXPECT_EQ(accepted_.peer(0).pid, ::getpid());
  EXPECT_EQ(accepted_.peer(99).uid, ::geteuid());
}

TEST_F(AcceptorTest, NothingIsHandedOverAfterStop) {
  const auto acceptor = Acceptor::Start(listening_.get(), "test", accepted_.Handler());
  ASSERT_EQ(acceptor.status(), absl::OkStatus());
  (*acceptor)->Stop();
  (*acceptor)->Stop();
  const UniqueFd client = Socket();
  EXPECT_TRUE(Connect(client));  // into the kernel's queue
  EXPECT_EQ(accepted_.count(), 0u);
}

TEST_F(AcceptorTest, WhenDescriptorsRunOutConnectionsWaitForThem) {
  const auto acceptor = Acceptor::Start(listening_.get(), "test", accepted_.Handler());
  ASSERT_EQ(acceptor.status(), absl::OkStatus());
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 64;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  const UniqueFd client = Socket();
  std::vector<UniqueFd> fill;
  for (;;) {
    UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd) break;
    fill.push_back(std::move(fd));
  }
  EXPECT_EQ(errno, EMFILE);
  EXPECT_TRUE(Connect(client));
  EXPECT_EQ(accepted_.count(), 0u);
  fill.clear();
  EXPECT_TRUE(accepted_.WaitFor(1));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace lgpu::daemon
