#include "cli/errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "lgpu/refusal.h"

namespace lgpu::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Refusal LimitRefusal() {
  Refusal refusal;
  refusal.reason = RefusalReason::kLimit;
  refusal.device = "/device:GPU:0";
  refusal.lease = "train";
  refusal.asked = Bytes(512) * (1 << 20);
  refusal.limit = Bytes(4096) * (1 << 20);
  refusal.holders = {{.lease = "sim",
                      .owner = "user2",
                      .pid = 7,
                      .device = "/device:GPU:0",
                      .held = Bytes(99),
                      .guarantee = {}}};
  refusal.advice = {"lgpu resize train --memory 5GiB"};
  return refusal;
}

TEST(ErrorsTest, TheCodeStandsBehindTheFirstLineAndTheRestIsIndented) {
  EXPECT_EQ(FormatError(absl::NotFoundError("no lease x\ntry: lgpu ls\n  already: in"), {}),
            "lgpu: error: no lease x [NOT_FOUND]\n"
            "  try: lgpu ls\n"
            "  already: in\n");
}

TEST(ErrorsTest, ARefusalIsShownByTheOneFormatter) {
  const std::string formatted = FormatRefusal(LimitRefusal());
  const std::string text = FormatError(RefusalStatus(LimitRefusal()), {});
  ASSERT_THAT(formatted, StartsWith("memory limit reached on /device:GPU:0 of lease train\n"));
  EXPECT_THAT(text, StartsWith("lgpu: error: memory limit reached on /device:GPU:0 [RESOURCE_EXHAUSTED]\n"
                               "  of lease train\n"));
  EXPECT_THAT(text, HasSubstr(formatted.substr(formatted.find('\n'))));
}

TEST(ErrorsTest, ALongHeadlineBreaksBeforeTheDevice) {
  Refusal refusal = LimitRefusal();
  refusal.reason = RefusalReason::kCard;
  refusal.card = "GPU 0 (simulated)";
  refusal.lease = "a-lease-with-quite-a-long-name-of-more-than-40-letters";
  EXPECT_THAT(FormatError(RefusalStatus(refusal), {}),
              StartsWith("lgpu: error: not enough memory on GPU 0 (simulated) [RESOURCE_EXHAUSTED]\n"
                         "  for /device:GPU:0 of lease\n"
                         "  a-lease-with-quite-a-long-name-of-more-than-40-letters\n"
                         "  asked for"));
}

TEST(ErrorsTest, ARefusalFits80ColumnsWithItsCode) {
  for (int reason = 0; reason <= static_cast<int>(RefusalReason::kDescriptors); ++reason) {
    Refusal refusal = LimitRefusal();
    refusal.reason = static_cast<RefusalReason>(reason);
    refusal.card = "GPU 0 (NVIDIA H100 80GB HBM3)";
    refusal.lease = std::string(63, 'l');
    std::istringstream lines(FormatError(RefusalStatus(refusal), {}));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST(ErrorsTest, ControlCharactersOfAMessageAreHarmless) {
  EXPECT_EQ(FormatError(absl::InternalError("a\033[2Jb"), {}), "lgpu: error: a?[2Jb [INTERNAL]\n");
}

TEST(ErrorsTest, AnEmptyMessageIsStillALine) {
  EXPECT_EQ(FormatError(absl::AbortedError(""), {}), "lgpu: error: no further explanation [ABORTED]\n");
}

TEST(ErrorsTest, JsonHasTheNumbersAsNumbersAndLeavesOutUnknownOnes) {
  const nlohmann::json json = ErrorToJson(RefusalStatus(LimitRefusal()), 75);
  EXPECT_EQ(json["schema"], "lgpu.error/v1");
  EXPECT_EQ(json["code"], "RESOURCE_EXHAUSTED");
  EXPECT_EQ(json["exit_code"], 75);
  EXPECT_EQ(json["refusal"]["reason"], "limit");
  EXPECT_EQ(json["refusal"]["asked_bytes"], 512u << 20);
  EXPECT_EQ(json["refusal"]["holders"][0]["held_bytes"], 99);
  EXPECT_FALSE(json["refusal"].contains("card_free_bytes"));
  EXPECT_EQ(ErrorToJson(absl::NotFoundError("x"), 6).contains("refusal"), false);
}

}  // namespace
}  // namespace lgpu::cli
