#include "client/runtime/logical_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "lgpu/visibility.h"
#include "tests/support/cases.h"
#include "tests/support/test_seed.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Pieces(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::string part;
  for (const char c : text) {
    if (c != separator) {
      part += c;
    } else {
      parts.push_back(std::exchange(part, {}));
    }
  }
  parts.push_back(part);
  return parts;
}

/// The lists of "{1,2};{}"; none for "-".
template <typename T>
std::vector<std::vector<T>> Lists(const std::string& text) {
  std::vector<std::vector<T>> lists;
  if (text == "-") return lists;
  for (std::string item : Pieces(text, ';')) {
    std::vector<T>& list = lists.emplace_back();
    item.erase(std::remove_if(item.begin(), item.end(), [](char c) { return c == '{' || c == '}'; }),
               item.end());
    if (item.empty()) continue;
    for (const std::string& number : Pieces(item, ',')) list.push_back(static_cast<T>(std::stof(number)));
  }
  return lists;
}

void ReadOptions(const std::string& text, GpuOptions& options) {
  if (text == "-") return;
  for (const std::string& item : Pieces(text, ' ')) {
    const std::vector<std::string> pair = Pieces(item, '=');
    ASSERT_EQ(pair.size(), 2U) << text;
    if (pair[0] == "fraction") {
      options.per_process_gpu_memory_fraction = std::stod(pair[1]);
    } else if (pair[0] == "count") {
      options.device_count = std::stoi(pair[1]);
    } else if (pair[0] == "shares") {
      options.num_virtual_devices_per_gpu = std::stoi(pair[1]);
    } else if (pair[0] == "reserve") {
      options.gpu_system_memory_size_in_mb = std::stoll(pair[1]);
    } else if (pair[0] == "unified") {
      options.use_unified_memory = pair[1] == "1";
    } else {
      FAIL() << text;
    }
  }
}

std::string Text(const absl::Status& status) {
  return "error " + std::to_string(static_cast<int>(status.code())) + " " + std::string(status.message());
}
std::string Text(const absl::StatusOr<std::vector<PlannedDevice>>& plan) {
  if (!plan.ok()) return Text(plan.status());
  std::string text;
  for (const PlannedDevice& device : *plan) {
    text += (text.empty() ? "" : " ") + std::to_string(device.card) + ":" +
            std::to_string(device.memory_limit.count()) + ":" + std::to_string(device.priority);
  }
  return text;
}
std::string Text(const absl::StatusOr<std::vector<int>>& devices) {
  if (!devices.ok()) return Text(devices.status());
  std::string text;
  for (const int device : *devices) text += (text.empty() ? "" : ",") + std::to_string(device);
  return "[" + text + "]";
}

void ExpectAnswer(const std::string& answer, const std::string& expected) {
  if (expected.rfind("error ", 0) != 0) {
    EXPECT_EQ(answer, expected);
    return;
  }
  const std::size_t part = expected.find(' ', 6) + 1;
  EXPECT_EQ(answer.substr(0, part), expected.substr(0, part)) << answer;
  EXPECT_THAT(answer, HasSubstr(expected.substr(part)));
}

TEST(LogicalPlanTest, VisibleDeviceListsAreReadAsTheTableSays) {
  const std::vector<testing::Case> cases = testing::ReadCases("visible_device_list.tsv");
  ASSERT_GT(cases.size(), 30U);
  for (const testing::Case& row : cases) {
    SCOPED_TRACE(row.where);
    const int count = std::stoi(row[2]);
    if (row.columns.size() < 5) {
      ExpectAnswer(Text(ParseVisibleDeviceList(row[1], count)), row[3]);
      continue;
    }
    // The list counts the cards that CUDA_VISIBLE_DEVICES leaves; the answer is in the machine's order.
    std::vector<std::string> uuids;
    for (int i = 0; i < count; ++i) uuids.push_back("GPU-" + std::to_string(i));
    const std::vector<int> left = VisibleDevices(row[4], uuids);
    absl::StatusOr<std::vector<int>> listed = ParseVisibleDeviceList(row[1], static_cast<int>(left.size()));
    if (listed.ok()) {
      for (int& device : *listed) device = left.at(static_cast<std::size_t>(device));
    }
    ExpectAnswer(Text(listed), row[3]);
  }
}

