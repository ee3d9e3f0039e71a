// A user that does everything that the control socket allows must not stop another user's calls.

#include <gmock/gmock.h>

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/daemon/daemon_fixture.h"
#include "tests/support/open_files_limit.h"
#include "tests/support/raw_http2.h"
#include "tests/support/sanitizers.h"

namespace lgpu::daemon {
namespace {

constexpr std::uint32_t kFlooder = 12345;

class ControlAttackTest : public DaemonFixture {
 protected:
  void SetUp() override {
    if (files_.hard() < 8192) {
      GTEST_SKIP() << "the limit of open files is " << files_.hard() << "; 8192 are needed";
    }
    DaemonFixture::SetUp();
  }
  UniqueFd ConnectAsAttacker() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    daemon_->ServeControl(UniqueFd(ends[0]), {.uid = kFlooder, .gid = kFlooder, .pid = 1});
    return UniqueFd(ends[1]);
  }
  RawHttp2& Attack(std::uint32_t window) {
    attackers_.push_back(std::make_unique<RawHttp2>(ConnectAsAttacker(), window));
    return *attackers_.back();
  }

  /// A call of another user is answered.
  void ExpectService() {
    const std::unique_ptr<v1::Control::Stub> stub = Connect();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::GetVersionResponse version;
    const grpc::Status status = stub->GetVersion(&context, {}, &version);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }

  std::vector<std::unique_ptr<RawHttp2>> attackers_;

 private:
  const OpenFilesLimit files_{OpenFilesLimit::kAll};
};

TEST_F(ControlAttackTest, AnswersThatAreNotReadHoldNoThread) {
  for (int i = 0; i < 100; ++i) {
    RawHttp2& attacker = Attack(/*window=*/0);
    for (int call = 0; call < 4; ++call) {
      attacker.StartCall("GetStats");
      attacker.SendData(RawHttp2::MessageHeader(0), true);
    }
  }
  ExpectService();
}

TEST_F(ControlAttackTest, UnreadStreamsLeaveRoomForOtherUsersStreams) {
  for (int i = 0; i < 100; ++i) {
    RawHttp2& attacker = Attack(/*window=*/0);
    for (int call = 0; call < 4; ++call) {
      attacker.StartCall("WatchEvents");
      attacker.SendData(RawHttp2::MessageHeader(0), true);
    }
  }
  ExpectService();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  const auto events = stub_->WatchEvents(&context, {});
  v1::Event event;
  EXPECT_TRUE(events->Read(&event));
  EXPECT_EQ(event.kind(), v1::Event::KIND_DAEMON_STARTED);
  context.TryCancel();
  EXPECT_FALSE(events->Finish().ok());
}

std::uint64_t ResidentKib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmRSS:") continue;
    std::uint64_t kib = 0;
    status >> kib;
    return kib;
  }
  return 0;
}

TEST_F(ControlAttackTest, UnfinishedRequestsTakeLittleMemory) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer keeps memory that was freed";
  const std::uint64_t before = ResidentKib();
  constexpr std::uint32_t kLength = 4 << 20;
  const std::string part(60'000, 'x');
  for (int i = 0; i < 200; ++i) {
    RawHttp2& attacker = Attack(/*window=*/1 << 20);
    for (int call = 0; call < 16; ++call) {
      attacker.StartCall("CreateLease");
      attacker.SendData(RawHttp2::MessageHeader(kLength), false);
      attacker.SendData(part, false);
    }
  }
  ExpectService();
  EXPECT_LT(ResidentKib() - before, 100 * 1024u);
}

