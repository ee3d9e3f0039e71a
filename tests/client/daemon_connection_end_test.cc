// How a session ends: by Goodbye, by the daemon's death, by a frame that breaks the protocol; and after a
// fork.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <future>
#include <thread>

#include "client/session/daemon_connection.h"
#include "proto/mapped_region.h"
#include "tests/client/daemon_dialogue.h"
#include "tests/support/open_files_limit.h"
#include "tests/support/sanitizers.h"

namespace lgpu {
namespace {

using ::lgpu::testing::FakeDaemon;
using ::lgpu::testing::FakePeer;
using ::lgpu::testing::GrowAll;
using ::lgpu::testing::ServeAll;
using ::lgpu::testing::Text;
using ::testing::HasSubstr;

TEST(DaemonConnectionEndTest, AGoodbyeEndsEverythingWithItsReason) {
  std::promise<void> waiting;
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet();
    peer.Read();
    peer.Goodbye("the lease was removed by root");
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  const absl::Status grow = GrowAll(**connection, 2_MiB).status();
  EXPECT_EQ(grow.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Text(grow), HasSubstr("the lease was removed by root"));
  EXPECT_EQ((*connection)->status(), grow);
  EXPECT_EQ((*connection)->Close(), grow);
}

TEST(DaemonConnectionEndTest, TheSessionThreadReadsAGoodbyeWithoutAWaiter) {
  FakeDaemon daemon([](FakePeer& peer) {
    peer.Greet();
    peer.Goodbye("stopped");
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  daemon.Join();
  while ((*connection)->status().ok()) std::this_thread::yield();
  EXPECT_THAT(Text((*connection)->status()), HasSubstr("stopped"));
}

TEST(DaemonConnectionEndTest, DeathAtEachStepIsUnavailable) {
  // 0: before Hello, 1: after Hello, 2: before Grow, 3: after Grow, 4: between pages, 5: in Close.
  for (int step = 0; step < 6; ++step) {
    SCOPED_TRACE(step);
    FakeDaemon daemon([step](FakePeer& peer) {
      if (step == 0) return;
      if (step == 1) {
        peer.Read();
        return;
      }
      peer.Greet();
      if (step == 2) return;
      const v1::Frame frame = peer.Read();
      if (step == 4) {
        peer.Grant({.request = frame.grow().request_id(), .more = true});
        peer.Read();
      }
    });
    auto connection = daemon.Connect();
    if (step < 2) {
      EXPECT_EQ(connection.status().code(), absl::StatusCode::kUnavailable);
      continue;
    }
    ASSERT_TRUE(connection.ok()) << connection.status();
    const absl::Status status = step == 5 ? (*connection)->Close() : GrowAll(**connection, 4_MiB).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ((*connection)->status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST(DaemonConnectionEndTest, AllWaitersGetTheEnd) {
  FakeDaemon daemon([](FakePeer& peer) {
    peer.Greet();
    for (int i = 0; i < 3; ++i) peer.Read();
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  std::atomic<int> unavailable{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      if (absl::IsUnavailable(GrowAll(**connection, 2_MiB).status())) ++unavailable;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(unavailable, 3);
}

TEST(DaemonConnectionEndTest, GarbageEndsTheSessionAndNothingElse) {
  enum { kNoFrame, kNotAsked, kFewFds, kWrongAnswer, kNoChunks, kCases };
  for (int kind = 0; kind < kCases; ++kind) {
    SCOPED_TRACE(kind);
    FakeDaemon daemon([kind](FakePeer& peer) {
      peer.Greet();
      const std::uint64_t request = peer.Read().grow().request_id();
      v1::Frame frame;
      switch (kind) {
        case kNoFrame: {
          const char bytes[] = "\xff\xff\xff\xff";
          ASSERT_GT(::send(peer.channel().fd(), bytes, 4, MSG_NOSIGNAL), 0);
          break;
        }
        case kNotAsked:
          peer.Grant({.request = request + 1000});
          break;
        case kFewFds:
          frame.mutable_grant()->set_request_id(request);
          frame.mutable_grant()->add_chunks()->set_id(1);
          peer.Send(frame);
          break;
        case kWrongAnswer:
          peer.Returned(request);
          break;
        default:
          frame.mutable_grant()->set_request_id(request);
          peer.Send(frame);
      }
      while (peer.Read().body_case() != v1::Frame::BODY_NOT_SET) {
      }
    });
    auto connection = daemon.Connect();
    ASSERT_TRUE(connection.ok());
    const absl::Status status = GrowAll(**connection, 2_MiB).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(Text((*connection)->status()),
                HasSubstr(kind == kNotAsked ? "answers nothing that was asked" : "breaks the protocol"));
    connection->reset();
  }
}

TEST(DaemonConnectionEndTest, AWrongWelcomeIsRefused) {
  for (int kind = 0; kind < 4; ++kind) {
    SCOPED_TRACE(kind);
    FakeDaemon daemon([kind](FakePeer& peer) {
      peer.Read();
      v1::Frame frame = FakePeer::WelcomeFrame();
      auto stats = SharedPages::CreateStatsPage(MapWithBoost);
      auto page = SharedPages::CreateClientPage(MapWithBoost);
      if (kind == 0) {
        frame.mutable_welcome()->set_protocol_version(99);
        peer.Send(frame, {stats->fd(), page->fd()});
      } else if (kind == 1) {
        peer.Send(frame, {stats->fd()});
      } else if (kind == 2) {
        peer.Send(frame, {page->fd(), stats->fd()});
      } else {
        peer.Goodbye("too many sessions");
      }
    });
    const absl::Status status = daemon.Connect().status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(Text(status), HasSubstr(kind == 0 ? "version 99" : kind == 3 ? "too many sessions" : ""));
  }
}

TEST(DaemonConnectionEndTest, AProcessThatMayOpenTooFewFilesSaysSo) {
  // A session takes three descriptors of its own, and two that the daemon sends.
  constexpr int kEnough = 5;
  for (int more = 0; more <= kEnough; ++more) {
    SCOPED_TRACE(more);
    auto stats = SharedPages::CreateStatsPage(MapWithBoost);
    auto page = SharedPages::CreateClientPage(MapWithBoost);
    ASSERT_TRUE(stats.ok() && page.ok());
    FakeDaemon daemon([&](FakePeer& peer) {
      if (peer.Read().has_hello()) peer.Send(FakePeer::WelcomeFrame(), {stats->fd(), page->fd()});
      peer.Read();  // its own descriptor stays open until the session ends
    });
    absl::StatusOr<std::unique_ptr<DaemonConnection>> connection;
    {
      const OpenFilesLimit few(OpenFilesLimit::ForMore(more));
      connection = daemon.Connect();
    }
    if (more == kEnough) {
      EXPECT_TRUE(connection.ok()) << connection.status();
    } else {
      EXPECT_TRUE(absl::IsResourceExhausted(connection.status())) << connection.status();
      EXPECT_THAT(Text(connection.status()), HasSubstr("ulimit -n"));
    }
    if (connection.ok()) connection->reset();
    daemon.Join();
  }
}

TEST(DaemonConnectionEndTest, AForkedChildIsDeadAndTheParentGoesOn) {
  if (testing::kThreadSanitizer) GTEST_SKIP() << testing::kForkBesideThreads;
  FakeDaemon daemon(ServeAll);
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  ASSERT_TRUE(GrowAll(**connection, 2_MiB).ok());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool dead = (*connection)->status().code() == absl::StatusCode::kFailedPrecondition &&
                      GrowAll(**connection, 2_MiB).status().code() == absl::StatusCode::kFailedPrecondition &&
                      (*connection)->Close().code() == absl::StatusCode::kFailedPrecondition;
    connection->reset();
    ::_exit(dead ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(GrowAll(**connection, 2_MiB).ok());
  EXPECT_TRUE((*connection)->Close().ok());
}

TEST(DaemonConnectionEndTest, AChildDoesNotKeepTheSessionAlive) {
  rlimit files = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  const int next = ::dup(STDIN_FILENO);
  ::close(next);
  // Also one that may open no further file, or fewer than it has.
  for (const rlim_t limit : {files.rlim_cur, static_cast<rlim_t>(next) + 64, rlim_t{0}}) {
    SCOPED_TRACE(limit);
    std::promise<void> ended;
    FakeDaemon daemon([&ended](FakePeer& peer) {
      ServeAll(peer);
      ended.set_value();
    });
    auto connection = daemon.Connect();
    ASSERT_TRUE(connection.ok());
    const rlimit few = {.rlim_cur = limit, .rlim_max = files.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    std::vector<UniqueFd> others;
    if (limit != files.rlim_cur) {
      do {
        others.emplace_back(::dup(STDIN_FILENO));
      } while (others.back());
    }
    const pid_t child = ::fork();
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
    ASSERT_GE(child, 0);
    if (child == 0) {
      while (true) ::pause();
    }
    connection->reset();
    // The end of file comes although the child lives.
    const bool has_ended = ended.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    EXPECT_TRUE(has_ended);
    EXPECT_EQ(::kill(child, SIGKILL), 0);
    EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  }
}

}  // namespace
}  // namespace lgpu
