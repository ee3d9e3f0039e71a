#include "lgpu/device_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/test_seed.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;

// "foo,1,2,GPU,3" with - for a part that is not set.
std::string Parts(const std::optional<DeviceName>& name) {
  if (!name) return "reject";
  const auto number = [](const std::optional<int>& n) { return n ? std::to_string(*n) : "-"; };
  return name->job.value_or("-") + "," + number(name->replica) + "," + number(name->task) + "," +
         name->type.value_or("-") + "," + number(name->id);
}

std::optional<DeviceName> Lenient(std::string_view text) {
  const absl::StatusOr<DeviceName> name = ParseLenientName(text);
  return name.ok() ? std::optional(*name) : std::nullopt;
}

TEST(DeviceNameTest, NamesParseAndPrintAsTheTableSays) {
  const std::map<std::string, std::function<std::optional<DeviceName>(std::string_view)>> parsers = {
      {"full", ParseFullName},
      {"local", ParseLocalName},
      {"full_or_local", ParseFullOrLocalName},
      {"lenient", Lenient}};
  const std::vector<testing::Case> cases = testing::ReadCases("device_names.tsv");
  ASSERT_GT(cases.size(), 100u);
  for (const testing::Case& row : cases) {
    SCOPED_TRACE(row.where + " '" + row[2] + "'");
    ASSERT_TRUE(parsers.count(row[1]) == 1);
    const std::optional<DeviceName> name = parsers.at(row[1])(row[2]);
    EXPECT_EQ(Parts(name), row[3]);
    EXPECT_EQ(name ? ToString(*name) : "", row[4]);
  }
}

std::string Text(const absl::StatusOr<std::string>& text) {
  if (text.ok()) return *text;
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  return "error: " + std::string(text.status().message());
}
std::string Text(const absl::StatusOr<DeviceName>& name) {
  return Text(name.ok() ? absl::StatusOr<std::string>(ToString(*name)) : name.status());
}
std::string Text(bool truth) { return truth ? "true" : "false"; }

std::string Joined(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) {
    joined += (joined.empty() ? "" : " ") + (text.empty() ? "(empty)" : text);
  }
  return joined;
}

// The answer of a row's operation; an operand that does not parse fails the test.
std::string Answer(const std::string& operation, const std::string& a, const std::string& b) {
  if (operation == "canonicalize") return Text(CanonicalizeDeviceName(a, b));
  if (operation == "less") return Text(FullNameLess(a, b));
  if (operation == "split") {
    const std::optional<SplitName> split = SplitDeviceName(a);
    return split ? Joined({split->task, split->device}) : "none";
  }
  const std::optional<DeviceName> left = ParseFullName(a);
  const std::optional<DeviceName> right = b == "-" ? DeviceName() : ParseFullName(b);
  if (!left || !right) return "an operand does not parse";
  if (operation == "print") return ToString(*left);
  if (operation == "full_name") return Text(FullName(*left));
  if (operation == "lookup") return Joined(LookupNames(*left));
  if (operation == "specification") return Text(IsSpecification(*left, *right));
  if (operation == "complete_specification") return Text(IsCompleteSpecification(*left, *right));
  if (operation == "same_address_space") return Text(IsSameAddressSpace(*left, *right));
  if (operation == "compatible") return Text(AreCompatible(*left, *right));
  if (operation == "merge") return Text(Merge(*left, *right));
  if (operation == "merge_soft") return Text(Merge(*left, *right, MergeConflicts::kDrop));
  if (operation == "merge_override") return Text(Merge(*left, *right, MergeConflicts::kOverride));
  if (operation == "merge_unset") return ToString(MergeUnset(*left, *right));
  return "unknown operation " + operation;
}

TEST(DeviceNameTest, RelationsAndMergesAreAsTheTableSays) {
  const std::vector<testing::Case> cases = testing::ReadCases("device_name_relations.tsv");
  ASSERT_GT(cases.size(), 70u);
  for (const testing::Case& row : cases) {
    SCOPED_TRACE(row.where);
    const std::string expected = row[4];
    const std::string answer = Answer(row[1], row[2], row[3]);
    if (expected.rfind("error: ", 0) == 0) {
      EXPECT_THAT(answer, HasSubstr("error: "));
      EXPECT_THAT(answer, HasSubstr(expected.substr(7)));
    } else {
      EXPECT_EQ(answer, expected);
    }
  }
}

