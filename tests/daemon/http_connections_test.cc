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

namespace lgpu::daemon {
namespace {

constexpr std::size_t kMostWaiting = 256;

// A server whose only thread answers "/held" when it may.
class HttpConnectionsTest : public testing::Test {
 protected:
  HttpConnectionsTest() {
    server_.Get("/held", [this](const httplib::Request&, httplib::Response& response) {
      began_.release();
      may_end_.acquire();
      response.set_content("held", "text/plain");
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    server_.WidenQueue();
    thread_ = std::thread([this] { server_.listen_after_bind(); });
  }
  ~HttpConnectionsTest() override {
    may_end_.release(2 * kMostWaiting);
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

  BoundedServer server_{BoundedServer::Bounds{.request = std::chrono::minutes(1), .threads = 1}};
  std::counting_semaphore<> began_{0};
  std::counting_semaphore<> may_end_{0};
  int port_ = 0;
  std::thread thread_;
};

TEST_F(HttpConnectionsTest, WhereTooManyWaitTheOldestIsToldSo) {
  const UniqueFd held = Ask();
  began_.acquire();
  std::vector<UniqueFd> waiting;
  for (std::size_t i = 0; i < kMostWaiting + 1; ++i) waiting.push_back(Ask());
  const std::string answer = ReadAnswer(waiting.front());
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 503 ")) << answer;
  EXPECT_NE(answer.find("too many connections wait at this port; try again"), std::string::npos) << answer;
  may_end_.release(2);
  EXPECT_TRUE(ReadAnswer(held).starts_with("HTTP/1.1 200 "));
  EXPECT_TRUE(ReadAnswer(waiting[1]).starts_with("HTTP/1.1 200 "));
}

}  // namespace
}  // namespace lgpu::daemon
