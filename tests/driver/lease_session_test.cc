#include "client/driver/lease_session.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "client/driver/charges.h"
#include "client/driver/pools.h"
#include "lgpu/refusal.h"
#include "tests/driver/scripted_daemon.h"
#include "tests/support/child_program.h"

namespace lgpu::shim {
namespace {

using lgpu::testing::Eventually;
using lgpu::testing::ScriptedDaemon;
using lgpu::testing::TempDir;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr char kCall[] = "cuMemAlloc_v2";
constexpr char kUuid[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/// A pool whose trims change nothing.
Pools::Calls CallsOf(Pools::Figure reserved) {
  return {.reserved = reserved, .trim = [](std::uint64_t) {}};
}

/// Whether it was another process's.
bool Destroy(Pools& pools, std::uint64_t pool) {
  bool was_import = false;
  EXPECT_EQ(pools.DestroyAround(
                pool, [] { return kSuccess; }, was_import),
            kSuccess);
  return was_import;
}

class LeaseSessionTest : public ::testing::Test {
 protected:
  LeaseSession::Options Options(std::chrono::milliseconds wait = std::chrono::seconds(60)) const {
    return {.directory = directory_.path(), .lease = "l-1", .client = "test", .memory_wait = wait};
  }
  bool Charge(LeaseSession& session, std::uint64_t bytes) {
    return session.Charge(0, bytes, ChargeKind::kPlain, kCall);
  }
  bool DaemonHas(std::uint64_t bytes) {
    return Eventually([&] { return daemon_.charged == bytes; });
  }

  TempDir directory_;
  ScriptedDaemon daemon_{directory_.path(), 64 * kMiB};
};

TEST_F(LeaseSessionTest, FindsTheLeasesCardByItsUuid) {
  LeaseSession session(Options());
  EXPECT_EQ(session.CardOf(kUuid), 0);
  const char other[16] = {1};
  EXPECT_EQ(session.CardOf(other), LeaseSession::kNoCard);
  EXPECT_EQ(session.CardOf(std::string_view(ScriptedDaemon::kUuid)), 0);
}

TEST_F(LeaseSessionTest, ChargesUpToTheLimitAndGivesBack) {
  LeaseSession session(Options());
  EXPECT_TRUE(Charge(session, 40 * kMiB));
  EXPECT_FALSE(Charge(session, 40 * kMiB));
  session.Uncharge(0, 40 * kMiB, ChargeKind::kPlain);
  EXPECT_TRUE(DaemonHas(0));
  EXPECT_TRUE(Charge(session, 40 * kMiB));
}

TEST_F(LeaseSessionTest, NoDaemonIsAskedInsideTheAllowance) {
  LeaseSession session(Options());
  daemon_.lends = 8 * kMiB;
  ASSERT_TRUE(Charge(session, 2 * kMiB));
  EXPECT_TRUE(session.IsInAllowance(0, 8 * kMiB));
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(Charge(session, 6 * kMiB));
    session.Uncharge(0, 6 * kMiB, ChargeKind::kPlain);
  }
  EXPECT_EQ(daemon_.charges, 1);
  EXPECT_EQ(daemon_.uncharges, 0);
  session.Uncharge(0, 2 * kMiB, ChargeKind::kPlain);
  EXPECT_TRUE(Eventually([&] { return daemon_.uncharges == 1; })) << "what is beyond the allowance goes back";
  EXPECT_EQ(daemon_.charged, 8 * kMiB);
}

TEST_F(LeaseSessionTest, TellsAnUnusedAllowanceAsFree) {
  LeaseSession session(Options());
  daemon_.lends = 8 * kMiB;
  ASSERT_TRUE(Charge(session, 2 * kMiB));
  const auto figures = session.FiguresOf(0);
  ASSERT_TRUE(figures.has_value());
  EXPECT_EQ(figures->limit, 64 * kMiB);
  EXPECT_EQ(figures->free, 62 * kMiB);
}

TEST_F(LeaseSessionTest, ReturnedChargesAreFreeAtOnce) {
  LeaseSession session(Options());
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(Charge(session, 20 * kMiB));
    ASSERT_EQ(session.FiguresOf(0)->free, 44 * kMiB);
    session.Uncharge(0, 20 * kMiB, ChargeKind::kPlain);
    ASSERT_EQ(session.FiguresOf(0)->free, 64 * kMiB);
  }
}

TEST_F(LeaseSessionTest, ARestartedDaemonIsToldTheCharges) {
  LeaseSession session(Options());
  daemon_.lends = 8 * kMiB;
  ASSERT_TRUE(Charge(session, 40 * kMiB));
  ASSERT_TRUE(Charge(session, 2 * kMiB)) << "out of the allowance";
  daemon_.Kill();
  daemon_.Start();
  EXPECT_TRUE(Charge(session, 20 * kMiB));
  EXPECT_EQ(daemon_.attested, 42 * kMiB) << "and what was left of the old allowance is void";
  EXPECT_EQ(daemon_.charged, 62 * kMiB);
  EXPECT_FALSE(Charge(session, 4 * kMiB));
}

TEST_F(LeaseSessionTest, ThreadsThatWaitForAnAnswerAreAnsweredByTheNextDaemon) {
  constexpr int kThreads = 8;
  LeaseSession session(Options());
  ASSERT_TRUE(Charge(session, 2 * kMiB));
  for (int round = 1; round <= 5; ++round) {
    daemon_.answer_after = kThreads;
    std::atomic<int> granted{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] { granted += Charge(session, kMiB) ? 1 : 0; });
    }
    EXPECT_TRUE(Eventually([&] { return daemon_.answer_after == 0; }));
    daemon_.Kill();
    daemon_.Start();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(granted, kThreads) << "in round " << round;
  }
  EXPECT_TRUE(DaemonHas(42 * kMiB));
}

