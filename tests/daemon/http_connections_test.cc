#include "daemon/http/http_connections.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <semaphore>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "daemon/http/http_address.h"

namespace lgpu::daemon {
namespace {

TEST(HttpAddressTest, AHostHeaderNamesThisMachineAndAPortOrNothingBehindIt) {
  for (const char* const host :
       {"localhost", "LocalHost:80", "127.0.0.1", "127.1.2.3:9400", "[::1]", "[::1]:9400"}) {
    EXPECT_TRUE(NamesLoopback(host)) << host;
  }
  for (const char* const host :
       {"", "evil.example", "[::1].evil.example", "[::1]evil", "[::1]:80.evil.example", "[::1", "::1",
        "localhost.evil.example", "localhost:evil.example", "127.0.0.1.evil.example",
        "127.0.0.1:80@evil.example", "192.0.2.1", "[2001:db8::1]"}) {
    EXPECT_FALSE(NamesLoopback(host)) << host;
  }
}

// Of eight places one user alone has four, and of two threads one. No connection goes for being slow.
constexpr BoundedServer::Bounds kBounds{.request = std::chrono::minutes(1),
                                        .answer = std::chrono::minutes(1),
                                        .moment = std::chrono::minutes(1),
                                        .threads = 2,
                                        .places = 8};
constexpr int kShare = 4;

// A server that answers "/held" when it may.
class HttpConnectionsTest : public ::testing::Test {
 protected:
  HttpConnectionsTest() {
    server_.Get("/held", [this](const httplib::Request&, httplib::Response& response) {
      began_.release();
      may_end_.acquire();
      response.set_content("held", "text/plain");
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    EXPECT_TRUE(server_.Prepare().ok());
    thread_ = std::thread([this] { server_.listen_after_bind(); });
  }
  ~HttpConnectionsTest() override {
    may_end_.release(kShare);
    server_.Stop();
    thread_.join();
  }

  UniqueFd Ask() const {
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    constexpr std::string_view kRequest = "GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n";
    EXPECT_EQ(::send(socket.get(), kRequest.data(), kRequest.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(kRequest.size()));
    return socket;
  }
  static std::string ReadAnswer(const UniqueFd& socket) {
    std::string answer;
    char bytes[512];
    while (true) {
      const ssize_t count = ::recv(socket.get(), bytes, sizeof(bytes), 0);
      EXPECT_GE(count, 0) << "the connection was reset";
      if (count <= 0) return answer;
      answer.append(bytes, static_cast<std::size_t>(count));
    }
  }

  BoundedServer server_{kBounds};
  std::counting_semaphore<> began_{0};
  std::counting_semaphore<> may_end_{0};
  int port_ = 0;
  std::thread thread_;
};

TEST_F(HttpConnectionsTest, ConnectionsBeyondTheShareAreToldSoAndTheOthersServedInTurn) {
  std::vector<UniqueFd> served;
  for (int i = 0; i < kShare; ++i) served.push_back(Ask());
  began_.acquire();
  for (int i = 0; i < 10; ++i) {
    const std::string answer = ReadAnswer(Ask());
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 503 ")) << answer;
    EXPECT_NE(answer.find("your user has too many connections to this port"), std::string::npos) << answer;
  }
  may_end_.release(kShare);
  for (const UniqueFd& socket : served) EXPECT_TRUE(ReadAnswer(socket).starts_with("HTTP/1.1 200 "));
}

}  // namespace
}  // namespace lgpu::daemon
