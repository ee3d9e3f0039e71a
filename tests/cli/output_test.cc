#include "cli/output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>

#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(TableTest, AlignsColumnsAndEndsNoLineInBlanks) {
  Table table({{"NAME"}, {"HELD", Table::Align::kRight}, {"STATE"}});
  table.AddRow({"a", "2.00GiB", "ok"});
  table.AddRow({"longer", "5B", ""});
  EXPECT_EQ(table.Format({}),
            "NAME       HELD  STATE\n"
            "a       2.00GiB  ok\n"
            "longer       5B  -\n");
}

TEST(TableTest, CountsCharactersNotBytes) {
  Table table({{"N"}, {"X"}});
  table.AddRow({"\xc3\xa9\xc3\xa9", "1"});
  table.AddRow({"abc", "2"});
  EXPECT_EQ(table.Format({}),
            "N    X\n"
            "\xc3\xa9\xc3\xa9   1\n"
            "abc  2\n");
}

TEST(TableTest, OnlyTheTitlesAreBold) {
  Table table({{"N"}});
  table.AddRow({"1"});
  EXPECT_EQ(table.Format({.color = true}), "\033[1mN\033[0m\n1\n");
}

TEST(ColorTest, TheFlagWinsThenNoColorThenForceThenTheTerminal) {
  EXPECT_TRUE(UseColor(ColorMode::kAlways, {.no_color = true}));
  EXPECT_FALSE(UseColor(ColorMode::kNever, {.clicolor_force = true, .is_terminal = true}));
  EXPECT_FALSE(UseColor(ColorMode::kAuto, {.no_color = true, .clicolor_force = true, .is_terminal = true}));
  EXPECT_TRUE(UseColor(ColorMode::kAuto, {.clicolor_force = true}));
  EXPECT_TRUE(UseColor(ColorMode::kAuto, {.is_terminal = true}));
  EXPECT_FALSE(UseColor(ColorMode::kAuto, {.dumb_terminal = true, .is_terminal = true}));
  EXPECT_FALSE(UseColor(ColorMode::kAuto, {}));
}

TEST(FormatTest, AgeIsTheLargestUnit) {
  EXPECT_EQ(FormatAge(seconds(0)), "0s");
  EXPECT_EQ(FormatAge(seconds(59)), "59s");
  EXPECT_EQ(FormatAge(seconds(60)), "1m");
  EXPECT_EQ(FormatAge(seconds(2 * 3600 + 5)), "2h");
  EXPECT_EQ(FormatAge(seconds(49 * 3600)), "2d");
  EXPECT_EQ(FormatAge(seconds(-1)), "-");
}

TEST(FormatTest, Nanoseconds) {
  EXPECT_EQ(FormatNanoseconds(999), "999ns");
  EXPECT_EQ(FormatNanoseconds(12'340), "12.3us");
  EXPECT_EQ(FormatNanoseconds(4'500'000), "4.5ms");
  EXPECT_EQ(FormatNanoseconds(1'200'000'000), "1.20s");
}

TEST(FormatTest, TimesAreIsoInUtcAndClockInLocalTime) {
  google::protobuf::Timestamp time;
  time.set_seconds(1769860800);  // 2026-01-31T12:00:00Z
  time.set_nanos(123'456'789);
  EXPECT_EQ(FormatIso8601(time), "2026-01-31T12:00:00.123456Z");
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  EXPECT_EQ(FormatClock(time), "12:00:00.123");
}

TEST(FormatTest, ControlCharactersAreReplaced) {
  EXPECT_EQ(Printable("a\033[2Jb\nc\x7f"), "a?[2Jb?c?");
  EXPECT_EQ(Printable("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(FormatOwner("", 1000), "1000");
  EXPECT_EQ(FormatOwner("root", 0), "root");
}

TEST(DurationTest, TakesUnitsAndBareSeconds) {
  EXPECT_EQ(*ParseDuration("500ms"), milliseconds(500));
  EXPECT_EQ(*ParseDuration("10s"), seconds(10));
  EXPECT_EQ(*ParseDuration("2.5"), milliseconds(2500));
  EXPECT_EQ(*ParseDuration("2m"), seconds(120));
  EXPECT_EQ(*ParseDuration("1h"), seconds(3600));
}

TEST(DurationTest, RefusesOtherTextAndShowsTheRightForm) {
  for (const char* text : {"", "s", "5x", "-1s", "1e9s", "1.2.3", "10 s", "99999999999999h", "nan"}) {
    const auto parsed = ParseDuration(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(std::string(parsed.status().message()), ::testing::HasSubstr("try: 500ms")) << text;
  }
}

}  // namespace
}  // namespace lgpu::cli
