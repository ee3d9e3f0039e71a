#include "lgpu/refusal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "absl/strings/cord.h"
#include "base/refusal_text.h"
#include "lgpu/refusal_json.h"

namespace lgpu {
namespace {

using namespace std::chrono_literals;

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr Bytes kMostBytes(std::numeric_limits<std::uint64_t>::max());

Refusal AtItsLimit() {
  Refusal refusal;
  refusal.reason = RefusalReason::kLimit;
  refusal.device = "/device:GPU:0";
  refusal.lease = "train";
  refusal.what = "output of op MatMul, shape [8192,16384], float";
  refusal.asked = 512_MiB;
  refusal.limit = 4_GiB;
  refusal.used = 3712_MiB;
  refusal.peak_used = 3988_MiB;
  refusal.live_blocks = 41;
  refusal.largest_free_block = 256_MiB;
  refusal.card = "GPU 0";
  refusal.card_free = 17318_MiB;
  refusal.advice = {"lgpu resize train --memory 5GiB          raise the limit, the program keeps running",
                    "lgpu snapshot train -o train.json        see which ops hold the memory"};
  return refusal;
}

TEST(RefusalTest, TextHasTheCauseThenEveryNumberThenTheAdvice) {
  EXPECT_EQ(FormatRefusal(AtItsLimit()),
            R"(memory limit reached on /device:GPU:0 of lease train
  asked for    512.00MiB   output of op MatMul, shape [8192,16384], float
  limit       4096.00MiB
  used        3712.00MiB   by this program, 41 blocks, peak 3988.00MiB
  GPU 0      17318.00MiB   not promised to anyone; other leases are not affected
  try: lgpu resize train --memory 5GiB          raise the limit, the program
         keeps running
       lgpu snapshot train -o train.json        see which ops hold the memory)");
}

TEST(RefusalTest, AFullCardNamesTheHolders) {
  Refusal refusal;
  refusal.reason = RefusalReason::kCard;
  refusal.device = "/device:GPU:0";
  refusal.lease = "eval";
  refusal.asked = 64_MiB;
  refusal.limit = 512_MiB;
  refusal.used = 1000_B;
  refusal.held = 2_MiB;
  refusal.card = "GPU 0 (simulated)";
  refusal.card_total = 1_GiB;
  refusal.card_free = Bytes();
  refusal.coming_back = 8_MiB;
  refusal.waited = std::chrono::milliseconds(1500);
  refusal.holders = {{"train", "anna", 4242, "/device:GPU:0", 768_MiB, Bytes()},
                     {"idle", "1001", 0, "/device:GPU:1", Bytes(), 128_MiB},
                     {"mixed", "", 7, "", 64_MiB, 128_MiB}};
  EXPECT_EQ(FormatRefusal(refusal),
            R"(not enough memory on GPU 0 (simulated) for /device:GPU:0 of lease eval
  asked for           64.00MiB
  limit              512.00MiB
  used                   1000B   by this program
  held                 2.00MiB   of the limit, in chunks or charged
  returning            8.00MiB   given back, but not confirmed free yet
  GPU 0 (simulated)         0B   of 1024.00MiB, not promised to anyone
  held by            768.00MiB   /device:GPU:0 of lease train (user anna, pid
                                 4242)
  promised           128.00MiB   /device:GPU:1 of lease idle (user 1001, no
                                 process now), guaranteed 128.00MiB
  held by             64.00MiB   lease mixed (pid 7), guaranteed 128.00MiB
  waited 1500 ms for memory to come back)");
}

TEST(RefusalTest, AnIdleHolderIsMarkedFromHalfAMinuteOn) {
  const auto remark = [](std::optional<std::chrono::seconds> idle) {
    return IdleRemark({.lease = "train", .idle = idle});
  };
  EXPECT_EQ(remark(std::nullopt), "");
  EXPECT_EQ(remark(29s), "");
  EXPECT_EQ(remark(30s), ", idle 30 s");
  EXPECT_EQ(remark(119s), ", idle 119 s");
  EXPECT_EQ(remark(120s), ", idle 2 min");
  EXPECT_EQ(remark(719s), ", idle 11 min");
  EXPECT_EQ(remark(2h), ", idle 2 h");
  EXPECT_EQ(remark(49h), ", idle 2 d");
  Refusal refusal;
  refusal.reason = RefusalReason::kCard;
  refusal.holders = {{"train", "anna", 4242, "", 768_MiB, Bytes(), 12min}};
  EXPECT_THAT(FormatRefusal(refusal),
              HasSubstr("held by    768.00MiB   lease train (user anna, pid 4242), idle 12 min"));
}

TEST(RefusalTest, ARefusalOfTheLimitHasNoFragmentationAndNoFreeMemoryOfAnotherBasis) {
  Refusal refusal = AtItsLimit();
  refusal.held = 4_GiB;
  const std::string text = FormatRefusal(refusal);
  EXPECT_THAT(text, Not(HasSubstr("fragmentation")));
  EXPECT_THAT(text, Not(HasSubstr("free")));
}

// TiB sizes, and the longest names that leases, users and ops may have.
TEST(RefusalTest, NoLineIsLongerThan80ColumnsWithAnyNames) {
  const Bytes huge = Bytes((std::uint64_t{1} << 50) - 1);
  for (int reason = 0; reason <= static_cast<int>(RefusalReason::kDescriptors); ++reason) {
    for (const std::string& card : {std::string("GPU 0 (NVIDIA H100 80GB HBM3)"), std::string(70, 'c')}) {
      Refusal refusal = AtItsLimit();
      refusal.reason = static_cast<RefusalReason>(reason);
      refusal.lease = std::string(63, 'l');
      refusal.device = "/job:localhost/replica:0/task:0/device:GPU:63";
      refusal.what = "output of op " + std::string(200, 'o') + ", shape [8192,16384], float";
      refusal.card = card;
      for (std::optional<Bytes>* amount :
           {&refusal.limit, &refusal.used, &refusal.held, &refusal.peak_used, &refusal.largest_free_block,
            &refusal.card_total, &refusal.card_free, &refusal.coming_back}) {
        *amount = huge;
      }
      refusal.asked = huge;
      refusal.owners.clear();
      refusal.owners.push_back({std::string(150, '\xe2').append("MatMul"), huge, 1u << 30});
      refusal.owners.push_back({"", huge, 1});
      refusal.holders = {{std::string(63, 'h'), std::string(32, 'u'), 4194304, refusal.device, huge, huge},
                         {"idle", "", 0, "", Bytes(), huge}};
      refusal.advice.push_back(std::string(300, 'a'));
      const std::string text = FormatRefusal(refusal);
      for (std::size_t begin = 0, line = 0; begin < text.size(); ++line) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        EXPECT_LE(end - begin, 80u) << text.substr(begin, end - begin);
        EXPECT_NE(text[end - 1], ' ') << "blanks at the end of line " << line;
        begin = end + 1;
      }
      EXPECT_THAT(text, HasSubstr("guaranteed"));
    }
  }
}

TEST(RefusalTest, TheHeadlineIsOneLineHoweverLongItIs) {
  Refusal refusal = AtItsLimit();
  refusal.reason = RefusalReason::kCard;
  refusal.card = "GPU 0 (NVIDIA H100 80GB HBM3)";
  refusal.lease = "a-lease-with-a-long-name";
  constexpr char kHeadline[] =
      "not enough memory on GPU 0 (NVIDIA H100 80GB HBM3) for /device:GPU:0 of lease "
      "a-lease-with-a-long-name";
  EXPECT_EQ(RefusalHeadline(refusal), kHeadline);
  const absl::Status status = RefusalStatus(refusal);
  EXPECT_EQ(StatusHeadline(status), kHeadline);
  EXPECT_THAT(std::string(status.message()), HasSubstr(RefusalDetails(refusal)));
  EXPECT_EQ(StatusHeadline(absl::InternalError("one\ntwo")), "one");
  EXPECT_EQ(StatusHeadline(absl::OkStatus()), "");
}

TEST(RefusalTest, ACommandOfTheAdviceIsInOneLine) {
  Refusal refusal;
  refusal.advice = {"raise the number of mappings a process may have: sysctl -w vm.max_map_count=1048576",
                    "end a lease of yours: lgpu rm " + std::string(63, 'l'),
                    "end a lease of yours: lgpu rm train"};
  EXPECT_THAT(FormatRefusal(refusal),
              HasSubstr("\n  try: raise the number of mappings a process may have:"
                        "\n         sysctl -w vm.max_map_count=1048576"
                        "\n       end a lease of yours:"
                        "\n         lgpu rm " +
                        std::string(63, 'l') + "\n       end a lease of yours: lgpu rm train"));
}

TEST(RefusalTest, ACardsNameIsCutByCharacters) {
  Refusal refusal;
  refusal.reason = RefusalReason::kCard;
  const auto name = [](int characters) {
    std::string text;
    for (int i = 0; i < characters; ++i) text += "\xc3\xa9";
    return text;
  };
  refusal.card = name(48);
  refusal.card_free = 1_MiB;
  EXPECT_THAT(FormatRefusal(refusal), Not(HasSubstr("...")));
  EXPECT_THAT(FormatRefusal(refusal), HasSubstr("\n  asked for" + std::string(48 - 9 + 2, ' ') + "     0B"));
  refusal.card = name(49);
  EXPECT_THAT(FormatRefusal(refusal), HasSubstr(name(45) + "..."));
}

TEST(RefusalTest, ALineBreaksBetweenCharactersNeverInsideOne) {
  Refusal refusal;
  refusal.reason = RefusalReason::kLimit;
  for (int i = 0; i < 100; ++i) refusal.what += "\xc3\xa9";
  const std::string text = FormatRefusal(refusal);
  for (std::size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1)) {
    EXPECT_NE(text[at - 1], '\xc3');
  }
  EXPECT_EQ(std::count(text.begin(), text.end(), '\xa9'), 100);
}

