#include "client/session/daemon_connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <numeric>
#include <thread>

#include "lgpu/refusal.h"
#include "proto/refusal_messages.h"
#include "tests/client/daemon_dialogue.h"
#include "tests/support/child_program.h"

namespace lgpu {
namespace {

using ::lgpu::testing::Ask;
using ::lgpu::testing::Eventually;
using ::lgpu::testing::FakeDaemon;
using ::lgpu::testing::FakePeer;
using ::lgpu::testing::GrowAll;
using ::lgpu::testing::kDevice;
using ::lgpu::testing::ServeAll;
using ::lgpu::testing::Text;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DaemonConnectionTest, GrowReturnClose) {
  FakeDaemon daemon(ServeAll);
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok()) << connection.status();
  EXPECT_EQ((*connection)->session_id(), 7u);
  EXPECT_EQ((*connection)->token().size(), 32u);
  absl::StatusOr<std::vector<std::uint64_t>> ids = GrowAll(**connection, 6_MiB);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(*ids, ElementsAre(1, 2, 3));
  EXPECT_TRUE((*connection)->Return(kDevice, std::vector{ChunkId{1}, ChunkId{2}}).ok());
  EXPECT_TRUE((*connection)->Close().ok());
  EXPECT_TRUE((*connection)->Close().ok());
  EXPECT_EQ((*connection)->status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GrowAll(**connection, 2_MiB).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(DaemonConnectionTest, PagesComeOneByOneAndEachIsAcknowledgedFirst) {
  std::vector<std::uint64_t> acks;
  std::promise<void> acknowledged;
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet();
    const std::uint64_t request = peer.Read().grow().request_id();
    for (int page = 0; page < 3; ++page) {
      peer.Grant({.request = request,
                  .first_id = static_cast<std::uint64_t>(page * 10 + 1),
                  .count = 2,
                  .more = page < 2});
      acks.push_back(peer.Read().ack().grant_id());
    }
    acknowledged.set_value();
    peer.Read();
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  absl::StatusOr<std::vector<std::uint64_t>> ids = GrowAll(**connection, 12_MiB);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(*ids, ElementsAre(1, 2, 11, 12, 21, 22));
  // The last one by the session thread, since no other call follows.
  acknowledged.get_future().wait();
  connection->reset();
  daemon.Join();
  EXPECT_THAT(acks, ElementsAre(1, 2, 3));
}

TEST(DaemonConnectionTest, EveryGrantIsAcknowledgedOnce) {
  constexpr std::size_t kGrants = 50;
  std::vector<std::uint64_t> acks;
  std::promise<void> all_acknowledged;
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet();
    for (v1::Frame frame = peer.Read(); frame.body_case() != v1::Frame::BODY_NOT_SET; frame = peer.Read()) {
      const std::size_t before = acks.size();
      if (frame.acknowledges() != 0) acks.push_back(frame.acknowledges());
      if (frame.has_ack()) acks.push_back(frame.ack().grant_id());
      if (before < kGrants && acks.size() >= kGrants) all_acknowledged.set_value();
      if (frame.has_grow()) peer.Grant({.request = frame.grow().request_id(), .first_id = 1, .count = 1});
      if (frame.has_close()) peer.Closed(frame.close().request_id());
    }
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  for (std::size_t i = 0; i < kGrants; ++i) ASSERT_TRUE(GrowAll(**connection, 2_MiB).ok());
  // Close may overtake an acknowledgement that the session thread is about to send.
  all_acknowledged.get_future().wait();
  ASSERT_TRUE((*connection)->Close().ok());
  connection->reset();
  daemon.Join();
  // The session thread's may come behind that of a later grant, as this daemon awaits none of them.
  std::sort(acks.begin(), acks.end());
  std::vector<std::uint64_t> expected(kGrants);
  std::iota(expected.begin(), expected.end(), std::uint64_t{1});
  EXPECT_EQ(acks, expected);
}

TEST(DaemonConnectionTest, TheSessionThreadDoesMaintenanceWhichMayItselfGrow) {
  FakeDaemon daemon(ServeAll);
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  std::promise<absl::Status> grown;
  std::atomic<int> calls = 0;
  (*connection)->StartMaintenance([&](std::chrono::steady_clock::time_point) {
    if (++calls == 2) grown.set_value(GrowAll(**connection, 2_MiB).status());
    return std::optional<std::chrono::steady_clock::time_point>();
  });
  while (calls < 1) std::this_thread::yield();
  (*connection)->WakeMaintenance();
  EXPECT_TRUE(grown.get_future().get().ok());
  (*connection)->StopMaintenance();
  EXPECT_TRUE(GrowAll(**connection, 2_MiB).ok());
  EXPECT_TRUE((*connection)->Close().ok());
  EXPECT_EQ(calls, 2);
}

TEST(DaemonConnectionTest, AnEndThatIsConfirmedLateIsKnown) {
  std::atomic<bool> has_waited = false;
  FakeDaemon daemon([&has_waited](FakePeer& peer) {
    peer.Greet();
    const v1::Frame close = peer.Read();
    ASSERT_TRUE(close.has_close()) << close.DebugString();
    while (!has_waited) std::this_thread::yield();
    peer.Closed(close.close().request_id());
    EXPECT_FALSE(peer.Read().has_close());
  });
  auto connection = daemon.Connect(std::chrono::milliseconds(50));
  ASSERT_TRUE(connection.ok()) << connection.status();
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = (*connection)->Close();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  }
  has_waited = true;
  while (!(*connection)->Close().ok()) std::this_thread::yield();
  connection->reset();
}

// The daemon takes a frame after Close for a broken protocol, and the session for lost.
TEST(DaemonConnectionTest, NothingFollowsClose) {
  std::promise<void> grow_is_sent;
  v1::Frame after_close;
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet();
    const std::uint64_t grow = peer.Read().grow().request_id();
    grow_is_sent.set_value();
    const v1::Frame close = peer.Read();
    ASSERT_TRUE(close.has_close());
    peer.Grant({.request = grow});  // it was sent before Close came
    peer.Closed(close.close().request_id());
    after_close = peer.Read();
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  absl::StatusOr<std::vector<std::uint64_t>> ids;
  std::thread growing([&] { ids = GrowAll(**connection, 2_MiB); });
  grow_is_sent.get_future().wait();
  EXPECT_TRUE((*connection)->Close().ok());
  growing.join();
  connection->reset();
  daemon.Join();
  EXPECT_EQ(after_close.body_case(), v1::Frame::BODY_NOT_SET) << after_close.DebugString();
}

// A daemon that does not read for a while, and a grant that cannot be acknowledged in that time.
TEST(DaemonConnectionTest, AnAcknowledgementThatCouldNotBeSentIsSentLater) {
  std::promise<void> grow_is_sent;
  std::promise<void> full;
  std::promise<void> granted;
  std::uint64_t acknowledged = 0;
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet();
    const std::uint64_t grow = peer.Read().grow().request_id();
    grow_is_sent.set_value();
    full.get_future().wait();
    peer.Grant({.request = grow});
    granted.get_future().wait();
    // Time for the session thread to try and have no room; where it is slower, there is less to be seen.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    while (acknowledged == 0) {
      const v1::Frame frame = peer.Read();
      if (frame.body_case() == v1::Frame::BODY_NOT_SET) return;
      if (frame.has_ack()) acknowledged = frame.ack().grant_id();
    }
  });
  auto connection = daemon.Connect(std::chrono::milliseconds(20));
  ASSERT_TRUE(connection.ok());
  GrowRequest patient = Ask(2_MiB);
  patient.timeout = std::chrono::minutes(1);
  absl::StatusOr<DaemonConnection::GrowCall> call = (*connection)->Grow(kDevice, patient);
  ASSERT_TRUE(call.ok());
  absl::StatusOr<DaemonConnection::GrantPage> page;
  std::thread growing([&] { page = call->Next(); });
  const std::vector<ChunkId> many(GeneratedChannel::kMaxReturnChunks, ChunkId{~std::uint64_t{0}});
  grow_is_sent.get_future().wait();
  for (int i = 0; i < 12; ++i) EXPECT_FALSE((*connection)->Return(kDevice, many).ok());
  full.set_value();
  growing.join();
  EXPECT_TRUE(page.ok()) << page.status();
  granted.set_value();
  daemon.Join();
  EXPECT_EQ(acknowledged, 1u);
}