TEST(DeviceNameTest, SpecsOfPythonAreReadAsTheTableSays) {
  const std::vector<testing::Case> cases = testing::ReadCases("device_specs.tsv");
  ASSERT_GT(cases.size(), 35u);
  for (const testing::Case& row : cases) {
    SCOPED_TRACE(row.where);
    const std::string base = row[3] == "-" ? "" : row[3];
    EXPECT_EQ(row[1] == "parse" ? Text(ParseDeviceSpec(row[2])) : Text(CanonicalDeviceSpec(row[2], base)),
              row[4]);
  }
}

// Names that both front ends take mean the same to both; only Python's takes names without "device:", or in
// a form that no full name has.
TEST(DeviceNameTest, SpecsOfPythonAreNamesOfTheRuntimeWhereBothRead) {
  const std::uint32_t seed = TestSeed();
  std::mt19937 random(seed);
  int both = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    bool typed = false;
    for (std::size_t n = random() % 5; n-- > 0;) {
      const std::string number = std::to_string(random() % 12);
      switch (random() % 5) {
        case 0:
          text += "/job:" + std::string(1, static_cast<char>('a' + random() % 3));
          break;
        case 1:
          text += "/replica:" + number;
          break;
        case 2:
          text += "/task:" + number;
          break;
        default:
          if (std::exchange(typed, true)) break;
          text += random() % 2 ? "/device:GPU:" + number : "/cpu:" + (random() % 3 ? number : "*");
      }
    }
    const std::optional<DeviceName> full = ParseFullName(text);
    const absl::StatusOr<DeviceName> spec = ParseDeviceSpec(text);
    ASSERT_TRUE(full.has_value() && spec.ok()) << text;
    ASSERT_EQ(*full, *spec) << text;
    both += typed ? 1 : 0;
  }
  EXPECT_GT(both, 5000);
}

TEST(DeviceNameTest, ALenientErrorShowsTheRightForm) {
  const absl::Status status = ParseLenientName("/job:foo/bar:3").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot read 'bar:3'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("write GPU:0, /device:GPU:0 or"));
  EXPECT_THAT(std::string(ParseLenientName("/gpu:0/cpu:0").status().message()),
              HasSubstr("two device types"));
  EXPECT_LT(ParseLenientName(std::string(1 << 20, 'x')).status().message().size(), 1000u);
}

TEST(DeviceNameTest, FullNameRefusesPartsThatCannotBeReadBack) {
  DeviceName name{.job = "a", .replica = 0, .task = 0, .type = "GPU", .id = 0};
  EXPECT_TRUE(FullName(name).ok());
  for (const std::string bad : {"", "1a", "a/b", "a:b", "*", "a b"}) {
    DeviceName changed = name;
    changed.job = bad;
    EXPECT_FALSE(FullName(changed).ok()) << bad;
    changed = name;
    changed.type = bad;
    EXPECT_FALSE(FullName(changed).ok()) << bad;
  }
  name.id = -1;
  EXPECT_FALSE(FullName(name).ok());
}

TEST(DeviceNameTest, PrintsIntoStreams) {
  std::ostringstream out;
  out << *ParseFullName("/gpu:1/job:a");
  EXPECT_EQ(out.str(), "/job:a/device:GPU:1");
}

// Names over a small set of values, so that equal parts are frequent.
DeviceName RandomName(std::mt19937& random) {
  DeviceName name;
  if (random() % 2) name.job = random() % 2 ? "a" : "b_1";
  if (random() % 2) name.replica = static_cast<int>(random() % 2);
  if (random() % 2) name.task = static_cast<int>(random() % 3);
  if (random() % 3) {
    name.type = random() % 2 ? "GPU" : "cpu";
    if (random() % 2) name.id = static_cast<int>(random() % 3);
  }
  return name;
}