TEST(RefusalTest, EveryReasonHasItsOwnFirstLineAndName) {
  std::set<std::string> lines, names;
  for (int reason = 0; reason <= static_cast<int>(RefusalReason::kDescriptors); ++reason) {
    Refusal refusal;
    refusal.reason = static_cast<RefusalReason>(reason);
    refusal.device = "/device:GPU:0";
    refusal.lease = "train";
    const std::string text = FormatRefusal(refusal);
    lines.insert(text.substr(0, text.find('\n')));
    names.insert(std::string(RefusalReasonName(refusal.reason)));
    EXPECT_THAT(text, HasSubstr("/device:GPU:0 of lease train\n")) << reason;
    EXPECT_NE(text.back(), '\n');
  }
  EXPECT_EQ(lines.size(), 8u);
  EXPECT_EQ(names.size(), 8u);
}

TEST(RefusalTest, WithoutADeviceOrALeaseTheFirstLineStillReads) {
  Refusal refusal;
  refusal.reason = RefusalReason::kLimit;
  EXPECT_EQ(FormatRefusal(refusal), "memory limit reached\n  asked for  0B");
  refusal.lease = "train";
  EXPECT_THAT(FormatRefusal(refusal), StartsWith("memory limit reached for lease train\n"));
  refusal.reason = RefusalReason::kCard;
  refusal.lease.clear();
  refusal.device = "/device:GPU:0";
  EXPECT_THAT(FormatRefusal(refusal), StartsWith("not enough memory on the card for /device:GPU:0\n"));
}

