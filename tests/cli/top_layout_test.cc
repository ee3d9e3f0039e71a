#include "cli/top/top_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "cli/output.h"

namespace lgpu::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kTopMiB = 1 << 20;

void AddLease(const std::string& name, std::uint64_t used_mib, std::uint64_t ops, v1::StatsSnapshot& stats) {
  v1::LeaseStats& lease = *stats.add_leases();
  lease.set_id("l-" + name);
  lease.set_name(name);
  lease.set_owner("user1");
  lease.set_owner_uid(1000);
  v1::LogicalDeviceStats& device = *lease.add_devices();
  device.set_name("/job:localhost/replica:0/task:0/device:GPU:0");
  device.set_card_uuid("GPU-1");
  device.set_limit_bytes(256 * kTopMiB);
  device.set_held_bytes(100 * kTopMiB);
  device.set_used_bytes(used_mib * kTopMiB);
  device.set_largest_free_block_bytes(kTopMiB);
  device.set_ops_total(ops);
  lease.add_sessions()->set_pid(4711);
}

TopModel Model(int leases = 1) {
  TopModel model;
  model.uid = 1000;
  model.stats.mutable_taken_at()->set_seconds(1000);
  model.stats.set_daemon("lgpud 0.1.0");
  v1::CardStats& card = *model.stats.add_cards();
  card.set_uuid("GPU-1");
  card.set_name("Simulated GPU");
  card.set_served(true);
  card.set_total_bytes(1024 * kTopMiB);
  card.set_held_bytes(100 * kTopMiB);
  card.set_promised_bytes(300 * kTopMiB);
  card.set_foreign_bytes(24 * kTopMiB);
  card.set_free_bytes(700 * kTopMiB);
  for (int i = 0; i < leases; ++i) {
    AddLease(absl::StrCat("lease-", i), leases == 1 ? 60 : 0, 100, model.stats);
  }
  return model;
}

std::string Once(const TopModel& model, std::size_t columns, TopView view = {}) {
  view.ascii = true;
  return TopText(LayOutTop(model, view, {.columns = columns}), /*color=*/false);
}

TEST(TopLayoutTest, TheBarOfACardHasAllPartsInTheirOrder) {
  const std::string text = Once(Model(), 80);
  EXPECT_THAT(text, ::testing::ContainsRegex("MEM \\[#+=+s+\\.+x+\\]"));
  EXPECT_THAT(Once(Model(), 100),
              HasSubstr("used 60.00MiB | held 100.00MiB | promised 300.00MiB | free 700.00MiB | foreign "
                        "24.00MiB"));
}

TEST(TopLayoutTest, FiguresThatDoNotFitGoOnInTheNextLine) {
  EXPECT_THAT(Once(Model(), 80), AllOf(HasSubstr("free 700.00MiB"), HasSubstr("foreign 24.00MiB")));
  EXPECT_THAT(Once(Model(), 50), AllOf(HasSubstr("free 700.00MiB"), HasSubstr("foreign 24.00MiB")));
}

TEST(TopLayoutTest, APidIsShownInFullOrCounted) {
  TopModel model = Model();
  v1::LeaseStats& lease = *model.stats.mutable_leases(0);
  lease.add_sessions()->set_pid(4711);
  EXPECT_THAT(Once(model, 80), Not(HasSubstr("4711,4711"))) << "two sessions of one process";
  lease.add_sessions()->set_pid(4800);
  EXPECT_THAT(Once(model, 80), HasSubstr("4711,4800"));
  lease.mutable_sessions(0)->set_pid(30314);
  lease.mutable_sessions(1)->set_pid(30338);
  lease.mutable_sessions()->RemoveLast();
  EXPECT_THAT(Once(model, 80), HasSubstr("30314,+1"));
}

TEST(TopLayoutTest, EightGpusLeaveRoomForTheLeases) {
  TopModel model = Model(3);
  for (std::uint32_t i = 1; i < 8; ++i) {
    *model.stats.add_cards() = model.stats.cards(0);
    model.stats.mutable_cards(static_cast<int>(i))->set_index(i);
    model.stats.mutable_cards(static_cast<int>(i))->set_uuid(absl::StrCat("GPU-x", i));
  }
  const std::string text = TopText(LayOutTop(model, {}, {.columns = 80, .lines = 24}), false);
  EXPECT_THAT(text,
              AllOf(HasSubstr("GPU 7  ["), HasSubstr("lease-0"), HasSubstr("lease-2"), HasSubstr("[h]elp")));
}

TEST(TopLayoutTest, ChargedMemoryIsAPartOfUsedAndHasItsOwnPartOfTheBar) {
  TopModel model = Model();
  model.stats.mutable_leases(0)->mutable_devices(0)->set_charged_bytes(20 * kTopMiB);
  EXPECT_THAT(Once(model, 100), AllOf(HasSubstr("used 60.00MiB | charged 20.00MiB | held 100.00MiB"),
                                      ::testing::ContainsRegex("#c+=")));
}

TEST(TopLayoutTest, NoLineIsWiderThanTheScreenAndNoneIsTooMany) {
  TopModel model = Model(50);
  for (int i = 0; i < 4; ++i) {
    v1::QueuedRequest& request = *model.stats.mutable_cards(0)->add_queue();
    request.set_owner(std::string(100, 'x'));
  }
  v1::Event event;
  event.set_text(std::string(300, 'e'));
  model.events.assign(10, event);
  for (const std::size_t columns : {1, 5, 40, 80, 81, 100, 133, 200, 300}) {
    for (const std::size_t lines : {1, 2, 16, 24, 60, 200}) {
      const std::vector<TopLine> laid = LayOutTop(model, {}, {.columns = columns, .lines = lines});
      EXPECT_EQ(laid.size(), lines);
      for (const TopLine& line : laid) {
        std::size_t width = 0;
        for (const TopSpan& span : line) width += TextWidth(span.text);
        EXPECT_LE(width, columns);
      }
    }
  }
}

