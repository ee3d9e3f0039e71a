#include <thread>

#include "proto/refusal_codec.h"
#include "tests/daemon/daemon_fixture.h"

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

class CappedTest : public DaemonFixture {
 protected:
  void SetUp() override {
    Config config;
    config.user_caps = {{.name = "*", .memory_limit = Bytes(100 * kMiB), .guarantee = {}, .leases = 2}};
    StartDaemon(config);
  }
};

TEST_F(CappedTest, AUsersCapIsOverAllHisLeases) {
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