TEST(RefusalTest, NumbersThatContradictEachOtherNeverUnderflow) {
  Refusal refusal = AtItsLimit();
  refusal.used = 5_GiB;  // over a limit that was lowered
  refusal.held = 1_GiB;
  refusal.largest_free_block = kMostBytes;
  refusal.waited = std::chrono::milliseconds(-5);
  const std::string text = FormatRefusal(refusal);
  EXPECT_THAT(text, Not(HasSubstr("-5")));
  refusal.asked = kMostBytes;
  EXPECT_THAT(FormatRefusal(refusal), HasSubstr("17592186044415.99MiB"));
}

TEST(RefusalTest, NamesCannotForgeLines) {
  Refusal refusal = AtItsLimit();
  refusal.lease = "a\n  limit  1B";
  refusal.what = "x\r\ny";
  refusal.advice = {"one\ntwo"};
  const std::string text = FormatRefusal(refusal);
  EXPECT_THAT(text, HasSubstr("of lease a   limit  1B\n"));
  EXPECT_THAT(text, HasSubstr("x  y\n"));
  EXPECT_THAT(text, HasSubstr("try: one two"));
}

TEST(RefusalTest, ManyHoldersAreSummedUp) {
  Refusal refusal;
  refusal.reason = RefusalReason::kCard;
  for (int i = 0; i < 100; ++i) refusal.holders.push_back({"lease", "anna", i + 1, "", 2_MiB, Bytes()});
  EXPECT_THAT(FormatRefusal(refusal), HasSubstr("held by    184.00MiB   92 more"));
}

