#include "client/runtime/open_lease.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace lgpu {
namespace {

using ::testing::HasSubstr;

TEST(OpenLocalLeaseTest, DefaultIsOneGrowingDeviceOverTheFirstVisibleCard) {
  auto lease =
      OpenLocalLease({.local = true, .simulated = {64_MiB, 32_MiB}}, {}, {.cuda_visible_devices = "1,0"});
  ASSERT_TRUE(lease.ok()) << lease.status();
  ASSERT_EQ((*lease)->devices().size(), 1u);
  EXPECT_EQ((*lease)->devices()[0].memory_limit, 32_MiB);
  EXPECT_EQ((*lease)->devices()[0].backend_device, 1);
  EXPECT_TRUE((*lease)->Close().ok());
  EXPECT_EQ((*lease)->status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(OpenLocalLeaseTest, DevicesWithoutAPhysicalDeviceAreSpreadOverTheCards) {
  const Endpoint endpoint{.local = true, .simulated = {64_MiB, 64_MiB, 64_MiB, 64_MiB}};
  ContextOptions options;
  options.logical_devices.resize(4, {.memory_limit = 64_MiB});
  const auto lease = OpenLocalLease(endpoint, options, {});
  ASSERT_TRUE(lease.ok()) << lease.status();
  for (int i = 0; i < 4; ++i) EXPECT_EQ((*lease)->devices()[static_cast<std::size_t>(i)].card_index, i);
}

TEST(OpenLocalLeaseTest, WithoutAnyGpuTheErrorNamesTheNextStep) {
  const absl::Status status = OpenLocalLease({.local = true}, {}, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("local:2x1GiB"));
}

TEST(OpenLocalLeaseTest, MoreMemoryThanTheMachineHasIsWarnedOf) {
  std::vector<std::string> lines;
  ContextOptions options;
  options.log_sink = [&lines](std::string_view line) { lines.emplace_back(line); };
  options.logical_devices = {{.memory_limit = 4_MiB}};
  EXPECT_TRUE(OpenLocalLease({.local = true, .simulated = {64_MiB}}, options, {}).ok());
  EXPECT_THAT(lines, ::testing::IsEmpty());
  EXPECT_TRUE(OpenLocalLease({.local = true, .simulated = {32_TiB, 32_TiB}}, options, {}).ok());
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], HasSubstr("warning: the simulated GPUs have 64.00TiB, and this machine has "));
}

TEST(OpenLocalLeaseTest, CardsThatAreNotVisibleCannotBeHad) {
  const Endpoint endpoint{.local = true, .simulated = {64_MiB, 64_MiB}};
  EXPECT_EQ(OpenLocalLease(endpoint, {}, {.cuda_visible_devices = ""}).status().code(),
            absl::StatusCode::kNotFound);
  ContextOptions options;
  options.logical_devices = {{.memory_limit = 2_MiB, .physical_device = "0"}};
  EXPECT_TRUE(OpenLocalLease(endpoint, options, {}).ok());
  const absl::Status hidden = OpenLocalLease(endpoint, options, {.cuda_visible_devices = "1"}).status();
  EXPECT_EQ(hidden.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(hidden.message()), HasSubstr("CUDA_VISIBLE_DEVICES=\"1\""));
  options.logical_devices[0].physical_device = "7";
  EXPECT_EQ(OpenLocalLease(endpoint, options, {}).status().code(), absl::StatusCode::kNotFound);
}

TEST(OpenLocalLeaseTest, GrowthIsOverriddenAsTensorFlowDoes) {
  const Endpoint endpoint{.local = true, .simulated = {64_MiB}};
  std::vector<std::string> lines;
  ContextOptions options;
  options.log_sink = [&lines](std::string_view line) { lines.emplace_back(line); };
  options.logical_devices = {{.memory_limit = 4_MiB, .mode = MemoryMode::kPreallocate}};
  auto preallocates = [&](const char* value) {
    lines.clear();
    auto lease = OpenLocalLease(endpoint, options, {.force_gpu_allow_growth = value});
    return (*lease)->devices()[0].preallocated;
  };
  EXPECT_FALSE(preallocates("true"));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("Overriding allow_growth setting because the TF_FORCE_GPU_ALLOW_GROWTH "
                                  "environment variable is set. Original config value was 0."));
  EXPECT_TRUE(preallocates("false"));
  EXPECT_TRUE(lines.empty());
  EXPECT_TRUE(preallocates("True"));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0],
              HasSubstr("could not be parsed: \"True\". Valid values are \"true\" or \"false\". Using "
                        "original config value of 0."));
}

}  // namespace
}  // namespace lgpu
