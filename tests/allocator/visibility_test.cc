#include "lgpu/visibility.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/visible_list.h"
#include "tests/support/cases.h"
#include "tests/support/test_seed.h"

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::string>& Eight() {
  static const auto* const kUuids = new std::vector<std::string>{
      "GPU-9942190a-aa31-4ff1-4aa9-c388d80f85f1", "GPU-9e8d35e3-a134-0fdd-0e01-23811fdbd293",
      "GPU-e429a63e-c61c-4795-b757-5132caeb8e70", "GPU-eee1dfbc-0a0f-6ad8-5ff6-dc942a8b9d98",
      "GPU-bbcd6503-5150-4e92-c266-97cc4390d04e", "GPU-472ea263-58d7-410d-cc82-f7fdece5bd28",
      "GPU-e56257c4-947f-6a5b-7ec9-0f45567ccf4e", "GPU-1c20e77d-1c1a-d9ed-fe37-18b8466a78ad"};
  return *kUuids;
}

std::vector<std::string> Devices(const std::string& what) {
  if (what == "eight") return Eight();
  if (what == "mig") {
    return {"MIG-89c850dc-3d4a-5f06-8f8c-7bd7e8e0c0a1", "MIG-GPU-9942190a-aa31-4ff1-4aa9-c388d80f85f1/1/0",
            "GPU-9942190a-aa31-4ff1-4aa9-c388d80f85f1"};
  }
  std::vector<std::string> uuids;
  for (int i = 0; i < std::stoi(what); ++i) uuids.push_back("GPU-" + std::to_string(i));
  return uuids;
}

std::string Text(const std::vector<int>& devices) {
  std::string text;
  for (int device : devices) text += (text.empty() ? "" : ",") + std::to_string(device);
  return "[" + text + "]";
}

TEST(VisibilityTest, ValuesAreReadAsTheTableSays) {
  const std::vector<testing::Case> cases = testing::ReadCases("visible_devices.tsv");
  ASSERT_GT(cases.size(), 50u);
  for (const testing::Case& row : cases) {
    SCOPED_TRACE(row.where + " '" + row[1] + "'");
    const std::vector<std::string> uuids = Devices(row[2]);
    const std::string value = row[1];
    const VisibleList list = ParseVisibleDevices(
        value == "(unset)" ? std::nullopt : std::optional<std::string_view>(value), uuids);
    EXPECT_EQ(Text(list.devices), row[3]);
    if (row[4] == "-") {
      EXPECT_EQ(list.note, "");
    } else {
      EXPECT_THAT(list.note, HasSubstr(row[4]));
    }
  }
}

TEST(VisibilityTest, AValueWithAnyBytesStaysOneReadableLine) {
  const std::string value = "0," + std::string(5000, '\n') + "x";
  const VisibleList list = ParseVisibleDevices(value, Eight());
  EXPECT_THAT(list.devices, ElementsAre(0));
  EXPECT_EQ(list.note.find('\n'), std::string::npos);
  EXPECT_LT(list.note.size(), 400u);
}

TEST(VisibilityTest, RandomValuesGiveDistinctDevicesOfTheList) {
  constexpr unsigned kSeed = 30;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  const std::vector<std::string> pieces = {"0",    "1",    "7",      "8", "-",  "+", ",",    ",",  " ",
                                           "GPU-", "MIG-", "GPU-9e", "e", "42", "x", "\xff", "-1", ",GPU-1"};
  for (int i = 0; i < 20000; ++i) {
    std::string value;
    for (std::size_t n = random() % 9; n-- > 0;) value += pieces[random() % pieces.size()];
    const std::vector<int> devices = VisibleDevices(value, Eight());
    const std::set<int> distinct(devices.begin(), devices.end());
    ASSERT_EQ(distinct.size(), devices.size()) << value;
    ASSERT_TRUE(devices.empty() || (*distinct.begin() >= 0 && *distinct.rbegin() < 8)) << value;
  }
}

/// The driver's rules once more: entries of one kind, strtol, and sets.
std::vector<int> Restate(const std::string& value, const std::vector<std::string>& uuids) {
  std::vector<int> devices;
  std::set<int> seen;
  const std::string kind = value.substr(0, 4);
  const bool by_uuid = kind == "GPU-" || kind == "MIG-";
  std::istringstream in(value + ",");
  for (std::string entry; std::getline(in, entry, ',');) {
    std::set<int> meant;
    if (by_uuid) {
      if (entry.rfind(kind, 0) != 0) break;
      for (std::size_t i = 0; i < uuids.size(); ++i) {
        if (uuids[i].compare(0, entry.size(), entry) == 0) meant.insert(static_cast<int>(i));
      }
    } else {
      char* end = nullptr;
      const long number = std::strtol(entry.c_str(), &end, 10);
      const bool there = end != entry.c_str() && number >= 0 && number < static_cast<long>(uuids.size());
      if (there) meant.insert(static_cast<int>(number));
    }
    if (meant.size() != 1) break;
    if (!seen.insert(*meant.begin()).second) return {};
    devices.push_back(*meant.begin());
  }
  if (kind == "MIG-" && devices.size() > 1) devices.resize(1);
  return devices;
}