TEST(TopLayoutTest, AWideScreenHasMoreColumns) {
  const TopModel model = Model();
  EXPECT_THAT(Once(model, 80), AllOf(HasSubstr("PID"), Not(HasSubstr("ALLOC/S"))));
  EXPECT_THAT(Once(model, 200), AllOf(HasSubstr("ALLOC/S"), Not(HasSubstr("FRAG")), HasSubstr("PEAK"),
                                      HasSubstr("OWNER"), HasSubstr("STATE")));
}

TEST(TopLayoutTest, RatesAreDifferencesOverTime) {
  TopModel model = Model();
  v1::StatsSnapshot later = model.stats;
  later.mutable_taken_at()->set_seconds(1002);
  later.mutable_leases(0)->mutable_devices(0)->set_ops_total(350);
  EXPECT_THAT(Once(model, 80), HasSubstr(" - "));
  model.rates = RatesBetween(model.stats, later);
  ASSERT_EQ(model.rates.size(), 1u);
  EXPECT_DOUBLE_EQ(model.rates.begin()->second.ops, 125);
  EXPECT_THAT(Once(model, 80), HasSubstr(" 125 "));
  // A session that ended took its count along.
  EXPECT_DOUBLE_EQ(RatesBetween(later,
                                [&] {
                                  v1::StatsSnapshot less = model.stats;
                                  less.mutable_taken_at()->set_seconds(1003);
                                  return less;
                                }())
                       .begin()
                       ->second.ops,
                   0);
  EXPECT_TRUE(RatesBetween(later, later).empty());
}

TEST(TopLayoutTest, RowsAreSortedAndTheChosenOneIsInSight) {
  TopModel model = Model(0);
  AddLease("b", 10, 5, model.stats);
  AddLease("a", 90, 9, model.stats);
  TopView view;
  EXPECT_EQ(TopRows(model, view).front().first, "l-a");
  view.reversed = true;
  EXPECT_EQ(TopRows(model, view).front().first, "l-b");
  view = {};
  view.sort = TopSort::kUsed;
  EXPECT_EQ(TopRows(model, view).front().first, "l-a");

  const TopModel many = Model(50);
  view = {};
  view.chosen = TopRows(many, view)[40];
  const std::string text = TopText(LayOutTop(many, view, {.columns = 80, .lines = 20}), false);
  EXPECT_THAT(text, AllOf(HasSubstr("> "), HasSubstr("of 50")));
}

TEST(TopLayoutTest, TheQueueAndOldFiguresAreNamed) {
  TopModel model = Model();
  v1::QueuedRequest& request = *model.stats.mutable_cards(0)->add_queue();
  request.set_place(1);
  request.set_owner("user2");
  request.set_asked_bytes(512 * kTopMiB);
  request.set_waited_ms(3000);
  model.problem = "OLD: lgpud is gone";
  EXPECT_THAT(Once(model, 120),
              AllOf(HasSubstr("1. user2 asks for 512.00MiB, waits 3s"), HasSubstr("OLD: lgpud is gone")));
}

TEST(TopLayoutTest, ALineThatDoesNotFitEndsWithAMark) {
  TopModel model = Model();
  v1::Event& event = model.events.emplace_back();
  event.set_kind(v1::Event::KIND_REFUSED);
  event.set_text(absl::StrCat("refused ", std::string(60, 'x'), " end"));
  EXPECT_THAT(Once(model, 300), AllOf(HasSubstr("x end\n"), Not(HasSubstr("x>\n"))));
  EXPECT_THAT(Once(model, 80), AllOf(HasSubstr("x>\n"), Not(HasSubstr("x end"))));
  const std::string wide = TopText(LayOutTop(model, {}, {.columns = 80}), /*color=*/false);
  EXPECT_THAT(wide, HasSubstr("x…\n"));
}

TEST(TopLayoutTest, TextOfOtherProgramsCannotSteerTheTerminal) {
  TopModel model = Model(0);
  AddLease("evil\033[2J", 1, 1, model.stats);
  EXPECT_THAT(Once(model, 120), Not(HasSubstr("\033")));
}

TEST(TopLayoutTest, ColourOnlyRepeatsTheText) {
  const std::string plain = Once(Model(), 80);
  TopView view;
  view.ascii = true;
  std::string coloured = TopText(LayOutTop(Model(), view, {.columns = 80}), true);
  EXPECT_NE(coloured, plain);
  for (std::size_t at = coloured.find('\033'); at != std::string::npos; at = coloured.find('\033')) {
    coloured.erase(at, coloured.find('m', at) + 1 - at);
  }
  EXPECT_EQ(coloured.substr(0, 40), plain.substr(0, 40));
}

TEST(TopLayoutTest, NoLeasesIsSaid) { EXPECT_THAT(Once(Model(0), 80), HasSubstr("No leases of yours.")); }

TEST(TopLayoutTest, TheHelpFitsATerminalOf80Columns) {
  EXPECT_EQ(Once(Model(), 80, {.help = true}), Once(Model(), 300, {.help = true}));
}

}  // namespace
}  // namespace lgpu::cli
