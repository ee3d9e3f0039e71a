// Every barrier of the GPU kernels is needed, and a test would miss it: without any one of them the kernels'
// tests fail on the fake driver.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fake_cuda/fake_machine.h"

namespace lgpu::fake_cuda {
namespace {

/// "reduce.cu:17" of each.
std::vector<std::string> BarriersOf(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".cu") continue;
    std::ifstream file(entry.path());
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      if (line.find("__syncthreads") == std::string::npos) continue;
      found.push_back(entry.path().filename().string() + ":" + std::to_string(number));
    }
  }
  return found;
}

int RunTestsWithout(const std::string& barrier) {
  FakeMachine machine({FakeMachine::CardOptions{.total = 1_GiB}});
  auto environment = machine.environment();
  environment["LGPU_FAKE_SKIP_BARRIER"] = barrier;
  const auto result = testing::RunProgram(
      {.argv = {LGPU_KERNEL_TESTS, "--gtest_filter=ReduceTest/0*:SoftmaxTest/0*:ElementwiseTest/0*Transpose*",
                "--gtest_fail_fast", "--gtest_brief=1"},
       .environment = environment});
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->code : -1;
}

TEST(BarriersTest, TestsFailWithoutAnyOneOfThem) {
  const std::vector<std::string> barriers = BarriersOf(LGPU_KERNEL_SOURCES);
  EXPECT_EQ(barriers.size(), 6u);
  for (const std::string& barrier : barriers) EXPECT_EQ(RunTestsWithout(barrier), 1) << barrier;
}

TEST(BarriersTest, TestsPassWithAllOfThem) { EXPECT_EQ(RunTestsWithout("none"), 0); }

}  // namespace
}  // namespace lgpu::fake_cuda
