#include "daemon/server/event_log.h"

#include <gtest/gtest.h>

namespace lgpu::daemon {
namespace {

v1::Event Named(const char* text) {
  v1::Event event;
  event.set_text(text);
  return event;
}

TEST(EventLogTest, KeepsTheLastAndCountsTheLost) {
  EventLog log(2);
  for (const char* text : {"a", "b", "c"}) log.Append(Named(text), std::nullopt);
  const EventLog::Batch batch = log.Read(0, 5, 10);
  ASSERT_EQ(batch.events.size(), 2u);
  EXPECT_EQ(batch.events[0].text(), "b");
  EXPECT_EQ(batch.events[0].sequence(), 2u);
  EXPECT_EQ(batch.lost, 1u);
  EXPECT_EQ(batch.last_sequence, 3u);
}

TEST(EventLogTest, AUserSeesTheirOwnEventsAndRootSeesAll) {
  EventLog log(10);
  log.Append(Named("for 7"), 7);
  log.Append(Named("for 8"), 8);
  EXPECT_EQ(log.Read(0, 7, 10).events.size(), 1u);
  EXPECT_EQ(log.Read(0, 7, 10).last_sequence, 2u);
  EXPECT_EQ(log.Read(0, 0, 10).events.size(), 2u);
}

TEST(EventLogTest, OnlyTheReaderOfTheLastEventIsToldOfTheClose) {
  EventLog log(10);
  log.Append(Named("first"), std::nullopt);
  log.Append(Named("last"), std::nullopt);
  EXPECT_FALSE(log.Read(0, 0, 10).closed);
  log.Close();
  EXPECT_FALSE(log.Read(0, 0, 1).closed);
  EXPECT_TRUE(log.Read(1, 0, 1).closed);
}

TEST(EventLogTest, AUserWithManyEventsPushesOutTheirOwn) {
  EventLog log(10);
  log.Append(Named("of all"), std::nullopt);
  log.Append(Named("mine"), 7);
  for (int i = 0; i < 1000; ++i) log.Append(Named("noise"), 666);
  const EventLog::Batch mine = log.Read(0, 7, 100);
  ASSERT_EQ(mine.events.size(), 2u);
  EXPECT_EQ(mine.events[0].text(), "of all");
  EXPECT_EQ(mine.events[1].text(), "mine");
  EXPECT_EQ(mine.lost, 992u);
  EXPECT_EQ(mine.last_sequence, 1002u);
  EXPECT_EQ(log.Read(0, 0, 100).events.size(), 10u);
  EXPECT_EQ(log.Read(1002, 0, 100).lost, 0u);
}

TEST(EventLogTest, ASequenceFromTheFutureIsTheLastOne) {
  EventLog log(10);
  log.Append(Named("a"), std::nullopt);
  EXPECT_TRUE(log.Read(1000, 0, 10).events.empty());
  EXPECT_EQ(log.Read(1000, 0, 10).last_sequence, 1u);
}

}  // namespace
}  // namespace lgpu::daemon
