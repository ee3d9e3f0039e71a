#include "tools/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "bench/workloads/catalog.h"
#include "tests/support/child_program.h"

namespace lgpu {
namespace {

using bench::Event;
using bench::Trace;
using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::StatusOr<TraceReading> Parse(std::string_view text, std::uint64_t multiplier = 1) {
  return ParseTrace(text, {.name = "t.csv", .size_multiplier = multiplier});
}

// "+0:512 -0": allocates and frees.
std::string Shape(const Trace& trace) {
  std::string shape;
  for (const Event& event : trace.events) {
    shape += shape.empty() ? "" : " ";
    shape += (event.kind == Event::Kind::kAllocate ? "+" : "-") + std::to_string(event.slot);
    if (event.kind == Event::Kind::kAllocate) shape += ":" + std::to_string(event.bytes.count());
  }
  return shape;
}

TEST(TraceFileTest, ReadsALogOfRmm) {
  const auto reading = Parse(
      "Thread,Time,Action,Pointer,Size,Stream\n"
      "7,10:15:32:000001,allocate,0x7f0000000000,512,0x0\n"
      "8,10:15:32:000002,allocate,0x7f0000000200,1000,0x0\n"
      "7,10:15:32:000003,free,0x7f0000000000,512,0x0\n"
      "7,10:15:32:000004,allocate failure,(nil),4096,0x0\n"
      "7,10:15:32:000005,allocate,0x7f0000000000,256,0x0\n"
      "7,10:15:32:000006,free,0x7f0000000200,1000,0x0\n");
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_EQ(reading->format, TraceFormat::kRmmLog);
  EXPECT_EQ(Shape(reading->trace), "+0:512 +1:1000 -0 +0:256 -1 -0");
  EXPECT_EQ(reading->trace.drain_begin, 5u);
  EXPECT_EQ(reading->recorded_refusals, 1u);
  EXPECT_EQ(reading->never_freed, 1u);
  EXPECT_TRUE(bench::Validate(reading->trace).ok());
}

TEST(TraceFileTest, ALogMayBeginInTheMiddleOfARun) {
  const auto reading = Parse(
      "# of a running program\r\n"
      "Stream,Size,Pointer,Action\r\n"
      "\r\n"
      "0,100,0x10,free\r\n"
      "0,0,(nil),allocate\r\n"
      "0,0,(nil),free\r\n"
      "0,100,0x10,allocate\r\n"
      "0,0,0x10,free");
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_EQ(reading->unknown_frees, 1u);
  EXPECT_EQ(reading->empty_requests, 2u);
  EXPECT_EQ(Shape(reading->trace), "+0:100 -0");
}

TEST(TraceFileTest, FreesPrecedeAllocationsOfTheSameMoment) {
  const auto reading = Parse(
      "id,lower,upper,size\n"
      "b,5,9,3\n"
      "a,0,5,2\n"
      "c,2,7,1\n",
      4096);
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_EQ(reading->format, TraceFormat::kLifetimes);
  EXPECT_EQ(Shape(reading->trace), "+0:8192 +1:4096 -0 +0:12288 -1 -0");
  EXPECT_EQ(bench::Summarize(reading->trace).peak_live, Bytes(4096 * 4));
}

TEST(TraceFileTest, SaysWhereAFileIsWrong) {
  const std::string log = "Thread,Time,Action,Pointer,Size,Stream\n";
  const std::string lifetimes = "id,first,last,size\n";
  struct Case {
    std::string text;
    std::string_view line;
    std::string_view says;
  };
  const std::vector<Case> cases = {
      {"", "t.csv:0: ", "empty"},
      {"# nothing\n\n", "t.csv:2: ", "empty"},
      {"a,b,c\n1,2,3\n", "t.csv:1: ", "neither format"},
      {log + "1,0,allocate,0x10\n", "t.csv:2: ", "4 columns, the size would be in column 5"},
      {log + "1,0,allocate,0x10,12x,0\n", "t.csv:2: ", "the size is '12x', not a number"},
      {log + "1,0,allocate,0x10,-1,0\n", "t.csv:2: ", "'-1'"},
      {log + "1,0,allocate,0x10,99999999999999999999,0\n", "t.csv:2: ", "99999999999999999999"},
      {log + "1,0,allocate,here,16,0\n", "t.csv:2: ", "the pointer is 'here'"},
      {log + "1,0,grow,0x10,16,0\n", "t.csv:2: ", "the action is 'grow'"},
      {log + "1,0,\x1b[31m,0x10,16,0\n", "t.csv:2: ", "'?[31m'"},
      {log + "1,0,allocate,0x10,16,0\n1,0,allocate,0x10,16,0\n", "t.csv:3: ", "live since line 2"},
      {log + "1,0,allocate,0x10,16,0\n\n1,0,free,0x10,32,0\n",
       "t.csv:4: ", "a block of 16, allocated in line 2"},
      {log + "1,0,allocate,0x10,9223372036854775808,0\n", "t.csv:2: ", "2^63"},
      {lifetimes + "a,0,1\n", "t.csv:2: ", "the size would be in column 4"},
      {lifetimes + "a,0,,1\n", "t.csv:2: ", "the last moment is ''"},
      {lifetimes + "a,5,5,1\n", "t.csv:2: ", "ends at 5, not after it begins at 5"},
      {lifetimes + "a,0,5,0\n", "t.csv:2: ", "zero"},
      {lifetimes + "a,0,5,1\na,6,7,1\n", "t.csv:3: ", "'a' is there twice"},
  };
  for (const Case& c : cases) {
    const absl::Status status = Parse(c.text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(status.message()), StartsWith(std::string(c.line))) << c.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(c.says))) << c.text;
  }
}

