#ifndef LGPU_TESTS_DAEMON_DAEMON_FIXTURE_H_
#define LGPU_TESTS_DAEMON_DAEMON_FIXTURE_H_

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/daemon.h"
#include "lgpu/v1/control.grpc.pb.h"
#include "tests/daemon/temporary_directory.h"
#include "tests/support/generated_channel.h"

namespace lgpu::daemon {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// The client's end of a session, as the wire has it.
struct TestSession {
  GeneratedChannel channel;
  std::string token;
  std::vector<UniqueFd> pages;

  GeneratedFrame Receive() {
    absl::StatusOr<GeneratedFrame> frame =
        channel.Receive(std::chrono::steady_clock::now() + std::chrono::seconds(30));
    EXPECT_TRUE(frame.ok()) << frame.status();
    return frame.ok() ? *std::move(frame) : GeneratedFrame();
  }
  void Send(const v1::Frame& frame, std::span<const int> fds = {}) {
    EXPECT_TRUE(channel.Send(frame, fds).ok());
  }
};

/// A daemon over one simulated card, with connections from this process.
class DaemonFixture : public ::testing::Test {
 protected:
  void StartDaemon(Config config) {
    config.runtime_dir = directory_.path();
    config.lock_dir = directory_.path();
    config.simulated = {{.memory = Bytes(256 * kMiB), .uuid = "", .sparse = true}};
    registry_ = *DeviceRegistry::Open(config);
    daemon_ = *Daemon::Start(config, *registry_);
    stub_ = Connect();
  }
  void SetUp() override { StartDaemon({}); }

  std::unique_ptr<v1::Control::Stub> Connect() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    daemon_->ServeControl(UniqueFd(ends[0]), *GetPeerCredentials(ends[0]));
    return v1::Control::NewStub(grpc::CreateInsecureChannelFromFd("lgpu", ends[1]));
  }

  GeneratedChannel ConnectSession() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    daemon_->ServeSession(UniqueFd(ends[0]), *GetPeerCredentials(ends[0]));
    return GeneratedChannel(UniqueFd(ends[1]));
  }

  TestSession OpenSession() {
    TestSession session{.channel = ConnectSession(), .token = "", .pages = {}};
    v1::Frame hello;
    hello.mutable_hello()->set_protocol_version(
        GeneratedChannel::kOldestVersion);  // which is never asked to trim
    hello.mutable_hello()->set_oldest_version(GeneratedChannel::kOldestVersion);
    hello.mutable_hello()->set_command("test");
    session.Send(hello);
    GeneratedFrame welcome = session.Receive();
    EXPECT_TRUE(welcome.frame.has_welcome()) << welcome.frame.DebugString();
    session.token = welcome.frame.welcome().session_token();
    session.pages = std::move(welcome.fds);
    return session;
  }

  static void AddDevice(v1::CreateLeaseRequest& request, std::uint64_t mib, bool preallocate = false) {
    v1::LogicalDeviceSpec& device = *request.add_devices();
    device.set_memory_limit_bytes(mib * kMiB);
    device.set_mode(preallocate ? v1::LogicalDeviceSpec::MODE_PREALLOCATE
                                : v1::LogicalDeviceSpec::MODE_GROWTH);
  }
  grpc::Status Create(const TestSession& session, const v1::CreateLeaseRequest& request, v1::Lease* lease) {
    grpc::ClientContext context;
    context.AddMetadata("lgpu-session-token-bin", session.token);
    return stub_->CreateLease(&context, request, lease);
  }
  v1::Lease CreateLease(const TestSession& session, std::uint64_t mib, bool preallocate = false) {
    v1::CreateLeaseRequest request;
    AddDevice(request, mib, preallocate);
    v1::Lease lease;
    const grpc::Status status = Create(session, request, &lease);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return lease;
  }
  v1::StatsSnapshot Stats() {
    grpc::ClientContext context;
    v1::StatsSnapshot snapshot;
    EXPECT_TRUE(stub_->GetStats(&context, {}, &snapshot).ok());
    return snapshot;
  }
  std::uint64_t HeldBytes() { return Stats().cards(0).held_bytes(); }

  static v1::Frame Grow(std::uint64_t request, const v1::Lease& lease, std::uint64_t bytes,
                        std::uint64_t timeout_ms = 0) {
    v1::Frame frame;
    frame.mutable_grow()->set_request_id(request);
    frame.mutable_grow()->set_device_id(lease.devices(0).id());
    frame.mutable_grow()->set_at_least_bytes(bytes);
    frame.mutable_grow()->set_wanted_bytes(bytes);
    frame.mutable_grow()->set_timeout_ms(timeout_ms);
    return frame;
  }
  static v1::Frame Ack(const v1::Grant& grant) {
    v1::Frame frame;
    frame.mutable_ack()->set_grant_id(grant.grant_id());
    return frame;
  }
  static v1::Frame Close() {
    v1::Frame frame;
    frame.mutable_close()->set_request_id(77);
    return frame;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<DeviceRegistry> registry_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<v1::Control::Stub> stub_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_TESTS_DAEMON_DAEMON_FIXTURE_H_