TEST(RefusalTest, AStatusCarriesItsRefusal) {
  const Refusal refusal = AtItsLimit();
  const absl::Status status = RefusalStatus(refusal);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(status.message()), FormatRefusal(refusal));
  EXPECT_EQ(GetRefusal(status), refusal);
  EXPECT_EQ(GetRefusal(absl::OkStatus()), std::nullopt);
  EXPECT_EQ(GetRefusal(absl::ResourceExhaustedError("something else")), std::nullopt);
}

std::string PayloadUrl() {
  std::string found;
  RefusalStatus(Refusal()).ForEachPayload([&](auto url, const absl::Cord&) { found = std::string(url); });
  return found;
}

std::string Payload(const Refusal& refusal) {
  return std::string(RefusalStatus(refusal).GetPayload(PayloadUrl()).value());
}

std::optional<Refusal> FromPayload(const std::string& payload) {
  absl::Status status = absl::ResourceExhaustedError("x");
  status.SetPayload(PayloadUrl(), absl::Cord(payload));
  return GetRefusal(status);
}

TEST(RefusalTest, JsonHasNamesAndSecondsAndLeavesOutWhatIsNotKnown) {
  EXPECT_EQ(RefusalJson(Refusal()),
            R"({"advice":[],"asked_bytes":0,"holders":[],"owners":[],"reason":"unspecified"})");
  Refusal refusal;
  refusal.reason = RefusalReason::kMapCount;
  refusal.lease = "train";
  refusal.limit = Bytes(0);
  refusal.live_blocks = 7;
  refusal.holders = {{}, {.idle = std::chrono::milliseconds(2500)}};
  refusal.owners = {{.op = "MatMul", .bytes = Bytes(5), .blocks = 2}};
  refusal.waited = std::chrono::milliseconds(1250);
  EXPECT_EQ(
      RefusalJson(refusal),
      R"({"advice":[],"asked_bytes":0,"holders":[{"device":"","guarantee_bytes":0,"held_bytes":0,"lease":"","owner":"","pid":0},)"
      R"({"device":"","guarantee_bytes":0,"held_bytes":0,"idle_seconds":2.5,"lease":"","owner":"","pid":0}],)"
      R"("lease":"train","limit_bytes":0,"live_blocks":7,"owners":[{"blocks":2,"bytes":5,"op":"MatMul"}],"reason":"map count","waited_seconds":1.25})");
}

TEST(RefusalTest, ADamagedPayloadIsNone) {
  const std::string good = Payload(AtItsLimit());
  ASSERT_EQ(FromPayload(good), AtItsLimit());
  for (const std::string& bad : {std::string(), std::string("{}"), std::string("[]"), std::string("null"),
                                 std::string("7"), good.substr(0, good.size() / 2), good + "x"}) {
    EXPECT_EQ(FromPayload(bad), std::nullopt) << bad;
  }
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string payload = good;
    const std::size_t at = payload.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return FromPayload(payload.replace(at, from.size(), to));
  };
  EXPECT_EQ(changed("\"asked_bytes\":536870912", "\"asked_bytes\":-1"), std::nullopt);
  EXPECT_EQ(changed("\"asked_bytes\":536870912", "\"asked_bytes\":1.5"), std::nullopt);
  EXPECT_EQ(changed("\"asked_bytes\":536870912", "\"asked_bytes\":\"1\""), std::nullopt);
  EXPECT_EQ(changed("\"asked_bytes\"", "\"other\""), std::nullopt);
  EXPECT_EQ(changed("\"lease\":\"train\"", "\"lease\":null"), std::nullopt);
  EXPECT_EQ(changed("\"holders\":[]", "\"holders\":[1]"), std::nullopt);
  EXPECT_EQ(changed("\"holders\":[]", "\"holders\":[{}]"), std::nullopt);
  EXPECT_EQ(changed("\"limit_bytes\":4294967296", "\"limit_bytes\":null"), std::nullopt);
  EXPECT_EQ(changed("\"reason\":\"limit\"", "\"reason\":1"), std::nullopt);
  EXPECT_EQ(changed("\"holders\":[]", "\"holders\":{}"), std::nullopt);
  EXPECT_EQ(changed("\"holders\":[]", "\"holders\":[],\"waited_seconds\":\"1\""), std::nullopt);
  // A later version's reason: the rest still counts.
  const std::optional<Refusal> later = changed("\"reason\":\"limit\"", "\"reason\":\"moon phase\"");
  ASSERT_TRUE(later.has_value());
  EXPECT_EQ(later->reason, RefusalReason::kUnspecified);
  EXPECT_EQ(later->asked, 512_MiB);
}