TEST(DaemonConnectionTest, ADaemonOfVersion2IsNotAskedToAttach) {
  v1::Frame next;
  FakeDaemon daemon([&next](FakePeer& peer) {
    peer.Greet(2);
    next = peer.Read();
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok()) << connection.status();
  const absl::Status status = (*connection)->Attach("job").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(status), HasSubstr("speaks version 2 of the session protocol"));
  EXPECT_THAT(Text(status), HasSubstr("a newer lgpud"));
  connection->reset();
  daemon.Join();
  EXPECT_FALSE(next.has_attach());
}

TEST(DaemonConnectionTest, AttachedIsTheLeaseOrTheDaemonsError) {
  FakeDaemon daemon([](FakePeer& peer) {
    peer.Greet();
    v1::Frame frame;
    v1::Attached& attached = *frame.mutable_attached();
    const v1::Frame asked = peer.Read();
    EXPECT_EQ(asked.attach().lease(), "no");
    attached.set_request_id(asked.attach().request_id());
    attached.set_code(static_cast<int>(absl::StatusCode::kNotFound));
    attached.set_message("no such lease");
    peer.Send(frame);
    attached.set_request_id(peer.Read().attach().request_id());
    attached.set_code(0);
    attached.mutable_lease()->set_id("l-1");
    attached.mutable_lease()->add_devices()->set_memory_limit_bytes(5);
    peer.Send(frame);
    attached.set_request_id(peer.Read().attach().request_id());
    attached.clear_lease();
    peer.Send(frame);
    peer.Read();
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok()) << connection.status();
  EXPECT_EQ((*connection)->Attach("no").status(), absl::NotFoundError("no such lease"));
  const absl::StatusOr<wire::Lease> lease = (*connection)->Attach("job");
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(lease->id, "l-1");
  ASSERT_EQ(lease->devices.size(), 1u);
  EXPECT_EQ(lease->devices[0].memory_limit_bytes, 5u);
  EXPECT_THAT(Text((*connection)->Attach("job").status()), HasSubstr("breaks the protocol"));
  EXPECT_FALSE((*connection)->status().ok());
}

TEST(DaemonConnectionTest, ARefusalKeepsItsNumbers) {
  FakeDaemon daemon([](FakePeer& peer) {
    peer.Greet();
    v1::Frame frame;
    v1::GrowRefused& refused = *frame.mutable_grow_refused();
    refused.set_request_id(peer.Read().grow().request_id());
    refused.set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
    refused.set_message("no");
    Refusal refusal;
    refusal.reason = RefusalReason::kLimit;
    refusal.asked = 2_MiB;
    refusal.limit = 1_GiB;
    *refused.mutable_refusal() = RefusalToProto(refusal);
    peer.Send(frame);
    peer.Read();
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  const absl::Status status = GrowAll(**connection, 2_MiB).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(GetRefusal(status).has_value());
  EXPECT_EQ(GetRefusal(status)->limit, 1_GiB);
  EXPECT_TRUE((*connection)->status().ok());
}

TEST(DaemonConnectionTest, ManyThreadsGetTheirOwnAnswers) {
  FakeDaemon daemon(ServeAll);
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::uint64_t count = static_cast<std::uint64_t>(t) + 1;
        absl::StatusOr<std::vector<std::uint64_t>> ids = GrowAll(**connection, 2_MiB * count);
        if (!ids.ok() || ids->size() != count) ++wrong;
        if (i % 3 == 0 && !(*connection)->Return(kDevice, std::vector{ChunkId{1}}).ok()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE((*connection)->Close().ok());
}

TEST(DaemonConnectionTest, LongReturnsArePaged) {
  std::vector<int> sizes;
  FakeDaemon daemon([&sizes](FakePeer& peer) {
    peer.Greet();
    for (int i = 0; i < 3; ++i) {
      const v1::Frame frame = peer.Read();
      sizes.push_back(frame.return_chunks().chunk_ids_size());
      peer.Returned(frame.return_chunks().request_id());
    }
    peer.Read();
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  std::vector<ChunkId> ids;
  for (std::uint64_t i = 1; i <= 2 * GeneratedChannel::kMaxReturnChunks + 5; ++i) {
    ids.push_back(ChunkId{i << 40});
  }
  EXPECT_TRUE((*connection)->Return(kDevice, ids).ok());
  connection->reset();
  daemon.Join();
  EXPECT_THAT(sizes, ElementsAre(4096, 4096, 5));
}

TEST(DaemonConnectionTest, AnAbandonedAnswerIsAcknowledgedAndGivenBack) {
  std::promise<void> abandoned;
  std::vector<std::uint64_t> given_back;
  std::uint64_t acked = 0;
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet();
    const std::uint64_t request = peer.Read().grow().request_id();
    abandoned.get_future().wait();
    peer.Grant({.request = request, .first_id = 5, .count = 2});
    acked = peer.Read().ack().grant_id();
    const v1::Frame back = peer.Read();
    given_back.assign(back.return_chunks().chunk_ids().begin(), back.return_chunks().chunk_ids().end());
    peer.Returned(back.return_chunks().request_id());
  });
  auto connection = daemon.Connect(std::chrono::milliseconds(20));
  ASSERT_TRUE(connection.ok());
  const absl::Status slow = GrowAll(**connection, 4_MiB).status();
  EXPECT_EQ(slow.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Text(slow), HasSubstr("does not answer"));
  EXPECT_TRUE((*connection)->status().ok());
  abandoned.set_value();
  daemon.Join();  // no call waits: the session thread takes the late grant
  EXPECT_EQ(acked, 1u);
  EXPECT_THAT(given_back, ElementsAre(5, 6));
}

TEST(DaemonConnectionTest, AnAbandonedAnswerDoesNotHoldUpTheNextOne) {
  std::promise<void> abandoned;
  std::vector<std::uint64_t> given_back;
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet();
    const std::uint64_t late = peer.Read().grow().request_id();
    abandoned.get_future().wait();
    const std::uint64_t next = peer.Read().grow().request_id();
    peer.Grant({.request = late, .first_id = 5, .count = 2});
    // As lgpud: no other descriptors before these are acknowledged, and the waiting one reads them.
    EXPECT_EQ(peer.Read().ack().grant_id(), 1u);
    const v1::Frame back = peer.Read();
    given_back.assign(back.return_chunks().chunk_ids().begin(), back.return_chunks().chunk_ids().end());
    peer.Grant({.request = next, .first_id = 7, .count = 1});
    EXPECT_TRUE(peer.Read().has_ack());
  });
  auto connection = daemon.Connect(std::chrono::milliseconds(20));
  ASSERT_TRUE(connection.ok());
  EXPECT_EQ(GrowAll(**connection, 4_MiB).status().code(), absl::StatusCode::kUnavailable);
  abandoned.set_value();
  GrowRequest patient = Ask(2_MiB);
  patient.timeout = std::chrono::minutes(1);
  absl::StatusOr<DaemonConnection::GrowCall> call = (*connection)->Grow(kDevice, patient);
  ASSERT_TRUE(call.ok());
  absl::StatusOr<DaemonConnection::GrantPage> page = call->Next();
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->chunks.front().chunk.id.value, 7u);
  daemon.Join();
  EXPECT_THAT(given_back, ElementsAre(5, 6));
}

TEST(DaemonConnectionTest, SlowDestructionRunsOnTheSessionThread) {
  FakeDaemon daemon(ServeAll);
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  std::promise<std::thread::id> dropped;
  (*connection)->DropLater(std::shared_ptr<void>(nullptr, [&](void*) {
    dropped.set_value(std::this_thread::get_id());
  }));
  EXPECT_NE(dropped.get_future().get(), std::this_thread::get_id());
}

TEST(DaemonConnectionTest, AGrowThatTheDaemonSaysIsStillWaitingIsAwaited) {
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet();
    const std::uint64_t grow = peer.Read().grow().request_id();
    v1::Frame frame;
    frame.mutable_still_waiting()->set_request_id(grow);
    frame.mutable_still_waiting()->set_more_ms(60'000);
    peer.Send(frame);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));  // longer than an answer may take
    peer.Grant({.request = grow, .first_id = 7});
    EXPECT_TRUE(peer.Read().has_ack());
  });
  auto connection = daemon.Connect(std::chrono::milliseconds(300));
  ASSERT_TRUE(connection.ok()) << connection.status();
  const absl::StatusOr<std::vector<std::uint64_t>> ids = GrowAll(**connection, 2_MiB);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(*ids, ElementsAre(7));
  daemon.Join();
}