std::vector<PlanCard> Cards(const std::string& text) {
  const std::vector<std::string> parts = Pieces(text, 'x');
  const std::vector<std::string> version = Pieces(parts.size() > 1 ? parts[1] : "8.0", '.');
  PlanCard card{.total = 16_GiB, .free = 16_GiB};
  card.compute_major = std::stoi(version.at(0));
  card.compute_minor = std::stoi(version.at(1));
  card.priority_greatest = -2;
  return std::vector<PlanCard>(std::stoul(parts[0]), card);
}

TEST(LogicalPlanTest, VirtualDevicesAreMadeAsTheTableSays) {
  const std::vector<testing::Case> cases = testing::ReadCases("virtual_devices.tsv");
  ASSERT_GT(cases.size(), 40U);
  for (const testing::Case& row : cases) {
    SCOPED_TRACE(row.where);
    GpuOptions options;
    options.visible_device_list = row[2];
    const auto limits = Lists<float>(row[3]);
    const auto priorities = Lists<int>(row[4]);
    const auto ordinals = Lists<int>(row[5]);
    for (std::size_t i = 0; i < limits.size(); ++i) {
      options.virtual_devices.push_back({limits[i],
                                         i < priorities.size() ? priorities[i] : std::vector<int>(),
                                         i < ordinals.size() ? ordinals[i] : std::vector<int>()});
    }
    std::vector<PlanCard> cards = Cards(row[1]);
    std::optional<std::string> least;
    std::string rest;
    for (const std::string& option : Pieces(row[6], ' ')) {
      if (option.rfind("mp=", 0) == 0) {
        const std::vector<std::string> counts = Pieces(option.substr(3), '/');
        for (std::size_t i = 0; i < cards.size(); ++i) cards[i].multiprocessors = std::stoi(counts.at(i));
      } else if (option.rfind("leastmp=", 0) == 0) {
        least = option.substr(8);
      } else {
        rest += (rest.empty() ? "" : " ") + option;
      }
    }
    ReadOptions(rest.empty() ? "-" : rest, options);
    for (std::size_t i = 0; i < cards.size(); ++i) cards[i].description = "device: " + std::to_string(i);
    std::vector<std::string> notes;
    PlanRequest request{.options = options, .cards = cards};
    if (least) request.min_multiprocessors = *least;
    ExpectAnswer(Text(PlanDevices(request, notes)), row[7]);
    if (row.columns.size() > 8) {
      EXPECT_THAT(notes, ::testing::Contains(HasSubstr(row[8])));
    } else {
      EXPECT_THAT(notes, ::testing::IsEmpty());
    }
  }
}

TEST(LogicalPlanTest, DefaultLimitsAreAsTheTableSays) {
  const std::vector<testing::Case> cases = testing::ReadCases("memory_limit.tsv");
  ASSERT_GT(cases.size(), 35U);
  for (const testing::Case& row : cases) {
    SCOPED_TRACE(row.where);
    PlanCard card{.total = 16_GiB, .compute_major = std::stoi(row[2])};
    if (row[1] != "unknown") card.free = Bytes(std::stoull(row[1]));
    GpuOptions options;
    ReadOptions(row[3], options);
    const std::string variable = row[4];
    PlanRequest request{.options = options, .cards = {&card, 1}};
    if (variable != "-") request.min_system_memory_mb = variable;
    std::vector<std::string> notes;
    const absl::StatusOr<Bytes> limit = DefaultMemoryLimit(request, 0, notes);
    ExpectAnswer(limit.ok() ? std::to_string(limit->count()) : Text(limit.status()), row[5]);
    if (row[6] == "-") {
      EXPECT_THAT(notes, ::testing::IsEmpty());
    } else {
      EXPECT_THAT(notes, ::testing::ElementsAre(HasSubstr(row[6])));
    }
  }
}