TEST(RefusalTest, AWaitOfMoreThanJsonCanTellKeepsTheRest) {
  Refusal refusal = AtItsLimit();
  refusal.waited = std::chrono::milliseconds::max();
  const std::optional<Refusal> back = GetRefusal(RefusalStatus(refusal));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->waited,
            std::chrono::hours(1'111'111'111) + std::chrono::minutes(6) + std::chrono::seconds(40));
  EXPECT_EQ(back->asked, refusal.asked);
}

TEST(RefusalTest, ATextThatIsNoUtf8IsShownAndNeverThrows) {
  Refusal refusal = AtItsLimit();
  refusal.lease = "tr\xff\xfe";
  const std::optional<Refusal> back = GetRefusal(RefusalStatus(refusal));
  ASSERT_TRUE(back.has_value());
  EXPECT_THAT(back->lease, StartsWith("tr"));
  EXPECT_EQ(back->asked, refusal.asked);
}

Refusal RandomRefusal(std::mt19937_64& random) {
  const auto bytes = [&] { return Bytes(random() >> (random() % 64)); };
  const auto maybe = [&] { return random() % 2 ? std::optional(bytes()) : std::nullopt; };
  const auto text = [&] {
    std::string t;
    for (std::size_t n = random() % 6; n-- > 0;) t += static_cast<char>(1 + random() % 127);
    return t;
  };
  Refusal refusal;
  refusal.reason = static_cast<RefusalReason>(random() % 8);
  refusal.device = text();
  refusal.lease = text();
  refusal.what = text();
  refusal.asked = bytes();
  refusal.limit = maybe();
  refusal.used = maybe();
  refusal.held = maybe();
  refusal.peak_used = maybe();
  if (random() % 2) refusal.live_blocks = random();
  refusal.largest_free_block = maybe();
  refusal.card = text();
  refusal.card_total = maybe();
  refusal.card_free = maybe();
  refusal.coming_back = maybe();
  for (std::size_t n = random() % 12; n-- > 0;) {
    refusal.holders.push_back(
        {text(), text(), static_cast<std::int64_t>(random()), text(), bytes(), bytes()});
    if (random() % 2) refusal.holders.back().idle = std::chrono::milliseconds(random() >> 14);
  }
  // In JSON a double of seconds, which has every millisecond of 30,000 years.
  if (random() % 2) refusal.waited = std::chrono::milliseconds(static_cast<std::int64_t>(random() >> 14));
  for (std::size_t n = random() % 3; n-- > 0;) refusal.advice.push_back(text());
  return refusal;
}

TEST(RefusalTest, RandomRefusalsPassThroughAStatusAndDamagedOnesDoNotCrash) {
  constexpr unsigned kSeed = 12;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 1000; ++i) {
    const Refusal refusal = RandomRefusal(random);
    ASSERT_EQ(GetRefusal(RefusalStatus(refusal)), refusal);
    std::string payload = Payload(refusal);
    for (int damage = 0; damage < 3; ++damage) {
      payload[random() % payload.size()] = static_cast<char>(random());
    }
    const std::optional<Refusal> back = FromPayload(payload);
    if (back) FormatRefusal(*back);
  }
}

}  // namespace
}  // namespace lgpu