TEST(VisibilityTest, RandomValuesAgreeWithTheRulesSaidOtherwise) {
  const std::uint32_t seed = TestSeed();
  std::mt19937 random(seed);
  const std::vector<std::string> numbers = {"0",
                                            "1",
                                            "2",
                                            "3",
                                            "-0",
                                            "+1",
                                            " 2",
                                            "3 ",
                                            "01",
                                            "1x",
                                            "2.5",
                                            "0x3",
                                            "4",
                                            "-1",
                                            "",
                                            "x",
                                            "- 1",
                                            "+",
                                            "99999999999999999999"};
  const std::vector<std::string> names = {"GPU-a1", "GPU-a2", "GPU-b",   "GPU-a", "GPU-",  "GPU-a11",
                                          "GPU-c",  "MIG-d1", "MIG-d2e", "MIG-d", "MIG-f", " GPU-b"};
  std::size_t visible = 0;
  for (int i = 0; i < 50000; ++i) {
    std::vector<std::string> uuids = {"GPU-a11", "GPU-a2", "GPU-b9", "MIG-d1", "MIG-d2e", "GPU-c0"};
    std::shuffle(uuids.begin(), uuids.end(), random);
    uuids.resize(random() % (uuids.size() + 1));
    const std::vector<std::string>& mostly = random() % 2 ? numbers : names;
    std::string value;
    for (unsigned n = 1 + random() % 5; n-- > 0;) {
      const std::vector<std::string>& words = random() % 8 ? mostly : (random() % 2 ? numbers : names);
      value += words[random() % words.size()] + (n > 0 ? "," : "");
    }
    if (value.empty()) continue;
    const std::vector<int> devices = VisibleDevices(value, uuids);
    ASSERT_EQ(devices, Restate(value, uuids)) << "'" << value << "' of " << uuids.size();
    visible += devices.size();
  }
  EXPECT_GT(visible, 10000u);
}

TEST(VisibilityTest, AUuidThatNoneOfTheGpusHasIsNamed) {
  const std::vector<std::string> uuids = {"GPU-a1", "GPU-a2", "MIG-b"};
  const auto unknown = [&](std::string_view value) { return ReadVisibleDevices(value, uuids).unknown_uuid; };
  EXPECT_EQ(unknown("GPU-c"), "GPU-c");
  EXPECT_EQ(unknown("GPU-a1,GPU-c,GPU-d"), "GPU-c");
  EXPECT_EQ(unknown("0,MIG-c"), "MIG-c");
  for (const char* const value :
       {"", "7", "-1", "none", "GPU-a", "GPU-a1,MIG-b", "GPU-a1,0", "GPU-a1,GPU-a1"}) {
    EXPECT_EQ(unknown(value), "") << value;
  }
}

TEST(VisibilityTest, TheOrderOfDevicesIsOneOfTwoWords) {
  EXPECT_EQ(ParseDeviceOrder(std::nullopt), DeviceOrder::kFastestFirst);
  EXPECT_EQ(ParseDeviceOrder("FASTEST_FIRST"), DeviceOrder::kFastestFirst);
  EXPECT_EQ(ParseDeviceOrder("PCI_BUS_ID"), DeviceOrder::kPciBusId);
  EXPECT_EQ(ParseDeviceOrder("pci_bus_id"), DeviceOrder::kFastestFirst);
  EXPECT_EQ(ParseDeviceOrder(""), DeviceOrder::kFastestFirst);
}

TEST(VisibilityTest, AClientSeesItsOwnListOfTheDaemonsCardsInItsOwnOrder) {
  const std::vector<std::string> machine = {"GPU-a", "GPU-b", "GPU-c", "GPU-d"};
  const std::vector<std::string> served = {"GPU-d", "GPU-b", "GPU-a"};
  const auto cards = [&](std::optional<std::string_view> value) {
    return VisibleCards({.value = value, .machine = machine, .served = served}).value();
  };
  EXPECT_THAT(cards(std::nullopt), ElementsAre(2, 1, 0));
  EXPECT_THAT(cards("3,0"), ElementsAre(0, 2));
  EXPECT_THAT(cards("2,1"), ElementsAre(1));
  EXPECT_THAT(cards("GPU-b,GPU-d"), ElementsAre(1, 0));
}

TEST(VisibilityTest, AProgramInsideALeaseCountsItsCards) {
  const std::vector<std::string> lease = {"GPU-d", "GPU-b"};
  EXPECT_THAT(VisibleCardsOfLease(std::nullopt, lease).value(), ElementsAre(0, 1));
  EXPECT_THAT(VisibleCardsOfLease("1,0", lease).value(), ElementsAre(1, 0));
  EXPECT_THAT(VisibleCardsOfLease("GPU-b", lease).value(), ElementsAre(1));
  const absl::Status none = VisibleCardsOfLease("2", lease).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.message()),
              HasSubstr("CUDA_VISIBLE_DEVICES = '2', which leaves none of the lease's GPUs: GPU-d, GPU-b"));
  EXPECT_THAT(std::string(none.message()), HasSubstr("'2', which is beyond the last of 2 GPUs"));
}

TEST(VisibilityTest, NoCardInCommonShowsBothLists) {
  const std::vector<std::string> machine = {"GPU-a", "GPU-b"};
  const std::vector<std::string> served = {"GPU-a"};
  const absl::Status status = VisibleCards({.value = "1,x", .machine = machine, .served = served}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  const std::string text(status.message());
  EXPECT_THAT(text, HasSubstr("CUDA_VISIBLE_DEVICES = '1,x', which leaves: GPU-b"));
  EXPECT_THAT(text, HasSubstr("the list ends before 'x'"));
  EXPECT_THAT(text, HasSubstr("the daemon serves: GPU-a"));
  EXPECT_THAT(text, HasSubstr("try: "));

  const std::string none(VisibleCards({.value = "", .machine = machine, .served = {}}).status().message());
  EXPECT_THAT(none, HasSubstr("which leaves: none"));
  EXPECT_THAT(none, HasSubstr("the daemon serves: none"));
  const std::string unset(VisibleCards({.machine = {}, .served = served}).status().message());
  EXPECT_THAT(unset, HasSubstr("CUDA_VISIBLE_DEVICES is not set"));
}

}  // namespace
}  // namespace lgpu