TEST(LogicalPlanTest, TheGrowthVariableCountsAsTheTableSays) {
  const std::vector<testing::Case> cases = testing::ReadCases("growth_switch.tsv");
  ASSERT_GT(cases.size(), 12U);
  for (const testing::Case& row : cases) {
    SCOPED_TRACE(row.where);
    const std::string value = row[1];
    const GrowthSwitch growth = OverrideGrowth(
        value == "(unset)" ? std::nullopt : std::optional<std::string_view>(value), row[2] == "true");
    EXPECT_EQ(growth.growth, row[3] == "true");
    EXPECT_EQ(growth.note, row[4] == "-" ? "" : row[4]);
  }
}

TEST(LogicalPlanTest, GpusAreMappedToCardsAsTheTableSays) {
  const std::vector<testing::Case> cases = testing::ReadCases("device_ids.tsv");
  ASSERT_GT(cases.size(), 5U);
  for (const testing::Case& row : cases) {
    SCOPED_TRACE(row.where);
    DeviceIdMap map;
    absl::Status status;
    std::istringstream inserts(row[1]);
    for (std::string insert; inserts >> insert;) {
      const std::vector<std::string> pair = Pieces(insert, '>');
      status.Update(map.Insert(std::stoi(pair.at(0)), std::stoi(pair.at(1))));
    }
    const absl::StatusOr<int> card = map.Find(std::stoi(row[2]));
    status.Update(card.status());
    ExpectAnswer(status.ok() ? std::to_string(*card) : Text(status), row[3]);
  }
}

// The rules again, in another form: a list of (does it apply, code, a part of the text), the first counts.
struct Rule {
  bool applies;
  absl::StatusCode code;
  std::string text;
};

struct RandomConfiguration {
  GpuOptions options;
  std::vector<PlanCard> cards;
  std::vector<std::string> list;     // entries of the visible_device_list
  std::optional<std::string> least;  // multiprocessors
};

/// Which of the listed cards count.
std::vector<int> Valid(const RandomConfiguration& made, const std::vector<int>& listed) {
  std::set<int> sizes = {0};
  for (const int card : listed) sizes.insert(made.cards[static_cast<std::size_t>(card)].multiprocessors);
  int least = *sizes.rbegin() > 8 ? 8 : *sizes.rbegin();
  if (made.least == "3" || made.least == "12") least = std::stoi(*made.least);
  std::vector<int> valid;
  for (const int position : listed) {
    const PlanCard& card = made.cards[static_cast<std::size_t>(position)];
    if (10 * card.compute_major + card.compute_minor < 35) continue;
    if (card.multiprocessors == 0 || card.multiprocessors >= least) valid.push_back(position);
  }
  return valid;
}

RandomConfiguration Configure(std::mt19937& random) {
  const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
  RandomConfiguration made;
  for (int i = below(4); i >= 0; --i) {
    PlanCard card{.total = Bytes(random() % 20 * (512ull << 20)), .compute_major = 3 + below(8)};
    card.compute_minor = below(8);
    if (below(3) != 0) card.multiprocessors = below(14);
    card.free = Bytes(card.total.count() / (1 + random() % 3) + random() % 1000);
    card.priority_greatest = -below(3);
    card.priority_least = below(2);
    made.cards.push_back(card);
  }
  if (below(3) == 0) made.options.device_count = below(5);
  static const char* const kLeast[] = {"3", "12", "x", "-1", ""};
  if (below(3) == 0) made.least = kLeast[below(5)];
  static const char* const kEntries[] = {"0", "1", "2", "3", " 1", "7", "-1", "x", "", "+1", "0", "1"};
  const bool wild = below(4) == 0;
  if (below(2) == 0) {
    for (int i = below(3); i >= 0; --i) {
      made.list.push_back(kEntries[wild ? below(12) : below(static_cast<unsigned>(made.cards.size()))]);
    }
  }
  for (std::size_t i = 0; i < made.list.size(); ++i) {
    made.options.visible_device_list += (i == 0 ? "" : ",") + made.list[i];
  }
  if (below(6) == 0) made.options.per_process_gpu_memory_fraction = static_cast<double>(below(15)) / 10;
  if (below(3) == 0) return made;
  const bool priorities = below(2) == 0;
  const bool ordinals = below(2) == 0;
  const std::size_t visible = made.list.empty() ? made.cards.size() : made.list.size();
  const std::size_t entries = below(5) == 0 ? random() % 4 : visible;
  for (std::size_t i = 0; i < entries; ++i) {
    VirtualDevices& entry = made.options.virtual_devices.emplace_back();
    const int limits = below(4);
    for (int j = 0; j < limits; ++j) entry.memory_limit_mb.push_back(static_cast<float>(below(4000)) / 2);
    const bool slip = below(12) == 0;
    for (int j = slip ? below(4) : (priorities ? limits : 0); j > 0; --j) {
      entry.priority.push_back(below(4) - 2);
    }
    const bool slip_too = below(12) == 0;
    for (int j = slip_too ? below(4) : (ordinals ? limits : 0); j > 0; --j) {
      entry.device_ordinal.push_back(below(3));
    }
  }
  return made;
}

