// The program itself: its flags, its output and its exit codes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/child_program.h"
#include "tools/trace_file.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::ProgramResult;

class AllocatorReplayTest : public ::testing::Test {
 protected:
  ProgramResult Run(std::vector<std::string> words) {
    words.insert(words.begin(), LGPU_TEST_ALLOCATOR_REPLAY);
    const auto result = testing::RunProgram({.argv = std::move(words)});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ProgramResult();
  }
  std::string File(const std::string& name, const std::string& text) {
    const std::string path = directory_.path() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  testing::TempDir directory_;
};

TEST_F(AllocatorReplayTest, ReplaysAFile) {
  const std::string path = File("lifetimes.csv", "id,first,last,size\na,0,2,1048576\nb,1,3,4194304\n");
  const ProgramResult result = Run({path, "--limit", "8MiB", "--smallest-limit"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("completed"));
  EXPECT_THAT(result.out, HasSubstr("limit that completes: 6.00MiB"));
  EXPECT_THAT(result.err, IsEmpty());

  const auto json = nlohmann::json::parse(Run({path, "--json", "--passes", "0"}).out, nullptr, false);
  EXPECT_EQ(json["schema"], "lgpu.allocator_replay/v1");
  EXPECT_EQ(json["result"]["peak_live_bytes"], 5 << 20);
}

TEST_F(AllocatorReplayTest, ExportsAWorkloadThatItReadsAgain) {
  const std::string path = directory_.path() + "/s11.csv";
  const ProgramResult exported = Run({"--workload", "S11", "--export", path});
  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_THAT(exported.out, IsEmpty());
  const auto reading = ReadTraceFile(path);
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_EQ(bench::Summarize(reading->trace).allocations, 301u);
  EXPECT_EQ(Run({path, "--allocator", "segments", "--spare", "5", "--passes", "1"}).code, 0);
}

TEST_F(AllocatorReplayTest, ExitCodesTellTheKindOfError) {
  const std::string good = File("good.csv", "id,first,last,size\na,0,1,8388608\n");
  const std::string bad = File("bad.csv", "id,first,last,size\na,0,1,many\n");
  struct Case {
    std::vector<std::string> words;
    int code;
    std::string says;
  };
  const std::vector<Case> cases = {
      {{"--help"}, 0, ""},
      {{}, 2, "FILE"},
      {{good, "--workload", "S1"}, 2, "FILE"},
      {{good, "--bogus"}, 2, "bogus"},
      {{good, "--limit", "4 MB"}, 2, "--limit"},
      {{good, "--limit", "4MiB", "--spare", "1"}, 2, "spare"},
      {{good, "--chunk", "3MiB"}, 2, "power of two"},
      {{good, "--allocator", "flat", "--chunk", "4MiB"}, 2, "for the allocator pool"},
      {{good, "--seed", "4"}, 2, "--workload"},
      {{good, "--allocator", "magic"}, 6, "there is no allocator magic"},
      {{"--workload", "S99"}, 6, "there is no workload S99"},
      {{directory_.path() + "/none.csv"}, 6, "No such file"},
      {{bad}, 1, "bad.csv:2: the size is 'many'"},
      {{good, "--limit", "4MiB"}, 0, ""},
      {{good, "--limit", "4MiB", "--must-complete"}, 75, ""},
  };
  for (const Case& c : cases) {
    const ProgramResult result = Run(c.words);
    EXPECT_EQ(result.code, c.code) << ::testing::PrintToString(c.words) << result.err;
    EXPECT_THAT(result.err, c.says.empty() ? ::testing::Matcher<std::string>(IsEmpty()) : HasSubstr(c.says));
  }
  const auto error = nlohmann::json::parse(Run({bad, "--json"}).err, nullptr, false);
  EXPECT_EQ(error["exit_code"], 1);
  EXPECT_EQ(error["code"], "INVALID_ARGUMENT");
}

}  // namespace
}  // namespace lgpu