TEST_F(ControlAttackTest, AHerdOfCallersIsServed) {
  constexpr int kCallers = 1000;
  struct Caller {
    std::unique_ptr<v1::Control::Stub> stub;
    grpc::ClientContext context;
    v1::Lease lease;
    grpc::Status status;
  };
  std::vector<std::unique_ptr<Caller>> callers;
  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<grpc::ClientAsyncResponseReader<v1::Lease>>> calls;
  for (int i = 0; i < kCallers; ++i) {
    callers.push_back(std::make_unique<Caller>());
    callers.back()->stub = Connect();
  }
  for (int i = 0; i < kCallers; ++i) {
    v1::CreateLeaseRequest request;
    request.set_lasting(true);
    AddDevice(request, 16);
    calls.push_back(callers[i]->stub->AsyncCreateLease(&callers[i]->context, request, &queue));
    calls.back()->Finish(&callers[i]->lease, &callers[i]->status, callers[i].get());
  }
  for (int i = 0; i < kCallers; ++i) {
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_TRUE(static_cast<Caller*>(tag)->status.ok()) << static_cast<Caller*>(tag)->status.error_message();
  }
}

TEST_F(ControlAttackTest, AUserWithTooManyCallsIsAskedToTryAgain) {
  // One user has half of all places.
  constexpr int kConnections = 2048 / 4 + 1;
  for (int i = 0; i < kConnections; ++i) {
    RawHttp2& attacker = Attack(/*window=*/0);
    for (int call = 0; call < 4; ++call) {
      attacker.StartCall("GetVersion");
      attacker.SendData(RawHttp2::MessageHeader(0), true);
    }
  }
  const auto stub =
      v1::Control::NewStub(grpc::CreateInsecureChannelFromFd("lgpu", ConnectAsAttacker().Release()));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  grpc::Status status;
  do {
    grpc::ClientContext context;
    v1::GetVersionResponse version;
    status = stub->GetVersion(&context, {}, &version);
    EXPECT_EQ(context.GetServerTrailingMetadata().count("lgpu-retry-after-ms"), status.ok() ? 0u : 1u);
  } while (status.ok() && std::chrono::steady_clock::now() < end);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("your programs have 2048 unfinished calls"));
  ExpectService();
}

TEST_F(ControlAttackTest, LeasesThatWaitHoldNoThreadAndHaveAShare) {
  v1::CreateLeaseRequest all;
  all.set_lasting(true);
  AddDevice(all, 256, /*preallocate=*/true);
  v1::Lease lease;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->CreateLease(&context, all, &lease).ok());
  v1::WaitForLeaseRequest request;
  request.mutable_create()->set_lasting(true);
  AddDevice(*request.mutable_create(), 16, /*preallocate=*/true);
  const std::string message = request.SerializeAsString();
  constexpr int kShare = 512;
  for (int i = 0; i < kShare / 4 + 10; ++i) {
    RawHttp2& attacker = Attack(/*window=*/1 << 16);
    for (int call = 0; call < 4; ++call) {
      attacker.StartCall("WaitForLease");
      attacker.SendData(RawHttp2::MessageHeader(static_cast<std::uint32_t>(message.size())) + message, true);
    }
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  while (Stats().cards(0).queue_size() < kShare && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_EQ(Stats().cards(0).queue_size(), kShare);
  ExpectService();
  // Another user's lease is made, and one that waits has the second place.
  const TestSession session = OpenSession();
  CreateLease(session, 16);
  const std::unique_ptr<v1::Control::Stub> stub = Connect();
  grpc::ClientContext waits;
  const auto stream = stub->WaitForLease(&waits, request);
  v1::LeaseWait wait;
  ASSERT_TRUE(stream->Read(&wait));
  EXPECT_EQ(wait.place(), 2u) << wait.ShortDebugString();
  attackers_.clear();
  grpc::ClientContext removes;
  v1::RemoveLeaseRequest remove;
  remove.set_lease(lease.id());
  v1::RemoveLeaseResponse removed;
  EXPECT_TRUE(stub_->RemoveLease(&removes, remove, &removed).ok());
  while (stream->Read(&wait) && !wait.has_lease()) {
  }
  EXPECT_TRUE(wait.has_lease());
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(ControlAttackTest, ARequestThatIsTooLongIsRefused) {
  grpc::ClientContext context;
  v1::GetLeaseRequest request;
  request.set_lease(std::string(100'000, 'x'));
  v1::Lease lease;
  EXPECT_EQ(stub_->GetLease(&context, request, &lease).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace lgpu::daemon
