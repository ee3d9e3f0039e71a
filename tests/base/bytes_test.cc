#include "lgpu/bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <string_view>

#include "base/memory_size.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;

constexpr Bytes kMost(std::numeric_limits<std::uint64_t>::max());

Bytes Parsed(std::string_view text) {
  const absl::StatusOr<Bytes> bytes = ParseBytes(text);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.value_or(Bytes(~0ull));
}

std::string Error(std::string_view text) {
  const absl::Status status = ParseBytes(text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

TEST(BytesTest, ArithmeticThatSaysSaturatingSaturates) {
  EXPECT_EQ(SaturatingAdd(kMost, 1_B), kMost);
  EXPECT_EQ(SaturatingAdd(1_B, 2_B), 3_B);
  EXPECT_EQ(SaturatingSub(1_B, 2_B), Bytes());
  EXPECT_EQ(SaturatingSub(3_B, 2_B), 1_B);
}

TEST(BytesTest, RoundsToPowersOfTwo) {
  EXPECT_EQ(RoundUp(Bytes(), 2_MiB), Bytes());
  EXPECT_EQ(RoundUp(1_B, 2_MiB), 2_MiB);
  EXPECT_EQ(RoundUp(2_MiB, 2_MiB), 2_MiB);
  EXPECT_EQ(RoundUp(kMost, 2_MiB), Bytes(~std::uint64_t{0} - (2_MiB).count() + 1));
  EXPECT_EQ(RoundDown(3_MiB, 2_MiB), 2_MiB);
  EXPECT_EQ(RoundUp(7_B, 1_B), 7_B);
}

TEST(BytesTest, EveryUnitIsAPowerOf1024InAnyCase) {
  const struct {
    const char* unit;
    Bytes bytes;
  } kUnits[] = {{"", 3_B},      {"B", 3_B},     {"K", 3_KiB},    {"Ki", 3_KiB},  {"KiB", 3_KiB},
                {"M", 3_MiB},   {"Mi", 3_MiB},  {"MiB", 3_MiB},  {"G", 3_GiB},   {"Gi", 3_GiB},
                {"GiB", 3_GiB}, {"T", 3_TiB},   {"Ti", 3_TiB},   {"TiB", 3_TiB}, {"k", 3_KiB},
                {"gib", 3_GiB}, {"GIB", 3_GiB}, {" MiB", 3_MiB}, {"\tm", 3_MiB}, {"b", 3_B}};
  for (const auto& unit : kUnits) EXPECT_EQ(Parsed(std::string("3") + unit.unit), unit.bytes) << unit.unit;
  EXPECT_EQ(Parsed("  512 MiB \n"), 512_MiB);
}

TEST(BytesTest, FractionsAreExactAndRoundedDown) {
  EXPECT_EQ(Parsed("1.5GiB"), 1536_MiB);
  EXPECT_EQ(Parsed("0.5K"), 512_B);
  EXPECT_EQ(Parsed("1.5"), 1_B);
  EXPECT_EQ(Parsed("0.1KiB"), 102_B);
  EXPECT_EQ(Parsed("0.9999999999T"), Bytes(1099511627666));
  EXPECT_EQ(Parsed("2.000M"), 2_MiB);
  // 1 / 2^40: one byte exactly, and a hair less.
  EXPECT_EQ(Parsed("0.0000000000009094947017729282379150390625T"), 1_B);
  EXPECT_EQ(Parsed("0.0000000000009094947017729282379150390624T"), Bytes());
  EXPECT_EQ(Parsed("1." + std::string(3000, '9') + "G"), Bytes((2_GiB).count() - 1));
}

TEST(BytesTest, TheLargestSizesFitAndLargerOnesAreErrors) {
  EXPECT_EQ(Parsed("18446744073709551615"), kMost);
  EXPECT_EQ(Parsed("16777215T"), Bytes(std::uint64_t{16777215} << 40));
  EXPECT_EQ(Parsed("16777215.9999999999999999999T"), kMost);
  EXPECT_EQ(Parsed("000000000000000000000000000001M"), 1_MiB);
  for (const char* text :
       {"18446744073709551616", "16777216T", "18014398509481984K", "99999999999999999999999G"}) {
    EXPECT_THAT(Error(text), HasSubstr("more than 64 bits can count")) << text;
  }
}

TEST(BytesTest, DecimalUnitsAreRefusedWithAHint) {
  for (const char* text : {"2KB", "2MB", "2gb", "2 TB", "1.5GB"}) {
    EXPECT_THAT(Error(text), HasSubstr("powers of 1000 or of 1024")) << text;
  }
  EXPECT_THAT(Error("2GB"), HasSubstr("write GiB for powers of 1024"));
}

TEST(BytesTest, AnythingElseIsAnErrorThatQuotesTheInput) {
  for (const char* text :
       {"",   " ",    "-1",   "+1",  "1e9", "0x10", ".5G",    "1.", "1.G", "1,5G", "G",     "1 2",  "1KiBs",
        "1P", "1EiB", "MiB1", "nan", "inf", "1..5", "1.5.5G", "１", "1i",  "1iB",  "1 G B", "1\xff"}) {
    EXPECT_THAT(Error(text), HasSubstr("is not a size")) << text;
  }
  EXPECT_THAT(Error("12parsecs"), HasSubstr("'12parsecs'"));
  EXPECT_THAT(Error("12parsecs"), HasSubstr("512MiB"));
  EXPECT_THAT(Error("-5"), HasSubstr("no sign"));
  EXPECT_LT(Error(std::string(1 << 20, 'x')).size(), 400u);
  EXPECT_LT(Error("1" + std::string(1 << 20, 'x')).size(), 400u);
  EXPECT_EQ(Error("1\n2").find('\n'), std::string::npos);
  EXPECT_FALSE(ParseBytes(std::string_view("1\0", 2)).ok());
}

TEST(BytesTest, ABareNumberBelowAMebibyteIsNoMemorySize) {
  const auto error = [](std::string_view text) {
    return std::string(ParseMemorySize(text).status().message());
  };
  EXPECT_EQ(error("64"), "64 means 64 bytes; write 64MiB, or 64B for bytes");
  EXPECT_EQ(error(" 64\n"), "64 means 64 bytes; write 64MiB, or 64B for bytes");
  EXPECT_EQ(ParseMemorySize("1").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(error("1.5"), HasSubstr("write 1.5MiB"));
  EXPECT_THAT(error("1048575"), HasSubstr("write 1048575MiB"));
  std::string one(1 << 20, '0');
  one.back() = '1';
  EXPECT_LT(error(one).size(), 400u);
  EXPECT_EQ(ParseMemorySize("0").value(), Bytes());
  EXPECT_EQ(ParseMemorySize("64B").value(), 64_B);
  EXPECT_EQ(ParseMemorySize("64 K").value(), 64_KiB);
  EXPECT_EQ(ParseMemorySize("1048576").value(), 1_MiB);
  EXPECT_EQ(ParseMemorySize("64 parsecs").status(), ParseBytes("64 parsecs").status());
}

TEST(BytesTest, PrintsTheWayTensorFlowDoes) {
  EXPECT_EQ(FormatBytes(Bytes()), "0B");
  EXPECT_EQ(FormatBytes(1023_B), "1023B");
  EXPECT_EQ(FormatBytes(1_KiB), "1.0KiB");
  EXPECT_EQ(FormatBytes(1536_B), "1.5KiB");
  EXPECT_EQ(FormatBytes(1500_B), "1.5KiB");
  EXPECT_EQ(FormatBytes(1_MiB - 1_B), "1024.0KiB");
  EXPECT_EQ(FormatBytesCut(1500_B), "1.4KiB");
  EXPECT_EQ(FormatBytesCut(1_MiB - 1_B), "1023.9KiB");
  EXPECT_EQ(FormatBytes(512_MiB), "512.00MiB");
  EXPECT_EQ(FormatBytes(2_GiB), "2.00GiB");
  EXPECT_EQ(FormatBytes(2_GiB - 1_B), "2.00GiB");
  EXPECT_EQ(FormatBytesCut(2_GiB - 1_B), "1.99GiB");
  EXPECT_EQ(FormatBytesCut(1_GiB + 1_MiB * 72), "1.07GiB");
  EXPECT_EQ(FormatBytes(1_GiB + 1_MiB * 256), "1.25GiB");
  EXPECT_EQ(FormatBytes(3_TiB), "3.00TiB");
  EXPECT_EQ(FormatBytes(5_TiB * 1024), "5.00PiB");
  EXPECT_EQ(FormatBytes(kMost), "16.00EiB");
  EXPECT_EQ(FormatBytesCut(kMost), "15.99EiB");
  std::ostringstream out;
  out << 64_MiB;
  EXPECT_EQ(out.str(), "64.00MiB");
}

TEST(BytesTest, PrintsTheSameTextAsPrintf) {
  constexpr unsigned kSeed = 12;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 50000; ++i) {
    const Bytes bytes(i < 2000 ? 1024 + random() % 4096 : random() >> random() % 60);
    std::uint64_t whole = bytes.count();
    std::size_t unit = 0;
    for (; whole >= 1024 * 1024; whole /= 1024) ++unit;
    const double number = static_cast<double>(whole) / 1024;
    char text[64];
    if (bytes < 1_KiB) {
      std::snprintf(text, sizeof text, "%dB", static_cast<int>(whole));
    } else if (unit == 0) {
      std::snprintf(text, sizeof text, "%.1fKiB", number);
    } else {
      std::snprintf(text, sizeof text, "%.2f%ciB", number, "KMGTPE"[unit]);
    }
    ASSERT_EQ(FormatBytes(bytes), text) << bytes.count();
  }
}

TEST(BytesTest, ShortenedTextReadsBackAsNearlyTheSameAndNotMore) {
  constexpr unsigned kSeed = 10;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 50000; ++i) {
    const Bytes bytes(random() >> (14 + random() % 50));  // below 1 PiB
    const std::string text = FormatBytesCut(bytes);
    const Bytes back = Parsed(text);
    ASSERT_LE(back, bytes) << text;
    ASSERT_LE(bytes - back, Bytes(bytes.count() / 10)) << text;
    // Cutting off happens once: a text that was read prints as it stands.
    ASSERT_EQ(Parsed(std::to_string(bytes.count())), bytes);
    ASSERT_EQ(Parsed(std::to_string(bytes.count() >> 10) + "KiB"), RoundDown(bytes, 1_KiB));
  }
}

TEST(BytesTest, RandomTextIsReadOrRefusedButNeverMisread) {
  constexpr unsigned kSeed = 11;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  const std::string_view alphabet = "0123456789..KMGTiBb +-e\t\xff";
  int read = 0;
  for (int i = 0; i < 100000; ++i) {
    std::string text;
    for (unsigned n = random() % 7; n-- > 0;) text += alphabet[random() % alphabet.size()];
    const absl::StatusOr<Bytes> bytes = ParseBytes(text);
    if (!bytes.ok()) continue;
    ++read;
    // strtod reads the number as well; the shapes that only it accepts are refused above.
    std::size_t used = 0;
    const double number = std::stod(text, &used);
    const char unit =
        text.find_first_of("kKmMgGtT") == std::string::npos ? '1' : text[text.find_first_of("kKmMgGtT")];
    const double scale = unit == 'K'   ? 1024.
                         : unit == 'M' ? 1048576.
                         : unit == 'G' ? 1073741824.
                         : unit == 'T' ? 1099511627776.
                                       : 1.;
    ASSERT_NEAR(static_cast<double>(bytes->count()), number * scale, 1 + number * scale * 1e-12) << text;
  }
  EXPECT_GT(read, 1000);
}

}  // namespace
}  // namespace lgpu
