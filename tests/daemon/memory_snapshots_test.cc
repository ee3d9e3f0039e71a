// Snapshots over the wire, with programs that answer well, late, wrongly or not at all.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "daemon/snapshots/snapshot_line.h"
#include "tests/daemon/daemon_fixture.h"

namespace lgpu::daemon {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{2} << 20;

class MemorySnapshotsTest : public DaemonFixture {
 protected:
  struct Answer {
    grpc::Status status;
    std::vector<v1::MemorySnapshotPart> parts;
    const v1::MemorySnapshotPart::Device& device() const { return parts.at(2).device(); }
  };
  Answer Ask(const std::string& lease, std::uint64_t wait_ms = 20'000) {
    grpc::ClientContext context;
    v1::GetMemorySnapshotRequest request;
    request.set_lease(lease);
    request.set_wait_ms(wait_ms);
    const auto reader = stub_->GetMemorySnapshot(&context, request);
    Answer answer;
    for (v1::MemorySnapshotPart part; reader->Read(&part);) answer.parts.push_back(part);
    answer.status = reader->Finish();
    return answer;
  }
  /// A session of a program that says it answers.
  TestSession OpenAnswering(std::uint32_t version = GeneratedChannel::kSnapshotVersion, bool answers = true) {
    TestSession session{.channel = ConnectSession(), .token = "", .pages = {}};
    v1::Frame hello;
    hello.mutable_hello()->set_protocol_version(version);
    hello.mutable_hello()->set_oldest_version(GeneratedChannel::kOldestVersion);
    hello.mutable_hello()->set_command("answering");
    hello.mutable_hello()->set_answers_snapshots(answers);
    session.Send(hello);
    GeneratedFrame welcome = session.Receive();
    session.token = welcome.frame.welcome().session_token();
    session.pages = std::move(welcome.fds);
    return session;
  }
  static v1::Frame PageFor(const v1::Snapshot& question, int blocks, bool more) {
    v1::Frame frame;
    v1::SnapshotPage& page = *frame.mutable_snapshot_page();
    page.set_snapshot_id(question.snapshot_id());
    page.set_page(question.page());
    page.set_more(more);
    if (question.page() == 0) {
      page.mutable_region()->set_granularity_bytes(kChunk);
      page.mutable_region()->set_reserved_bytes(16 * kChunk);
      page.mutable_region()->set_live_blocks(7);
      page.add_op_names("MatMul");
      page.mutable_mappings()->add_gap(0);
      page.mutable_mappings()->add_bytes(4 * kChunk);
    }
    v1::BlockList& list = *page.mutable_blocks();
    list.set_start(std::uint64_t{256} * question.page());
    for (int i = 0; i < blocks; ++i) {
      list.add_gap(0);
      list.add_bytes(256);
      list.add_padding(0);
      list.add_op(1);
      list.add_stream(0);
      list.add_age_ms(1);
      list.add_state(v1::BlockList::STATE_LIVE);
    }
    return frame;
  }
};

TEST_F(MemorySnapshotsTest, PagesComeOneAtATimeAndArriveWhole) {
  TestSession session = OpenAnswering();
  const v1::Lease lease = CreateLease(session, 64);
  Answer answer;
  std::thread asker([&] { answer = Ask(lease.id()); });
  for (std::uint32_t page = 0; page < 3; ++page) {
    const GeneratedFrame question = session.Receive();
    ASSERT_TRUE(question.frame.has_snapshot());
    EXPECT_EQ(question.frame.snapshot().page(), page);
    EXPECT_EQ(question.frame.snapshot().device_id(), lease.devices(0).id());
    session.Send(PageFor(question.frame.snapshot(), 1, page < 2));
  }
  asker.join();
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_GE(answer.parts.size(), 3u);
  EXPECT_EQ(answer.parts[0].head().lease_id(), lease.id());
  EXPECT_EQ(answer.parts[1].session().command(), "answering");
  EXPECT_EQ(answer.device().code(), 0) << answer.device().message();
  EXPECT_EQ(answer.device().region().live_blocks(), 7u);
  EXPECT_EQ(answer.parts[2].blocks().bytes_size(), 3);
  EXPECT_EQ(answer.parts[2].op_names(0), "MatMul");
}

TEST_F(MemorySnapshotsTest, ALieIsTheAskersErrorAndTheSessionGoesOn) {
  TestSession session = OpenAnswering();
  const v1::Lease lease = CreateLease(session, 64);
  Answer answer;
  std::thread asker([&] { answer = Ask(lease.id()); });
  v1::Frame lie = PageFor(session.Receive().frame.snapshot(), 1, true);
  lie.mutable_snapshot_page()->mutable_blocks()->set_bytes(0, ~std::uint64_t{0});
  session.Send(lie);
  asker.join();
  ASSERT_TRUE(answer.status.ok());
  EXPECT_EQ(answer.device().code(), static_cast<int>(absl::StatusCode::kDataLoss));
  EXPECT_TRUE(session.Receive().frame.snapshot().end()) << "the program may forget the rest";
  session.Send(Close());
  EXPECT_TRUE(session.Receive().frame.has_closed());
}

TEST_F(MemorySnapshotsTest, ALateAnswerIsDroppedAndTheNextQuestionIsAnswered) {
  TestSession session = OpenAnswering();
  const v1::Lease lease = CreateLease(session, 64);
  // On a busy machine a caller's time may be over before the program is asked: then the question never comes.
  v1::Snapshot first;
  for (std::uint64_t wait_ms = 60; first.snapshot_id() == 0; wait_ms *= 2) {
    ASSERT_LT(wait_ms, 60'000u) << "the program is not asked";
    const Answer none = Ask(lease.id(), wait_ms);
    ASSERT_TRUE(none.status.ok());
    ASSERT_EQ(none.device().code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
    const absl::StatusOr<GeneratedFrame> question =
        session.channel.Receive(std::chrono::steady_clock::now() + std::chrono::milliseconds(500));
    if (question.ok()) first = question->frame.snapshot();
  }
  Answer answer;
  std::thread asker([&] { answer = Ask(lease.id()); });
  session.Send(PageFor(first, 1, true));  // late
  GeneratedFrame next = session.Receive();
  EXPECT_TRUE(next.frame.snapshot().end());
  EXPECT_EQ(next.frame.snapshot().snapshot_id(), first.snapshot_id());
  next = session.Receive();
  ASSERT_TRUE(next.frame.has_snapshot());
  EXPECT_GT(next.frame.snapshot().snapshot_id(), first.snapshot_id());
  session.Send(PageFor(next.frame.snapshot(), 2, false));
  asker.join();
  EXPECT_EQ(answer.device().code(), 0) << answer.device().message();
  EXPECT_EQ(answer.parts[2].blocks().bytes_size(), 2);
}

// The daemon drops an answer that is still being read when its caller's time is over.
TEST_F(MemorySnapshotsTest, AnswersAtTheDeadlineAreDropped) {
  TestSession session = OpenAnswering();
  const v1::Lease lease = CreateLease(session, 64);
  std::atomic<bool> done = false;
  std::thread asker([&] {
    for (int round = 0; round < 300; ++round) (void)Ask(lease.id(), static_cast<std::uint64_t>(round % 3));
    const Answer last = Ask(lease.id());
    EXPECT_EQ(last.device().code(), 0) << last.device().message();
    done = true;
  });
  while (!done) {
    const absl::StatusOr<GeneratedFrame> question =
        session.channel.Receive(std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
    if (question.ok() && question->frame.has_snapshot() && !question->frame.snapshot().end()) {
      session.Send(PageFor(question->frame.snapshot(), 2000, false));
    }
  }
  asker.join();
}

struct NoWaker final : Waker {
  void Wake() const override {}
};

std::shared_ptr<DeviceAsk> MakeAsk(std::vector<absl::Status>& answers) {
  return std::make_shared<DeviceAsk>(
      LogicalId{1}, BlockPages([](std::size_t) { return true; }),
      [&answers](absl::Status status, DeviceBlocks) { answers.push_back(std::move(status)); });
}

wire::SnapshotPage PageOf(const wire::Snapshot& question) {
  wire::SnapshotPage page;
  page.snapshot_id = question.snapshot_id;
  page.page = question.page;
  page.region = {.granularity_bytes = kChunk};
  return page;
}

TEST(SnapshotLineTest, AnAnswerThatTheProgramLostDoesNotBlockTheNextQuestion) {
  SnapshotLine line(std::make_shared<NoWaker>(), std::chrono::milliseconds(0));
  std::vector<absl::Status> lost, answers;
  const std::shared_ptr<DeviceAsk> first = MakeAsk(lost);
  ASSERT_TRUE(line.Add(first).ok());
  const std::optional<wire::Snapshot> question = line.Next();
  ASSERT_TRUE(question.has_value());
  line.Cancel(*first);
  ASSERT_TRUE(line.Add(MakeAsk(answers)).ok());
  const std::optional<wire::Snapshot> next = line.Next();
  ASSERT_TRUE(next.has_value());
  EXPECT_GT(next->snapshot_id, question->snapshot_id);
  // The answer was not lost, but late: it is no error of the program's, and goes to no caller.
  EXPECT_TRUE(line.Take(PageOf(*question)).ok());
  EXPECT_FALSE(line.Take(PageOf(*question)).ok());
  EXPECT_TRUE(line.Take(PageOf(*next)).ok());
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_TRUE(answers[0].ok()) << answers[0];
  EXPECT_TRUE(lost.empty());
}

TEST(SnapshotLineTest, AQuestionForAMapSaysSoOnEveryPage) {
  SnapshotLine line(std::make_shared<NoWaker>());
  absl::Status answer = absl::UnknownError("none yet");
  ASSERT_TRUE(line.Add(std::make_shared<DeviceAsk>(
                           LogicalId{1}, BlockPages([](std::size_t) { return true; }, 500),
                           [&answer](absl::Status status, DeviceBlocks) { answer = std::move(status); }))
                  .ok());
  for (const bool more : {true, false}) {
    const std::optional<wire::Snapshot> question = line.Next();
    ASSERT_TRUE(question.has_value());
    EXPECT_EQ(question->cells, 500u);
    wire::SnapshotPage page = PageOf(*question);
    page.more = more;
    page.op_names = {"MatMul"};
    page.map.emplace().op_bytes = {0};
    ASSERT_TRUE(line.Take(page).ok());
  }
  EXPECT_TRUE(answer.ok()) << answer;
}

TEST(SnapshotLineTest, AProgramThatNeverAnswersHasFewFramesUnread) {
  SnapshotLine line(std::make_shared<NoWaker>(), std::chrono::milliseconds(0));
  std::vector<absl::Status> answers;
  std::size_t frames = 0;
  for (int i = 0; i < 20; ++i) {
    const std::shared_ptr<DeviceAsk> ask = MakeAsk(answers);
    ASSERT_TRUE(line.Add(ask).ok());
    while (line.Next()) ++frames;
    line.Cancel(*ask);
  }
  EXPECT_EQ(frames, SnapshotLine::kMostUnanswered);
}

TEST(SnapshotLineTest, AnAnswerForgetsTheFramesThatWereLostBeforeIt) {
  SnapshotLine line(std::make_shared<NoWaker>(), std::chrono::milliseconds(0));
  std::vector<absl::Status> lost, answers;
  for (std::size_t round = 1; round <= 3 * SnapshotLine::kMostUnanswered; ++round) {
    const std::shared_ptr<DeviceAsk> ask = MakeAsk(lost);
    ASSERT_TRUE(line.Add(ask).ok());
    ASSERT_TRUE(line.Next().has_value()) << round;
    line.Cancel(*ask);
    ASSERT_TRUE(line.Add(MakeAsk(answers)).ok());
    const std::optional<wire::Snapshot> question = line.Next();
    ASSERT_TRUE(question.has_value()) << round;
    ASSERT_TRUE(line.Take(PageOf(*question)).ok());
    EXPECT_EQ(answers.size(), round);
  }
}

TEST(SnapshotLineTest, AQuestionBehindALostAnswerSaysWhenItIsAsked) {
  constexpr std::chrono::hours kPatience{1};
  SnapshotLine line(std::make_shared<NoWaker>(), kPatience);
  std::vector<absl::Status> answers;
  const std::shared_ptr<DeviceAsk> first = MakeAsk(answers);
  ASSERT_TRUE(line.Add(first).ok());
  const auto before = std::chrono::steady_clock::now();
  ASSERT_TRUE(line.Next().has_value());
  const auto after = std::chrono::steady_clock::now();
  line.Cancel(*first);
  EXPECT_FALSE(line.next_look().has_value()) << "no question waits";
  ASSERT_TRUE(line.Add(MakeAsk(answers)).ok());
  EXPECT_FALSE(line.Next().has_value());
  const auto look = line.next_look();
  ASSERT_TRUE(look.has_value());
  EXPECT_GE(*look, before + kPatience);
  EXPECT_LE(*look, after + kPatience);
}

TEST(SnapshotLineTest, ASlowProgramIsAskedNothingElseWhileItsAskerWaits) {
  SnapshotLine line(std::make_shared<NoWaker>(), std::chrono::milliseconds(0));
  std::vector<absl::Status> answers;
  ASSERT_TRUE(line.Add(MakeAsk(answers)).ok());
  const std::optional<wire::Snapshot> question = line.Next();
  ASSERT_TRUE(line.Add(MakeAsk(answers)).ok());
  EXPECT_FALSE(line.Next().has_value());
  EXPECT_TRUE(line.Take(PageOf(*question)).ok());
  EXPECT_TRUE(line.Next().has_value());
}

TEST_F(MemorySnapshotsTest, TwoAskersAreAnsweredOneAfterTheOther) {
  TestSession session = OpenAnswering();
  const v1::Lease lease = CreateLease(session, 64);
  Answer answers[2];
  std::thread first([&] { answers[0] = Ask(lease.id()); });
  std::thread second([&] { answers[1] = Ask(lease.name()); });
  for (int i = 0; i < 2; ++i) {
    const GeneratedFrame question = session.Receive();
    EXPECT_EQ(question.frame.snapshot().page(), 0u);
    session.Send(PageFor(question.frame.snapshot(), 1, false));
  }
  first.join();
  second.join();
  for (const Answer& answer : answers) EXPECT_EQ(answer.device().code(), 0) << answer.device().message();
}

TEST_F(MemorySnapshotsTest, TheEndOfAProgramAnswersAtOnce) {
  TestSession session = OpenAnswering();
  v1::CreateLeaseRequest request;
  AddDevice(request, 64);
  request.set_lasting(true);
  v1::Lease lease;
  ASSERT_TRUE(Create(session, request, &lease).ok());
  Answer answer;
  std::thread asker([&] { answer = Ask(lease.id(), 60'000); });
  session.Send(PageFor(session.Receive().frame.snapshot(), 1, true));
  EXPECT_EQ(session.Receive().frame.snapshot().page(), 1u);
  session.channel = GeneratedChannel();
  asker.join();
  EXPECT_EQ(answer.device().code(), static_cast<int>(absl::StatusCode::kUnavailable));
}

TEST_F(MemorySnapshotsTest, AnUnrequestedPageBreaksTheSession) {
  TestSession session = OpenAnswering();
  const v1::Lease lease = CreateLease(session, 64);
  v1::Snapshot invented;
  invented.set_snapshot_id(1);
  session.Send(PageFor(invented, 1, false));
  const GeneratedFrame bye = session.Receive();
  EXPECT_EQ(bye.frame.goodbye().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
}

TEST_F(MemorySnapshotsTest, ProgramsOfEarlierVersionsAndWithoutBlocksAreToldApart) {
  TestSession old = OpenAnswering(GeneratedChannel::kChargeVersion);
  const v1::Lease its = CreateLease(old, 64);
  const Answer answer = Ask(its.id());
  ASSERT_EQ(answer.parts.size(), 2u);
  EXPECT_EQ(answer.parts[1].session().code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_NE(answer.parts[1].session().message().find("version 3"), std::string::npos)
      << answer.parts[1].session().message();
  TestSession plain = OpenAnswering(GeneratedChannel::kSnapshotVersion, false);
  const Answer none = Ask(CreateLease(plain, 64).id());
  ASSERT_EQ(none.parts.size(), 2u);
  EXPECT_EQ(none.parts[1].session().code(), 0);
}

TEST_F(MemorySnapshotsTest, UnknownLeasesDevicesAndSessionsAreNotFound) {
  TestSession session = OpenAnswering();
  const v1::Lease lease = CreateLease(session, 64);
  EXPECT_EQ(Ask("none").status.error_code(), grpc::StatusCode::NOT_FOUND);
  for (const bool of_device : {true, false}) {
    grpc::ClientContext context;
    v1::GetMemorySnapshotRequest request;
    request.set_lease(lease.id());
    of_device ? request.set_device(1) : request.set_session_id(4711);
    const auto reader = stub_->GetMemorySnapshot(&context, request);
    v1::MemorySnapshotPart part;
    EXPECT_FALSE(reader->Read(&part));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  }
}

}  // namespace
}  // namespace lgpu::daemon
