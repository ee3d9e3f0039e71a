#include "daemon/server/event_log.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace lgpu::daemon {
namespace {

using Clock = std::chrono::steady_clock;

v1::Event Named(const char* text) {
  v1::Event event;
  event.set_text(text);
  return event;
}

TEST(EventLogTest, KeepsTheLastAndCountsTheLost) {
  EventLog log(2);
  for (const char* text : {"a", "b", "c"}) {
    log.Append(Named(text), std::nullopt);
  }
  const EventLog::Batch batch = log.Read(0, 5, 10, Clock::now());
  ASSERT_EQ(batch.events.size(), 2u);
  EXPECT_EQ(batch.events[0].text(), "b");
  EXPECT_EQ(batch.events[0].sequence(), 2u);
  EXPECT_EQ(batch.lost, 1u);
  EXPECT_EQ(batch.last_sequence, 3u);
}

TEST(EventLogTest, AUserSeesHisOwnAndRootAll) {
  EventLog log(10);
  log.Append(Named("for 7"), 7);
  log.Append(Named("for 8"), 8);
  EXPECT_EQ(log.Read(0, 7, 10, Clock::now()).events.size(), 1u);
  EXPECT_EQ(log.Read(0, 7, 10, Clock::now()).last_sequence, 2u);
  EXPECT_EQ(log.Read(0, 0, 10, Clock::now()).events.size(), 2u);
}

TEST(EventLogTest, AReaderWaitsAndCloseEndsIt) {
  EventLog log(10);
  std::thread writer([&log] { log.Append(Named("late"), std::nullopt); });
  EXPECT_EQ(log.Read(0, 0, 10, Clock::now() + std::chrono::minutes(1)).events.size(), 1u);
  writer.join();
  std::thread closer([&log] { log.Close(); });
  EXPECT_TRUE(log.Read(1, 0, 10, Clock::now() + std::chrono::minutes(1)).closed);
  closer.join();
}

TEST(EventLogTest, ASequenceFromTheFutureIsTheLastOne) {
  EventLog log(10);
  log.Append(Named("a"), std::nullopt);
  EXPECT_TRUE(log.Read(1000, 0, 10, Clock::now()).events.empty());
  EXPECT_EQ(log.Read(1000, 0, 10, Clock::now()).last_sequence, 1u);
}

}  // namespace
}  // namespace lgpu::daemon