TEST_F(LeaseSessionTest, FiguresOfARestartedDaemonAreToldAtOnce) {
  LeaseSession session(Options());
  ASSERT_TRUE(Charge(session, 20 * kMiB));
  ASSERT_EQ(session.FiguresOf(0)->free, 44 * kMiB);
  daemon_.Kill();
  EXPECT_EQ(session.FiguresOf(0)->free, 44 * kMiB) << "the last that is known";
  daemon_.limit = 32 * kMiB;
  daemon_.Start();
  EXPECT_TRUE(Eventually([&] { return session.FiguresOf(0)->limit == 32 * kMiB; }));
  EXPECT_EQ(session.FiguresOf(0)->free, 12 * kMiB);
  EXPECT_EQ(daemon_.attested, 20 * kMiB);
}

TEST_F(LeaseSessionTest, FiguresOfAHalfWrittenPageAreToldAsTheyAre) {
  LeaseSession session(Options());
  daemon_.half_writes_stats = true;  // as a daemon that was killed while it wrote
  ASSERT_TRUE(Charge(session, 20 * kMiB));
  EXPECT_EQ(session.FiguresOf(0)->free, 44 * kMiB);
}

TEST_F(LeaseSessionTest, ADaemonThatDoesNotAnswerAnAttestationStopsNoOtherThread) {
  LeaseSession session(Options());
  ASSERT_TRUE(Charge(session, 2 * kMiB));
  daemon_.Kill();
  daemon_.attests = false;
  daemon_.Start();
  std::atomic<bool> is_over{false};
  std::thread charging([&] {
    EXPECT_TRUE(Charge(session, 20 * kMiB));
    is_over = true;
  });
  EXPECT_TRUE(Eventually([&] { return daemon_.attested == 2 * kMiB; }));
  session.Uncharge(0, 2 * kMiB, ChargeKind::kPlain);
  EXPECT_FALSE(is_over);
  daemon_.attests = true;
  charging.join();
  EXPECT_TRUE(DaemonHas(20 * kMiB));
}

TEST_F(LeaseSessionTest, AChargeWaitsForADaemonThatIsBeingRestarted) {
  LeaseSession session(Options());
  ASSERT_TRUE(Charge(session, 4 * kMiB));
  daemon_.Kill();
  std::thread restart([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    daemon_.Start();
  });
  EXPECT_TRUE(Charge(session, 4 * kMiB));
  restart.join();
}

