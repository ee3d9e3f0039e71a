#ifndef LGPU_TESTS_CLIENT_FAKE_DAEMON_H_
#define LGPU_TESTS_CLIENT_FAKE_DAEMON_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "client/session/daemon_connection.h"
#include "proto/mapped_region.h"
#include "proto/wire/pages.h"
#include "tests/support/generated_channel.h"

namespace lgpu::testing {

/// The daemon's end of a session, for scripts that a test runs on a thread of its own.
class FakePeer {
 public:
  explicit FakePeer(UniqueFd socket) : channel_(std::move(socket)) {}

  /// The next frame of the client; an empty one at the end of the session, or when none comes for long.
  v1::Frame Read() {
    absl::StatusOr<GeneratedFrame> received =
        channel_.Receive(std::chrono::steady_clock::now() + std::chrono::seconds(20));
    return received.ok() ? received->frame : v1::Frame();
  }
  void Send(const v1::Frame& frame, const std::vector<int>& fds = {}) { (void)channel_.Send(frame, fds); }

  /// Takes Hello and answers it, as a daemon that speaks `version`.
  void Greet(std::uint32_t version = GeneratedChannel::kProtocolVersion) {
    EXPECT_TRUE(Read().has_hello());
    absl::StatusOr<SharedPage<StatsPage>> stats = SharedPages::CreateStatsPage(MapWithBoost);
    auto client = SharedPages::CreateClientPage(MapWithBoost);
    ASSERT_TRUE(stats.ok() && client.ok());
    stats_ = *std::move(stats);
    v1::Frame frame = WelcomeFrame();
    frame.mutable_welcome()->set_protocol_version(version);
    Send(frame, {stats_.fd(), client->fd()});
  }
  static v1::Frame WelcomeFrame() {
    v1::Frame frame;
    v1::Welcome& welcome = *frame.mutable_welcome();
    welcome.set_protocol_version(GeneratedChannel::kProtocolVersion);
    welcome.set_session_id(7);
    welcome.set_session_token("0123456789abcdef0123456789abcdef");
    welcome.set_stats_page_bytes(sizeof(StatsPage));
    welcome.set_client_page_bytes(sizeof(ClientPage));
    welcome.set_daemon("lgpud fake");
    return frame;
  }

  /// A page of a grant: `count` chunks of `bytes` from `first_id` on.
  struct Page {
    std::uint64_t request = 0;
    std::uint64_t first_id = 1;
    int count = 1;
    std::uint64_t bytes = std::uint64_t{2} << 20;
    bool more = false;
    std::uint64_t device = 1;
  };
  void Grant(const Page& page) {
    v1::Frame frame;
    v1::Grant& grant = *frame.mutable_grant();
    grant.set_request_id(page.request);
    grant.set_grant_id(++last_grant_);
    grant.set_device_id(page.device);
    grant.set_more(page.more);
    std::vector<UniqueFd> files;
    std::vector<int> fds;
    for (int i = 0; i < page.count; ++i) {
      v1::Chunk& chunk = *grant.add_chunks();
      chunk.set_id(page.first_id + static_cast<std::uint64_t>(i));
      chunk.set_bytes(page.bytes);
      files.emplace_back(::memfd_create("fake-chunk", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      EXPECT_EQ(::ftruncate(files.back().get(), static_cast<off_t>(page.bytes)), 0);
      fds.push_back(files.back().get());
    }
    Send(frame, fds);
  }
  void Refuse(std::uint64_t request, absl::StatusCode code, const std::string& message) {
    v1::Frame frame;
    frame.mutable_grow_refused()->set_request_id(request);
    frame.mutable_grow_refused()->set_code(static_cast<int>(code));
    frame.mutable_grow_refused()->set_message(message);
    Send(frame);
  }
  void Goodbye(const std::string& message) {
    v1::Frame frame;
    frame.mutable_goodbye()->set_code(static_cast<int>(absl::StatusCode::kUnavailable));
    frame.mutable_goodbye()->set_message(message);
    Send(frame);
  }
  void Returned(std::uint64_t request) {
    v1::Frame frame;
    frame.mutable_returned()->set_request_id(request);
    Send(frame);
  }
  void Closed(std::uint64_t request) {
    v1::Frame frame;
    frame.mutable_closed()->set_request_id(request);
    Send(frame);
  }
  std::uint64_t last_grant() const { return last_grant_; }
  SharedPage<StatsPage>& stats() { return stats_; }
  GeneratedChannel& channel() { return channel_; }

 private:
  GeneratedChannel channel_;
  SharedPage<StatsPage> stats_;
  std::uint64_t last_grant_ = 0;
};

/// Runs `script` as the daemon of a session until it returns; then its end of the session is closed.
class FakeDaemon {
 public:
  explicit FakeDaemon(std::function<void(FakePeer&)> script) {
    int pair[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    client_ = UniqueFd(pair[0]);
    thread_ = std::thread([script = std::move(script), fd = pair[1]] {
      FakePeer peer{UniqueFd(fd)};
      script(peer);
    });
  }
  ~FakeDaemon() { Join(); }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

  /// A connection that looks for the next daemon at `reconnect_path`.
  absl::StatusOr<std::unique_ptr<DaemonConnection>> Connect(const std::string& reconnect_path) {
    return DaemonConnection::Open(std::move(client_), {.directory = "/fake",
                                                       .answer_timeout = std::chrono::seconds(20),
                                                       .greeting_timeout = std::chrono::seconds(20),
                                                       .reconnect_path = reconnect_path});
  }
  absl::StatusOr<std::unique_ptr<DaemonConnection>> Connect(
      std::chrono::milliseconds answer_timeout = std::chrono::seconds(20)) {
    return DaemonConnection::Open(std::move(client_), {.directory = "/fake",
                                                       .answer_timeout = answer_timeout,
                                                       .greeting_timeout = std::chrono::seconds(20)});
  }

 private:
  UniqueFd client_;
  std::thread thread_;
};

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_CLIENT_FAKE_DAEMON_H_
