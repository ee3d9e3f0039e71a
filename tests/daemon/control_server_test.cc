#include <poll.h>
#include <sys/resource.h>

#include <thread>

#include "proto/refusal_codec.h"
#include "tests/daemon/daemon_fixture.h"
#include "tests/support/open_files_limit.h"

namespace lgpu::daemon {
namespace {

using ControlServerTest = DaemonFixture;

TEST_F(ControlServerTest, ListsTheCards) {
  grpc::ClientContext context;
  v1::ListPhysicalDevicesResponse response;
  ASSERT_TRUE(stub_->ListPhysicalDevices(&context, {}, &response).ok());
  ASSERT_EQ(response.devices_size(), 1);
  EXPECT_TRUE(response.devices(0).served());
  EXPECT_EQ(response.devices(0).free_bytes(), 256 * kMiB);
}

TEST_F(ControlServerTest, ARepeatedCreateReturnsTheSameLease) {
  TestSession session = OpenSession();
  v1::CreateLeaseRequest request;
  request.set_request_id("once");
  AddDevice(request, 64);
  v1::Lease first;
  v1::Lease second;
  ASSERT_TRUE(Create(session, request, &first).ok());
  ASSERT_TRUE(Create(session, request, &second).ok());
  EXPECT_EQ(first.id(), second.id());
  EXPECT_EQ(second.sessions(), 1u);
  EXPECT_EQ(second.sessions_ever(), 1u);
}

TEST_F(ControlServerTest, PreallocatedMemoryIsThereFromTheStartAndGoesWithTheLease) {
  TestSession session = OpenSession();
  CreateLease(session, 128, true);
  EXPECT_EQ(HeldBytes(), 128 * kMiB);
  session.Send(Close());
  EXPECT_TRUE(session.Receive().frame.has_closed());
  EXPECT_EQ(HeldBytes(), 0u);
}

TEST_F(ControlServerTest, AGuaranteeThatDoesNotFitIsRefusedWithItsNumbers) {
  TestSession session = OpenSession();
  TestSession other = OpenSession();
  CreateLease(session, 200, true);
  v1::CreateLeaseRequest request;
  AddDevice(request, 100, true);
  v1::Lease lease;
  const grpc::Status status = Create(other, request, &lease);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const absl::Status decoded =
      DecodeStatusDetails(absl::ResourceExhaustedError(status.error_message()), status.error_details());
  const std::optional<Refusal> refusal = GetRefusal(decoded);
  ASSERT_TRUE(refusal.has_value());
  ASSERT_EQ(refusal->holders.size(), 1u);
  EXPECT_EQ(refusal->holders[0].guarantee, Bytes(200 * kMiB));
  EXPECT_EQ(Stats().leases_size(), 1);
}

TEST_F(ControlServerTest, BadRequestsHaveTheRightCodes) {
  TestSession session = OpenSession();
  v1::Lease lease;
  v1::CreateLeaseRequest none;
  EXPECT_EQ(Create(session, none, &lease).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::CreateLeaseRequest huge;
  AddDevice(huge, 100'000);
  EXPECT_EQ(Create(session, huge, &lease).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::CreateLeaseRequest elsewhere;
  AddDevice(elsewhere, 16);
  elsewhere.mutable_devices(0)->set_card_uuid("GPU-nowhere");
  EXPECT_EQ(Create(session, elsewhere, &lease).error_code(), grpc::StatusCode::NOT_FOUND);
  v1::CreateLeaseRequest ownerless;
  AddDevice(ownerless, 16);
  grpc::ClientContext context;
  EXPECT_EQ(stub_->CreateLease(&context, ownerless, &lease).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  TestSession forged = OpenSession();
  forged.token = std::string(32, 'x');
  v1::CreateLeaseRequest fine;
  AddDevice(fine, 16);
  EXPECT_EQ(Create(forged, fine, &lease).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  grpc::ClientContext second;
  v1::GetLeaseRequest unknown;
  unknown.set_lease("nobody");
  EXPECT_EQ(stub_->GetLease(&second, unknown, &lease).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ControlServerTest, ALastingLeaseIsSharedAndRemoved) {
  v1::CreateLeaseRequest request;
  request.set_name("shared");
  request.set_lasting(true);
  AddDevice(request, 64);
  v1::Lease lease;
  grpc::ClientContext create;
  ASSERT_TRUE(stub_->CreateLease(&create, request, &lease).ok());
  grpc::ClientContext again;
  EXPECT_EQ(stub_->CreateLease(&again, request, &lease).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  TestSession session = OpenSession();
  grpc::ClientContext attach;
  attach.AddMetadata("lgpu-session-token-bin", session.token);
  v1::AttachLeaseRequest attachment;
  attachment.set_lease("shared");
  ASSERT_TRUE(stub_->AttachLease(&attach, attachment, &lease).ok());
  EXPECT_EQ(lease.sessions(), 1u);
  grpc::ClientContext remove;
  v1::RemoveLeaseRequest removal;
  removal.set_lease("shared");
  v1::RemoveLeaseResponse response;
  EXPECT_TRUE(stub_->RemoveLease(&remove, removal, &response).ok());
  EXPECT_TRUE(session.Receive().frame.has_goodbye());
  EXPECT_EQ(Stats().leases_size(), 0);
}

TEST_F(ControlServerTest, ARemovalAtOnceIsAnsweredWhileProgramsHaveTheirMemory) {
  bool is_held = false;
  // A slow machine may take longer to ask than the programs' second lasts.
  for (int round = 0; round < 5 && !is_held; ++round) {
    TestSession session = OpenSession();
    const v1::Lease lease = CreateLease(session, 16);
    session.Send(Grow(1, lease, 8 * kMiB));
    const GeneratedFrame granted = session.Receive();
    ASSERT_TRUE(granted.frame.has_grant());
    session.Send(Ack(granted.frame.grant()));
    grpc::ClientContext context;
    v1::RemoveLeaseRequest removal;
    removal.set_lease(lease.id());
    removal.set_at_once(true);
    v1::RemoveLeaseResponse response;
    ASSERT_TRUE(stub_->RemoveLease(&context, removal, &response).ok());
    is_held = HeldBytes() == 8 * kMiB;
    EXPECT_TRUE(session.Receive().frame.has_goodbye());
  }
  EXPECT_TRUE(is_held);
}

TEST_F(ControlServerTest, AResizedLimitHolds) {
  TestSession session = OpenSession();
  const v1::Lease lease = CreateLease(session, 16);
  grpc::ClientContext context;
  v1::ResizeLeaseRequest request;
  request.set_lease(lease.id());
  v1::ResizeLeaseRequest::Device& device = *request.add_devices();
  device.set_memory_limit_bytes(32 * kMiB);
  v1::Lease resized;
  ASSERT_TRUE(stub_->ResizeLease(&context, request, &resized).ok());
  EXPECT_EQ(resized.devices(0).memory_limit_bytes(), 32 * kMiB);
  session.Send(Grow(1, lease, 32 * kMiB));
  EXPECT_TRUE(session.Receive().frame.has_grant());
}

TEST_F(ControlServerTest, AGuaranteeStaysAsFarAsALowerLimitAllows) {
  TestSession session = OpenSession();
  const v1::Lease lease = CreateLease(session, 64);
  const auto resize = [&](std::uint64_t limit, std::optional<std::uint64_t> guarantee) {
    grpc::ClientContext context;
    v1::ResizeLeaseRequest request;
    request.set_lease(lease.id());
    v1::ResizeLeaseRequest::Device& device = *request.add_devices();
    device.set_memory_limit_bytes(limit * kMiB);
    if (guarantee) device.set_guarantee_bytes(*guarantee * kMiB);
    v1::Lease resized;
    const grpc::Status status = stub_->ResizeLease(&context, request, &resized);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return resized.devices_size() == 1 ? resized.devices(0).guarantee_bytes() / kMiB : 0;
  };
  EXPECT_EQ(resize(64, 32), 32u);
  EXPECT_EQ(resize(48, std::nullopt), 32u);
  EXPECT_EQ(resize(16, std::nullopt), 16u);
  EXPECT_EQ(resize(64, std::nullopt), 16u);
}

TEST_F(ControlServerTest, ALeaseMayEndWhileItIsResized) {
  for (int round = 0; round < 30; ++round) {
    TestSession session = OpenSession();
    const v1::Lease lease = CreateLease(session, 64, true);
    std::vector<std::thread> resizers;
    for (const std::uint64_t mib : {128, 96}) {
      resizers.emplace_back([this, &lease, mib] {
        for (int i = 0; i < 10; ++i) {
          grpc::ClientContext context;
          v1::ResizeLeaseRequest request;
          request.set_lease(lease.id());
          request.add_devices()->set_memory_limit_bytes((i % 2 == 0 ? mib : 64) * kMiB);
          v1::Lease resized;
          const grpc::Status status = stub_->ResizeLease(&context, request, &resized);
          EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::NOT_FOUND)
              << status.error_message();
        }
      });
    }
    session.Send(Close());
    EXPECT_TRUE(session.Receive().frame.has_closed());
    for (std::thread& resizer : resizers) resizer.join();
    ASSERT_EQ(HeldBytes(), 0u);
    ASSERT_EQ(Stats().cards(0).promised_bytes(), 0u);
    ASSERT_EQ(Stats().leases_size(), 0);
  }
}

TEST_F(ControlServerTest, StateKeptForARequestIsBounded) {
  TestSession session = OpenSession();
  v1::CreateLeaseRequest request;
  AddDevice(request, 16);
  request.set_request_id(std::string(1000, 'x'));
  v1::Lease lease;
  EXPECT_EQ(Create(session, request, &lease).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  // A short record of the file of lasting leases has such bytes; a text of a user has none.
  request.set_request_id(std::string("\x40\0\0\0", 4));
  EXPECT_EQ(Create(session, request, &lease).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_request_id("short");
  request.mutable_devices(0)->set_name(std::string(1000, 'x'));
  EXPECT_EQ(Create(session, request, &lease).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.mutable_devices(0)->set_name("\033[2J");
  EXPECT_EQ(Create(session, request, &lease).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.mutable_devices(0)->set_name("weights");
  EXPECT_TRUE(Create(session, request, &lease).ok());
  EXPECT_EQ(lease.devices(0).label(), "weights");
}

// A user that opens connections without end must not use up the numbers that name connections.
class FewDescriptorsTest : public ControlServerTest {
 protected:
  // A connection of that user; nothing if the daemon closed it at once.
  UniqueFd ConnectAs(std::uint32_t uid) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    UniqueFd end(ends[1]);
    daemon_->ServeControl(UniqueFd(ends[0]), {.uid = uid, .gid = uid, .pid = 1});
    pollfd entry = {.fd = end.get(), .events = POLLIN, .revents = 0};
    ::poll(&entry, 1, 0);
    return (entry.revents & POLLHUP) == 0 ? std::move(end) : UniqueFd();
  }
  const OpenFilesLimit files_{1024};
};

TEST_F(FewDescriptorsTest, OneUserGetsAShareOfTheConnections) {
  constexpr int kShare = 1024 / 4 / 2;
  std::vector<UniqueFd> open;
  for (int i = 0; i < kShare; ++i) {
    open.push_back(ConnectAs(12345));
    ASSERT_TRUE(open.back()) << i;
  }
  EXPECT_FALSE(ConnectAs(12345));
  EXPECT_TRUE(ConnectAs(54321));
  const std::unique_ptr<v1::Control::Stub> other = Connect();
  grpc::ClientContext context;
  v1::GetVersionResponse version;
  EXPECT_TRUE(other->GetVersion(&context, {}, &version).ok());
  open.clear();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  UniqueFd again;
  while (!again && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    again = ConnectAs(12345);
  }
  EXPECT_TRUE(again);
}

// Connections that one user has closed do not count against another one.
TEST_F(FewDescriptorsTest, ClosedConnectionsOfOneUserDoNotMakeTheShareOfAnotherSmaller) {
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(ConnectAs(12345)) << i;  // and closed
  std::vector<UniqueFd> open;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (open.size() < 128 && std::chrono::steady_clock::now() < end) {
    UniqueFd connection = ConnectAs(54321);
    if (connection) {
      open.push_back(std::move(connection));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  EXPECT_EQ(open.size(), 128u);
}

class CappedTest : public DaemonFixture {
 protected:
  void SetUp() override {
    Config config;
    config.policy.user_caps = {
        {.name = "*", .memory_limit = Bytes(100 * kMiB), .guarantee = {}, .leases = 2}};
    StartDaemon(config);
  }
};

TEST_F(CappedTest, AUsersCapIsOverAllTheirLeases) {
  TestSession session = OpenSession();
  TestSession other = OpenSession();
  CreateLease(session, 64);
  v1::CreateLeaseRequest request;
  AddDevice(request, 64);
  v1::Lease lease;
  const grpc::Status status = Create(other, request, &lease);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(status.error_message().find("100.00MiB"), std::string::npos) << status.error_message();
}

TEST_F(CappedTest, ADefaultLimitIsTheRestOfTheCap) {
  TestSession session = OpenSession();
  CreateLease(session, 64);
  TestSession other = OpenSession();
  v1::CreateLeaseRequest request;
  request.add_devices()->set_mode(v1::LogicalDeviceSpec::MODE_GROWTH);
  request.add_devices()->set_mode(v1::LogicalDeviceSpec::MODE_GROWTH);
  v1::Lease lease;
  const grpc::Status status = Create(other, request, &lease);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(lease.devices(0).memory_limit_bytes(), 18 * kMiB) << "36 MiB are left for two";
  EXPECT_EQ(lease.devices(1).memory_limit_bytes(), 18 * kMiB);
}

TEST_F(CappedTest, ACapCountsWholeChunks) {
  TestSession session = OpenSession();
  v1::CreateLeaseRequest request;
  for (int i = 0; i < 51; ++i) {
    v1::LogicalDeviceSpec& device = *request.add_devices();
    device.set_memory_limit_bytes(512);  // which holds a chunk of 2 MiB all the same
    device.set_mode(v1::LogicalDeviceSpec::MODE_GROWTH);
  }
  v1::Lease lease;
  grpc::Status status = Create(session, request, &lease);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "more than the cap all by itself";
  EXPECT_NE(status.error_message().find("would have 102.00MiB"), std::string::npos) << status.error_message();
  request.mutable_devices()->RemoveLast();
  status = Create(session, request, &lease);
  EXPECT_TRUE(status.ok()) << status.error_message();

  grpc::ClientContext context;
  v1::ResizeLeaseRequest resize;
  resize.set_lease(lease.id());
  resize.add_devices()->set_memory_limit_bytes(2 * kMiB);
  EXPECT_TRUE(stub_->ResizeLease(&context, resize, &lease).ok()) << "as many chunks as before";
  resize.mutable_devices(0)->set_memory_limit_bytes(2 * kMiB + 1);
  grpc::ClientContext again;
  EXPECT_EQ(stub_->ResizeLease(&again, resize, &lease).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ControlServerTest, StopEndsOpenStreamsAndSessions) {
  TestSession session = OpenSession();
  CreateLease(session, 64);
  grpc::ClientContext context;
  const auto stream = stub_->WatchEvents(&context, {});
  v1::Event event;
  ASSERT_TRUE(stream->Read(&event));
  std::thread reader([&] {
    while (stream->Read(&event)) {
    }
  });
  daemon_->Stop();
  reader.join();
  EXPECT_TRUE(session.Receive().frame.has_goodbye());
}

}  // namespace
}  // namespace lgpu::daemon
