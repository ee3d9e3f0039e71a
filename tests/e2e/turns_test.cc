// A request that waits for memory of a card cannot stop the card for other programs.

#include <chrono>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/e2e/harness.h"
#include "tests/support/unwrapped.h"

namespace lgpu::testing {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class TurnsTest : public E2eTest {
 protected:
  /// A program that holds nothing asks for the whole card, for 24 hours, and reads no answer.
  void AskForTheWholeCard() {
    absl::StatusOr<RawSession> session = RawSession::Open(daemon_->dir());
    ASSERT_TRUE(session.ok()) << session.status();
    hog_ = *std::move(session);
    control_->SetSessionToken(hog_->token);
    const absl::StatusOr<v1::Lease> lease = control_->CreateLease(OneDevice(256 * kMiB));
    control_->SetSessionToken("");
    ASSERT_TRUE(lease.ok()) << lease.status();
    v1::Frame frame;
    frame.mutable_grow()->set_request_id(1);
    frame.mutable_grow()->set_device_id(lease->devices(0).id());
    frame.mutable_grow()->set_at_least_bytes(256 * kMiB);
    frame.mutable_grow()->set_wanted_bytes(256 * kMiB);
    frame.mutable_grow()->set_timeout_ms(24 * 3600 * 1000);
    ASSERT_TRUE(hog_->channel.Send(frame, {}, hog_->Patience()).ok());
    ASSERT_TRUE(Eventually([&] { return Stats().cards(0).waiting_requests() == 1; }));
  }
  /// The time that the hog's turn still has, or nothing.
  std::optional<std::uint64_t> TurnLeft() {
    const v1::CardStats card = Stats().cards(0);
    if (card.queue_size() == 0 || !card.queue(0).has_turn_left_ms()) return std::nullopt;
    return card.queue(0).turn_left_ms();
  }
  std::string Lgpu(std::vector<std::string> words) {
    words.insert(words.begin(), DaemonProcess::LgpuPath());
    const auto result = RunProgram({.argv = words, .environment = {{"LGPU_ENDPOINT", daemon_->dir()}}});
    EXPECT_TRUE(result.ok() && result->code == 0) << result.status();
    return result.ok() ? result->out : "";
  }

  std::optional<RawSession> hog_;
};

TEST_F(TurnsTest, AProgramGrowsAtOnceWhileAnotherOneAsksForTheWholeCard) {
  StartDaemon({.simulate = "256MiB", .config = "[memory]\nmax_drain = \"60s\"\n"});
  auto program = StartClient();
  ASSERT_THAT(Ask(*program, "open c timeout=0"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*program, "first", 64), StartsWith("ok "));
  AskForTheWholeCard();
  // The only holder waits because of the turn: the turn ends at once.
  for (int i = 0; i < 8; ++i) EXPECT_THAT(Alloc(*program, absl::StrCat("t", i), 16), StartsWith("ok ")) << i;
  EXPECT_EQ(Stats().cards(0).waiting_requests(), 1u);
  hog_.reset();
  EXPECT_EQ(Ask(*program, "close c"), "ok");
}

TEST_F(TurnsTest, AProgramWaitsForOneTurnAtMostWhileAHolderDoesNothing) {
  StartDaemon({.simulate = "256MiB", .config = "[memory]\nmax_drain = \"1s\"\n"});
  auto idle = StartClient();
  ASSERT_THAT(Ask(*idle, "open c"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*idle, "kept", 64), StartsWith("ok "));
  auto program = StartClient();
  ASSERT_THAT(Ask(*program, "open c timeout=60000"), StartsWith("ok "));
  AskForTheWholeCard();
  const steady_clock::time_point start = steady_clock::now();
  for (int i = 0; i < 4; ++i) EXPECT_THAT(Alloc(*program, absl::StrCat("t", i), 16), StartsWith("ok ")) << i;
  std::printf("four grants took %.1f s\n",
              std::chrono::duration<double>(steady_clock::now() - start).count());
  EXPECT_EQ(Stats().cards(0).waiting_requests(), 1u);
  hog_.reset();
  EXPECT_EQ(Ask(*program, "close c"), "ok");
  EXPECT_EQ(Ask(*idle, "close c"), "ok");
}

TEST_F(TurnsTest, ARefusalNamesTheTurnAndLsShowsTheQueue) {
  StartDaemon({.simulate = "256MiB", .config = "[memory]\nmax_drain = \"30s\"\n"});
  auto idle = StartClient();
  ASSERT_THAT(Ask(*idle, "open c"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*idle, "kept", 64), StartsWith("ok "));
  auto program = StartClient();
  ASSERT_THAT(Ask(*program, "open c timeout=0"), StartsWith("ok "));
  AskForTheWholeCard();
  ASSERT_TRUE(TurnLeft().has_value());
  EXPECT_THAT(
      Unwrapped(absl::StrReplaceAll(Alloc(*program, "t", 16), {{"\\n", " "}})),
      AllOf(StartsWith("error"), HasSubstr("the free memory is held back for /device:GPU:0 of lease "),
            HasSubstr(absl::StrCat("pid ", ::getpid(), "), which waits for 256.00MiB; its turn ends in "))));
  EXPECT_THAT(Lgpu({"ls"}),
              AllOf(HasSubstr("Waiting for memory:\n"), HasSubstr("256.00MiB"), HasSubstr("now, at most ")));
  const nlohmann::json card = nlohmann::json::parse(Lgpu({"ls", "--json"}))["cards"][0];
  ASSERT_EQ(card["queue"].size(), 1u) << card.dump();
  EXPECT_EQ(card["queue"][0]["place"], 1);
  EXPECT_EQ(card["queue"][0]["pid"], ::getpid());
  EXPECT_TRUE(Eventually([&] {
    return Lgpu({"events"}).find("turn 1 of the request for 256.00MiB on GPU 0 has begun") !=
           std::string::npos;
  }));
  // The death of the program that waits ends its turn.
  hog_.reset();
  EXPECT_TRUE(Eventually([&] { return Stats().cards(0).waiting_requests() == 0; }));
  EXPECT_TRUE(
      Eventually([&] { return Lgpu({"events"}).find("waits no longer, after ") != std::string::npos; }));
  EXPECT_THAT(Alloc(*program, "t", 16), StartsWith("ok "));
  EXPECT_EQ(Ask(*program, "close c"), "ok");
  EXPECT_EQ(Ask(*idle, "close c"), "ok");
}

}  // namespace
}  // namespace lgpu::testing