TEST_F(LeaseSessionTest, AGrantThatComesTooLateIsGivenBack) {
  LeaseSession session(Options(std::chrono::milliseconds(0)));
  ASSERT_TRUE(Charge(session, 2 * kMiB));
  daemon_.answer_after = 1;
  EXPECT_FALSE(Charge(session, 4 * kMiB)) << "its deadline is over";
  EXPECT_TRUE(Charge(session, 2 * kMiB)) << "the late answer comes with this one";
  EXPECT_TRUE(DaemonHas(4 * kMiB));
}

TEST_F(LeaseSessionTest, AChargeThatTheDaemonSaysIsStillWaitingIsAwaited) {
  LeaseSession session(Options(std::chrono::milliseconds(0)));
  daemon_.says_still_waiting = 1500;  // longer than an answer may take
  EXPECT_TRUE(Charge(session, 40 * kMiB));
  EXPECT_EQ(daemon_.charged, 40 * kMiB);
  EXPECT_EQ(daemon_.uncharges, 0);
}

TEST_F(LeaseSessionTest, ARefusalBecauseOfALateGrantIsAskedAgain) {
  LeaseSession session(Options(std::chrono::milliseconds(0)));
  ASSERT_TRUE(Charge(session, 2 * kMiB));
  daemon_.answer_after = 1;
  EXPECT_FALSE(Charge(session, 40 * kMiB)) << "its deadline is over";
  EXPECT_TRUE(Charge(session, 40 * kMiB)) << "the late one is granted before, and goes back";
  EXPECT_TRUE(DaemonHas(42 * kMiB));
  EXPECT_FALSE(Charge(session, 40 * kMiB)) << "that is a refusal";
}

TEST_F(LeaseSessionTest, ALateGrantThatCannotGoBackIsForgotten) {
  LeaseSession session(Options(std::chrono::milliseconds(0)));
  ASSERT_TRUE(Charge(session, 2 * kMiB));
  daemon_.answer_after = 1;
  EXPECT_FALSE(Charge(session, 4 * kMiB)) << "its deadline is over";
  daemon_.ends_with_late = true;
  EXPECT_TRUE(Charge(session, 2 * kMiB)) << "by the next connection";
  EXPECT_TRUE(DaemonHas(4 * kMiB)) << "the late grant is not attested";
}

TEST_F(LeaseSessionTest, ChargesThatWaitedInVainWaitNoLongerThanTheMemoryWaitInARow) {
  LeaseSession::Options options = Options(std::chrono::seconds(2));
  options.wait_pause = std::chrono::hours(1);
  LeaseSession session(options);
  daemon_.refusal_reason = static_cast<int>(RefusalReason::kCard);
  std::uint64_t waits = 0;  // of the whole row, in milliseconds
  const auto refuse = [&](std::uint64_t size) {
    EXPECT_FALSE(Charge(session, size * kMiB)) << size;
    waits += daemon_.timeout_ms;
  };
  refuse(80);
  EXPECT_GT(waits, 0u);
  for (std::uint64_t size = 100; size > 64; size -= 2) refuse(size);
  EXPECT_EQ(daemon_.charges, 19) << "the daemon is asked each time, and makes an event of it";
  EXPECT_TRUE(Charge(session, 2 * kMiB));
  refuse(80);
  EXPECT_LE(waits, 2000u) << "a small grant does not end the row";
  daemon_.limit = 128 * kMiB;
  EXPECT_TRUE(Charge(session, 80 * kMiB)) << "freed memory is given at once";
}

TEST_F(LeaseSessionTest, ChargesWaitAgainAfterThePause) {
  LeaseSession::Options options = Options(std::chrono::seconds(2));
  options.wait_pause = std::chrono::milliseconds(200);
  LeaseSession session(options);
  daemon_.refusal_reason = static_cast<int>(RefusalReason::kCard);
  std::uint64_t waits = 0;
  EXPECT_TRUE(Eventually([&] {
    EXPECT_FALSE(Charge(session, 80 * kMiB));
    waits += daemon_.timeout_ms;
    return waits > 2000;
  })) << "charges that may not wait do not lengthen the pause";
}