TEST(DaemonConnectionTest, ANameThatIsNotUtf8IsRefusedHere) {
  FakeDaemon daemon([](FakePeer& peer) {
    peer.Greet();
    EXPECT_FALSE(peer.Read().has_attach());
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok()) << connection.status();
  const absl::Status status = (*connection)->Attach("\xff").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  connection->reset();
}

TEST(DaemonConnectionTest, ASnapshotIsTakenOnceAndAnsweredToTheDaemonThatAsked) {
  v1::SnapshotPage answered;
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet();
    v1::Frame frame;
    frame.mutable_snapshot()->set_snapshot_id(5);
    peer.Send(frame);
    answered = peer.Read().snapshot_page();
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok()) << connection.status();
  std::vector<wire::Snapshot> asked;
  ASSERT_TRUE(Eventually([&] {
    asked = (*connection)->TakeSnapshots();
    return !asked.empty();
  }));
  EXPECT_EQ(asked[0].snapshot_id, 5u);
  EXPECT_TRUE((*connection)->TakeSnapshots().empty());
  wire::SnapshotPage page;
  page.snapshot_id = 5;
  page.message = "none";
  EXPECT_EQ((*connection)->AnswerSnapshot(page), absl::OkStatus());
  daemon.Join();
  EXPECT_EQ(answered.snapshot_id(), 5u);
  EXPECT_EQ(answered.message(), "none");
}

TEST(DaemonConnectionTest, AnOrderToReleaseIsTakenOnceAndAnswered) {
  v1::Released released;
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet();
    v1::Frame frame;
    frame.mutable_release()->set_release_id(9);
    frame.mutable_release()->set_bytes(4096);
    frame.mutable_release()->set_limit_ms(1000);
    peer.Send(frame);
    released = peer.Read().released();
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok()) << connection.status();
  std::vector<DaemonConnection::ReleaseOfDaemon> orders;
  ASSERT_TRUE(Eventually([&] {
    orders = (*connection)->TakeReleases();
    return !orders.empty();
  }));
  EXPECT_EQ(orders[0].order.bytes, 4096u);
  EXPECT_TRUE((*connection)->TakeReleases().empty());
  (*connection)->AnswerRelease(orders[0], absl::DeadlineExceededError("too long"));
  daemon.Join();
  EXPECT_EQ(released.release_id(), 9u);
  EXPECT_EQ(released.code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(released.message(), "too long");
}

}  // namespace
}  // namespace lgpu