/// Positions of the visible cards, or the text that must come out as an error.
std::string ReadList(const RandomConfiguration& made, std::vector<int>& visible) {
  const int count = static_cast<int>(made.cards.size());
  if (made.options.device_count == 0) return "";
  if (made.options.visible_device_list.empty()) {
    for (int i = 0; i < count; ++i) visible.push_back(i);
    return "";
  }
  static const std::map<std::string, int> kMeaning = {{"0", 0},  {"1", 1}, {"2", 2},  {"3", 3},
                                                      {" 1", 1}, {"7", 7}, {"-1", -1}};
  for (const std::string& entry : made.list) {
    const auto meaning = kMeaning.find(entry);
    if (meaning == kMeaning.end()) return "Could not parse entry in 'visible_device_list': '" + entry + "'.";
    if (meaning->second < 0 || meaning->second >= count) return "listed an invalid Device id";
    visible.push_back(meaning->second);
  }
  const std::set<int> distinct(visible.begin(), visible.end());
  return distinct.size() == visible.size() ? "" : "contained a duplicate entry";
}

std::vector<Rule> Rules(const RandomConfiguration& made, const std::vector<int>& listed,
                        const std::vector<int>& visible) {
  using Code = absl::StatusCode;
  const auto& entries = made.options.virtual_devices;
  const std::size_t use =
      std::min<std::size_t>(visible.size(), static_cast<std::size_t>(made.options.device_count.value_or(99)));
  std::vector<Rule> rules = {
      {made.options.per_process_gpu_memory_fraction > 0, Code::kInvalidArgument, "It's invalid to set"},
      {use < entries.size(), Code::kUnknown, "Not enough GPUs to create virtual devices."},
      {!made.options.visible_device_list.empty() && listed.size() != entries.size(), Code::kInvalidArgument,
       "The number of GPUs in visible_device_list doesn't match"},
      {visible.size() != entries.size(), Code::kUnknown, "The number of valid GPUs doesn't match"}};
  if (visible.size() < entries.size()) return rules;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const VirtualDevices& it = entries[i];
    const std::string gpu = "GPU# " + std::to_string(i) + " ";
    const auto counts_differ = [&](const auto& first, const auto& list) {
      return !first.empty() && list.size() != it.memory_limit_mb.size();
    };
    rules.push_back({entries[0].device_ordinal.empty() && !it.device_ordinal.empty(), Code::kInvalidArgument,
                     "the device_ordinal is specified for " + std::to_string(i) + " while"});
    rules.push_back({counts_differ(entries[0].device_ordinal, it.device_ordinal), Code::kInvalidArgument,
                     "ordinals specified doesn't match with number of memory_limit_mb specified for " + gpu});
    rules.push_back({entries[0].priority.empty() && !it.priority.empty(), Code::kInvalidArgument,
                     "the priority is specified for " + std::to_string(i) + " while"});
    rules.push_back(
        {counts_differ(entries[0].priority, it.priority), Code::kInvalidArgument,
         "priorities specified doesn't match with number of memory_limit_mb specified for " + gpu});
    const PlanCard& card = made.cards[static_cast<std::size_t>(visible[i])];
    for (const int p : it.priority) {
      const bool outside = std::clamp(p, card.priority_greatest, card.priority_least) != p;
      rules.push_back({outside, Code::kInvalidArgument, "Priority " + std::to_string(p) + " is outside"});
    }
  }
  return rules;
}