TEST_F(LeaseSessionTest, ARefusalUnderTheLimitDoesNotShortenTheNextWait) {
  LeaseSession session(Options(std::chrono::seconds(2)));
  for (int i = 0; i < 3; ++i) {
    daemon_.refusal_reason = static_cast<int>(RefusalReason::kLimit);
    EXPECT_FALSE(Charge(session, 80 * kMiB));
    EXPECT_GT(daemon_.timeout_ms, 0u);
  }
}

TEST_F(LeaseSessionTest, ASessionThatTheDaemonDoesNotKnowIsOver) {
  LeaseSession session(Options());
  ASSERT_TRUE(Charge(session, 2 * kMiB));
  daemon_.Kill();
  daemon_.knows_session = false;
  daemon_.Start();
  EXPECT_FALSE(Charge(session, 2 * kMiB));
  EXPECT_FALSE(Charge(session, 2 * kMiB));
}

TEST_F(LeaseSessionTest, AnAttachRefusedForLackOfRoomIsAskedAgain) {
  for (const PlainCode code : {PlainCode::kDeadlineExceeded, PlainCode::kResourceExhausted,
                               PlainCode::kAborted, PlainCode::kUnavailable}) {
    LeaseSession session(Options());
    daemon_.attach_code = static_cast<int>(code);
    EXPECT_FALSE(Charge(session, 2 * kMiB)) << daemon_.attach_code;
    daemon_.attach_code = 0;
    EXPECT_TRUE(Charge(session, 2 * kMiB)) << static_cast<int>(code);
  }
  LeaseSession session(Options());
  daemon_.attach_code = 5;  // NOT_FOUND
  EXPECT_FALSE(Charge(session, 2 * kMiB));
  daemon_.attach_code = 0;
  EXPECT_FALSE(Charge(session, 2 * kMiB));
}

TEST_F(LeaseSessionTest, ImportsFromBeforeTheFirstConnectionCount) {
  daemon_.Kill();
  LeaseSession session(Options());
  session.CountImports(3);
  daemon_.Start();
  ASSERT_TRUE(Charge(session, 2 * kMiB));
  EXPECT_EQ(daemon_.imports, 3U);
  session.CountImports(~std::uint64_t{0});
  ASSERT_TRUE(Charge(session, 2 * kMiB));
  EXPECT_EQ(daemon_.imports, 2U);
}