TEST(TraceFileTest, SizeMultiplierIsForLifetimesAndDoesNotOverflow) {
  EXPECT_THAT(std::string(Parse("Thread,Time,Action,Pointer,Size,Stream\n", 2).status().message()),
              HasSubstr("a size multiplier is for lifetimes"));
  EXPECT_THAT(std::string(Parse("id,first,last,size\na,0,1,4503599627370496\n", 4096).status().message()),
              HasSubstr("more than 2^63"));
  EXPECT_FALSE(Parse("id,first,last,size\na,0,1,1\n", 0).ok());
}

TEST(TraceFileTest, WrittenDataReadsAsTheSame) {
  const Trace trace = *bench::MakeWorkload("S6", {.scale = bench::Scale::kSmall});
  for (const TraceFormat format : {TraceFormat::kRmmLog, TraceFormat::kLifetimes}) {
    const auto reading = Parse(FormatTrace(trace, format));
    ASSERT_TRUE(reading.ok()) << reading.status();
    EXPECT_EQ(reading->format, format);
    const bench::TraceSummary written = bench::Summarize(trace);
    const bench::TraceSummary read = bench::Summarize(reading->trace);
    EXPECT_EQ(read.allocations, written.allocations);
    EXPECT_EQ(read.peak_live, written.peak_live);
    EXPECT_EQ(read.total, written.total);
  }
}

TEST(TraceFileTest, FilesThatCannotBeOpenedAreErrorsOfTheirOwn) {
  const testing::TempDir directory;
  EXPECT_EQ(ReadTraceFile(directory.path() + "/none.csv").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(ReadTraceFile(directory.path()).ok());
  const std::string path = directory.path() + "/empty.csv";
  const Trace trace = *bench::MakeWorkload("S11", {.scale = bench::Scale::kSmall});
  ASSERT_TRUE(WriteTraceFile(trace, TraceFormat::kRmmLog, path).ok());
  EXPECT_TRUE(ReadTraceFile(path).ok());
  EXPECT_EQ(WriteTraceFile(trace, TraceFormat::kRmmLog, directory.path() + "/no/way.csv").code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace lgpu