/// The default limit, stated as a table of reserves.
std::string DefaultLimit(const PlanCard& card, double fraction) {
  if (fraction > 1 && card.compute_major < 6) return "error";
  if (fraction > 0) {
    return std::to_string(static_cast<std::uint64_t>(static_cast<double>(card.total.count()) * fraction));
  }
  const std::uint64_t free = card.free->count();
  static const std::map<int, std::uint64_t> kReserve = {{3, 500},  {4, 500},  {5, 500},  {6, 500},
                                                        {7, 1050}, {8, 1536}, {9, 1800}, {10, 1800}};
  const std::uint64_t reserve = (free >> 31 == 0 ? 225 : kReserve.at(card.compute_major)) << 20;
  return std::to_string(free > reserve ? free - reserve : free);
}

/// The whole plan as text; "error" and a part of the text where there is none.
std::string Restate(const RandomConfiguration& made, const std::vector<int>& visible) {
  const GpuOptions& options = made.options;
  std::size_t use =
      std::min<std::size_t>(visible.size(), static_cast<std::size_t>(options.device_count.value_or(99)));
  if (!options.virtual_devices.empty()) use = options.virtual_devices.size();
  std::multimap<int, std::string> by_ordinal;  // equal keys keep their order
  for (std::size_t i = 0; i < use; ++i) {
    const std::string card = std::to_string(visible[i]) + ":";
    const VirtualDevices entry =
        options.virtual_devices.empty() ? VirtualDevices() : options.virtual_devices[i];
    if (entry.memory_limit_mb.empty()) {
      const std::string limit = DefaultLimit(made.cards[static_cast<std::size_t>(visible[i])],
                                             options.per_process_gpu_memory_fraction);
      if (limit == "error") return "error does not support oversubscription.";
      by_ordinal.emplace(0, card + limit + ":0");
    }
    for (std::size_t j = 0; j < entry.memory_limit_mb.size(); ++j) {
      const auto bytes = static_cast<std::uint64_t>(std::floor(entry.memory_limit_mb[j])) * 1048576;
      by_ordinal.emplace(entry.device_ordinal.empty() ? 0 : entry.device_ordinal[j],
                         card + std::to_string(bytes) + ":" +
                             std::to_string(entry.priority.empty() ? 0 : entry.priority[j]));
    }
  }
  std::string text;
  for (const auto& [ordinal, device] : by_ordinal) text += (text.empty() ? "" : " ") + device;
  return text;
}

TEST(LogicalPlanTest, RandomConfigurationsAgreeWithTheRulesSaidOtherwise) {
  const std::uint32_t seed = TestSeed();
  std::mt19937 random(seed);
  int planned = 0;
  for (int round = 0; round < 20000; ++round) {
    const RandomConfiguration made = Configure(random);
    std::vector<std::string> notes;
    PlanRequest request{.options = made.options, .cards = made.cards};
    if (made.least) request.min_multiprocessors = *made.least;
    const std::string answer = Text(PlanDevices(request, notes));
    std::vector<int> listed;
    if (const std::string wrong = ReadList(made, listed); !wrong.empty()) {
      ASSERT_THAT(answer, HasSubstr("error 3 ")) << made.options.visible_device_list;
      ASSERT_THAT(answer, HasSubstr(wrong)) << made.options.visible_device_list;
      continue;
    }
    const std::vector<int> visible = Valid(made, listed);
    std::vector<Rule> rules;
    if (!made.options.virtual_devices.empty()) rules = Rules(made, listed, visible);
    const auto broken =
        std::find_if(rules.begin(), rules.end(), [](const Rule& rule) { return rule.applies; });
    if (broken != rules.end()) {
      ASSERT_THAT(answer, HasSubstr("error " + std::to_string(static_cast<int>(broken->code)) + " "));
      ASSERT_THAT(answer, HasSubstr(broken->text));
      continue;
    }
    const std::string expected = Restate(made, visible);
    if (expected.rfind("error ", 0) == 0) {
      ASSERT_THAT(answer, HasSubstr(expected.substr(6)));
      continue;
    }
    ++planned;
    ASSERT_EQ(answer, expected);
  }
  EXPECT_GT(planned, 2000);
}

}  // namespace
}  // namespace lgpu