TEST_F(LeaseSessionTest, AChildOfTheBareSystemCallEndsInPeace) {
  LeaseSession session(Options());
  ASSERT_TRUE(Charge(session, 2 * kMiB));
  // No handler of pthread_atfork runs, and the child has no shared pages.
  const long child = ::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  ASSERT_GE(child, 0);
  if (child == 0) {
    session.NoteExit();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(static_cast<pid_t>(child), &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(LeaseSessionTest, ThreadsShareOneConnection) {
  LeaseSession session(Options());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        if (Charge(session, 20 * kMiB)) session.Uncharge(0, 20 * kMiB, ChargeKind::kPlain);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(DaemonHas(0));
}

TEST_F(LeaseSessionTest, SmallRequestsShareBlocks) {
  LeaseSession session(Options());
  Charges charges(session);
  std::vector<shim::Charge> made;
  for (int i = 0; i < 5000; ++i) {
    const std::optional<shim::Charge> charge = charges.Take(0, 4, ChargeKind::kPlain, kCall);
    ASSERT_TRUE(charge.has_value());
    made.push_back(*charge);
  }
  EXPECT_EQ(daemon_.charged, 4 * kMiB) << "5,000 pieces of 512 bytes";
  for (const shim::Charge& charge : made) charges.GiveBack(charge);
  EXPECT_TRUE(DaemonHas(0));
}

TEST_F(LeaseSessionTest, LargeRequestsAreChargedInWholeBlocks) {
  LeaseSession session(Options());
  Charges charges(session);
  EXPECT_EQ(charges.Take(0, kMiB, ChargeKind::kPlain, kCall)->bytes, 2 * kMiB);
  EXPECT_EQ(charges.Take(0, 3 * kMiB, ChargeKind::kPlain, kCall)->bytes, 4 * kMiB);
  EXPECT_FALSE(charges.Take(0, ~std::uint64_t{0}, ChargeKind::kPlain, kCall).has_value());
  EXPECT_EQ(Product(std::uint64_t{1} << 40, std::uint64_t{1} << 40), ~std::uint64_t{0});
  EXPECT_EQ(Product(3, 4), 12U);
}

TEST_F(LeaseSessionTest, ARefusedRequestTakesTheRoomThatAnotherThreadMadeMeanwhile) {
  LeaseSession session(Options());
  Charges charges(session);
  Pools pools(session, ChargeKind::kPool,
              CallsOf([](std::uint64_t) { return std::optional<std::uint64_t>(); }));
  const auto pool = pools.Of(7, 0, 0);
  const std::optional<shim::Charge> small = charges.Take(0, kSmall - 512, ChargeKind::kPlain, kCall);
  ASSERT_TRUE(small && charges.Take(0, kSmall - 512, ChargeKind::kPlain, kCall));
  ASSERT_TRUE(charges.Take(0, 1024, ChargeKind::kPlain, kCall)) << "which fills the block";
  ASSERT_TRUE(pools.Take(*pool, 4 * kMiB, kCall));
  daemon_.limit = daemon_.charged.load();
  std::function<void()> free_small = [&] { charges.GiveBack(*small); };
  daemon_.meanwhile = &free_small;
  EXPECT_TRUE(charges.Take(0, 512, ChargeKind::kPlain, kCall));
  std::function<void()> free_of_pool = [&] { pools.GiveBack(*pool, 2 * kMiB); };
  daemon_.meanwhile = &free_of_pool;
  EXPECT_TRUE(pools.Take(*pool, 2 * kMiB, kCall));
  EXPECT_FALSE(pools.Take(*pool, 2 * kMiB, kCall)) << "nothing was freed meanwhile";
}

/// The driver's figure of the one pool.
std::optional<std::uint64_t> reserved;

TEST_F(LeaseSessionTest, APoolIsChargedForItsRequestsAndLoweredByTheDriversWord) {
  LeaseSession session(Options());
  Pools pools(session, ChargeKind::kPool, CallsOf([](std::uint64_t) { return reserved; }));
  const auto pool = pools.Of(1, 0, 0);
  ASSERT_TRUE(pools.Take(*pool, 20 * kMiB, kCall));
  ASSERT_TRUE(pools.Take(*pool, 20 * kMiB, kCall));
  EXPECT_FALSE(pools.Take(*pool, 40 * kMiB, kCall));
  EXPECT_FALSE(pools.Take(*pool, ~std::uint64_t{0}, kCall));
  pools.GiveBack(*pool, 20 * kMiB);
  reserved = 40 * kMiB;
  pools.SettleAll();
  EXPECT_TRUE(DaemonHas(40 * kMiB)) << "the pool keeps what was freed";
  EXPECT_TRUE(pools.Take(*pool, 20 * kMiB, kCall)) << "and uses it again";
  EXPECT_EQ(daemon_.charged, 40 * kMiB);
  pools.GiveBack(*pool, 20 * kMiB);
  reserved = 0;
  pools.SettleAll();
  EXPECT_TRUE(DaemonHas(20 * kMiB)) << "live allocations stay charged, whatever the driver says";
  EXPECT_FALSE(Destroy(pools, 1));
  pools.GiveBack(*pool, 20 * kMiB);
  EXPECT_TRUE(DaemonHas(0)) << "a destroyed pool goes with its last allocation";
}

TEST_F(LeaseSessionTest, APoolIsChargedForWhatItReservesBeyondItsRequests) {
  LeaseSession session(Options());
  Pools pools(session, ChargeKind::kPool, CallsOf([](std::uint64_t) { return reserved; }));
  const auto pool = pools.Of(1, 0, 0);
  ASSERT_TRUE(pools.Take(*pool, kMiB, kCall));
  reserved = 32 * kMiB;
  EXPECT_TRUE(pools.Cover(*pool, kCall, /*may_refuse=*/true));
  EXPECT_TRUE(DaemonHas(32 * kMiB));
  EXPECT_TRUE(pools.TakeWithin(*pool, 31 * kMiB)) << "the pool has it";
  EXPECT_FALSE(pools.TakeWithin(*pool, kMiB));
  reserved = 96 * kMiB;
  const int asked = daemon_.charges;
  EXPECT_FALSE(pools.Cover(*pool, kCall, /*may_refuse=*/false));
  EXPECT_EQ(daemon_.charges, asked) << "a refusal would be an event";
  EXPECT_FALSE(pools.Cover(*pool, kCall, /*may_refuse=*/true));
  EXPECT_EQ(daemon_.charges, asked + 1);
  reserved = 32 * kMiB;
  EXPECT_TRUE(pools.Cover(*pool, kCall, /*may_refuse=*/false));
}

TEST_F(LeaseSessionTest, AnAllocationIsAloneInItsPoolUnlessAnotherOneOverlaps) {
  LeaseSession session(Options());
  Pools pools(session, ChargeKind::kPool, CallsOf([](std::uint64_t) { return reserved; }));
  const auto pool = pools.Of(1, 0, 0);
  {
    const Pools::Attempt first(pools, *pool);
    EXPECT_TRUE(first.WasAlone());
    {
      const Pools::Attempt second(pools, *pool);
      EXPECT_FALSE(second.WasAlone());
    }
    EXPECT_FALSE(first.WasAlone()) << "the other one has ended, but it overlapped";
  }
  const Pools::Attempt later(pools, *pool);
  EXPECT_TRUE(later.WasAlone());
}

/// A pool in which another thread allocates and frees, once, while the driver is asked for its figure.
struct {
  Pools* pools = nullptr;
  std::shared_ptr<PoolBook> pool;
} busy;

TEST_F(LeaseSessionTest, AFigureFromBeforeAnotherThreadsAllocationLowersNothing) {
  LeaseSession session(Options());
  Pools pools(session, ChargeKind::kPool, CallsOf([](std::uint64_t) -> std::optional<std::uint64_t> {
                Pools* const other = std::exchange(busy.pools, nullptr);
                if (other == nullptr) return 20 * kMiB;
                EXPECT_TRUE(other->Take(*busy.pool, 20 * kMiB, kCall));
                other->GiveBack(*busy.pool, 20 * kMiB);  // which the driver keeps
                return 0;                                // the figure before that
              }));
  busy = {.pools = &pools, .pool = pools.Of(3, 0, 0)};
  pools.Settle(*busy.pool);
  EXPECT_TRUE(DaemonHas(20 * kMiB)) << "the driver is asked again";
  busy = {};
}

TEST_F(LeaseSessionTest, APoolIsExportedOnceFromItsCard) {
  LeaseSession session(Options());
  Pools pools(session, ChargeKind::kPool, CallsOf([](std::uint64_t) { return reserved; }));
  pools.Made(5, 0, 0, /*is_host=*/false);
  EXPECT_EQ(pools.SetExported(5), 0);
  EXPECT_EQ(pools.SetExported(5), LeaseSession::kNoCard) << "counted before";
  EXPECT_EQ(pools.SetExported(6), LeaseSession::kNoCard) << "of an unknown card";
}

TEST_F(LeaseSessionTest, APoolOfHostMemoryIsNotCharged) {
  LeaseSession session(Options());
  Pools pools(session, ChargeKind::kPool, CallsOf([](std::uint64_t) { return reserved; }));
  const auto pool = pools.Of(2, 0, LeaseSession::kNoCard);
  EXPECT_FALSE(pools.Take(*pool, kMiB, kCall)) << "a card that is not the lease's";
  pools.Made(3, kNoDevice, LeaseSession::kNoCard, /*is_host=*/true);
  EXPECT_TRUE(pools.Take(*pools.Find(3), 1000 * kMiB, kCall));
  pools.Imported(4);
  EXPECT_TRUE(pools.Take(*pools.Find(4), 1000 * kMiB, kCall)) << "its other process has the charge";
  EXPECT_TRUE(Destroy(pools, 4));
  EXPECT_FALSE(Destroy(pools, 3));
  EXPECT_EQ(daemon_.charges, 0);
}

}  // namespace
}  // namespace lgpu::shim