TEST(DeviceNameTest, RandomNamesKeepTheLaws) {
  constexpr unsigned kSeed = 20;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  for (int i = 0; i < 20000; ++i) {
    const DeviceName a = RandomName(random), b = RandomName(random);
    ASSERT_EQ(ParseFullName(ToString(a)), a);
    DeviceName upper = a;
    if (upper.type == "cpu") upper.type = "CPU";
    ASSERT_EQ(Lenient(ToString(a)), upper);
    ASSERT_EQ(AreCompatible(a, b), Merge(a, b).ok());
    ASSERT_EQ(AreCompatible(a, b), AreCompatible(b, a));
    ASSERT_EQ(IsSpecification(a, b), Merge(a, b).ok() && *Merge(a, b) == b);
    ASSERT_TRUE(!AreCompatible(a, b) || *Merge(a, b) == *Merge(b, a));
    ASSERT_TRUE(IsSpecification(a, MergeUnset(a, b)));
    ASSERT_EQ(a < b, FullNameLess(ToString(a), ToString(b)));
    ASSERT_EQ((a < b) + (b < a) + (a == b), 1);
  }
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// The grammar once more: pieces between slashes, and fields between colons.
std::optional<DeviceName> Restate(const std::string& text) {
  if (text.empty() || text == "/") return DeviceName();
  if (text[0] != '/') return std::nullopt;
  bool wrong = false;
  const auto word = [&](const std::string& w) {
    const std::string more = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    wrong = wrong || (w != "*" && (w.empty() || w.find_first_not_of(more) != std::string::npos ||
                                   more.find(w[0]) > more.find('Z')));
    return w == "*" ? std::nullopt : std::optional(w);
  };
  const auto number = [&](const std::string& n) -> std::optional<int> {
    if (n == "*") return std::nullopt;
    wrong = wrong || n.empty() || n.find_first_not_of("0123456789") != std::string::npos;
    if (wrong || std::stod(n) > 2147483647.0) {
      wrong = true;
      return std::nullopt;
    }
    return std::stoi(n);
  };
  DeviceName name;
  for (const std::string& piece : Split(text.substr(1), '/')) {
    const std::vector<std::string> fields = Split(piece, ':');
    if (fields.size() == 2 && fields[0] == "job") {
      name.job = word(fields[1]);
    } else if (fields.size() == 2 && fields[0] == "replica") {
      name.replica = number(fields[1]);
    } else if (fields.size() == 2 && fields[0] == "task") {
      name.task = number(fields[1]);
    } else if ((fields.size() == 2 || fields.size() == 3) && fields[0] == "device") {
      name.type = word(fields[1]);
      name.id = number(fields.size() == 3 ? fields[2] : "*");
    } else if (fields.size() == 2 && (fields[0] == "cpu" || fields[0] == "CPU")) {
      name.type = "CPU";
      name.id = number(fields[1]);
    } else if (fields.size() == 2 && (fields[0] == "gpu" || fields[0] == "GPU")) {
      name.type = "GPU";
      name.id = number(fields[1]);
    } else {
      return std::nullopt;
    }
  }
  return wrong ? std::nullopt : std::optional(name);
}

TEST(DeviceNameTest, RandomTextAgreesWithTheGrammarSaidOtherwise) {
  const std::uint32_t seed = TestSeed();
  std::mt19937 random(seed);
  const std::vector<std::string> heads = {
      "/job:", "/replica:", "/task:", "/device:", "/gpu:", "/CPU:", "/Gpu:", "/tpu:", "/", "job:"};
  const std::vector<std::string> tails = {
      "a",          "b_1",        "1a", "*",     "0",  "12",  "007", "",    "-1", "GPU", "cpu", "a:",
      "2147483647", "2147483648", "*x", "GPU:1", ":3", "*:2", "a:*", "X:0", "a/", " 1",  "a b", "_"};
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (std::size_t n = random() % 5; n-- > 0;) {
      text += heads[random() % (random() % 3 ? 6 : heads.size())];
      text += tails[random() % tails.size()];
    }
    const std::optional<DeviceName> name = ParseFullName(text);
    ASSERT_EQ(Parts(name), Parts(Restate(text))) << text;
    parsed += name ? 1 : 0;
  }
  EXPECT_GT(parsed, 3000);
}

TEST(DeviceNameTest, RandomTextNeverGetsThroughChanged) {
  constexpr unsigned kSeed = 21;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  const std::vector<std::string> pieces = {"/",        ":", "*",  "job",  "/job:", "/replica:", "/task:",
                                           "/device:", "0", "12", "GPU",  "/gpu:", "/CPU:",     "a_b",
                                           "-",        " ", "9",  "\xff", "gpu",   "device",    "2147483647"};
  int parsed = 0;
  for (int i = 0; i < 50000; ++i) {
    std::string text;
    for (std::size_t n = random() % 8; n-- > 0;) text += pieces[random() % pieces.size()];
    const std::optional<DeviceName> name = ParseFullOrLocalName(text);
    if (!name) continue;
    ++parsed;
    // An id without a type has no text of its own.
    ASSERT_TRUE((!name->type && name->id) || ParseFullName(ToString(*name)) == name) << text;
    std::optional<DeviceName> lenient = Lenient(text);
    if (!lenient) continue;  // two types
    if (lenient->type == "GPU" && name->type == "gpu") lenient->type = "gpu";
    ASSERT_EQ(lenient, name) << text;
  }
  EXPECT_GT(parsed, 1000);
}

}  // namespace
}  // namespace lgpu
