#include "client/runtime/memory_report.h"

#include <sstream>

#include "tests/client/context_testing.h"
#include "tests/support/cases.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;
using testing::Must;
using ::testing::StartsWith;
using testing::TestContext;

TEST(MemoryReportTest, InfoAndResetAnswerAsTheTableSays) {
  const std::vector<testing::Case> cases = testing::ReadCases("memory_info.tsv");
  ASSERT_GT(cases.size(), 20U);
  for (const testing::Case& row : cases) {
    SCOPED_TRACE(row.where);
    const TestContext test({.devices_per_card = std::stoi(row[1])});
    const Tensor a = Must(test.gpu->Constant<float>({1, 2}));
    const absl::StatusOr<MemoryInfo> info = test.gpu->GetMemoryInfo(row[2]);
    const absl::Status reset = test.gpu->ResetMemoryStats(row[2]);
    EXPECT_EQ(reset.ok(), row[4] == "ok") << reset;
    if (row[3] == "none" || row[3] == "some") {
      ASSERT_TRUE(info.ok()) << info.status();
      EXPECT_EQ(info->current.is_zero(), row[3] == "none");
      EXPECT_GE(info->peak, info->current);
      continue;
    }
    EXPECT_EQ(std::string(info.status().message()), row[3]);
    EXPECT_THAT(std::string(reset.message()), HasSubstr(row[4]));
  }
}

TEST(MemoryReportTest, PeaksNeverFallAndCoverTheBytesInUse) {  // MI-02
  const TestContext test;
  Bytes peak;
  std::vector<Tensor> tensors;
  const auto check = [&] {
    const MemoryInfo info = Must(test.gpu->GetMemoryInfo("GPU:0"));
    EXPECT_GE(info.peak, peak);
    EXPECT_GE(info.peak, info.current);
    peak = info.peak;
  };
  for (int i = 0; i < 4; ++i) {
    tensors.push_back(Must(test.gpu->Constant<float>({1000}, std::vector<float>(1000))));
    check();
  }
  tensors.clear();
  check();
}

TEST(MemoryReportTest, AllocatorStatsPrintAsTensorFlowsDo) {
  const TestContext test;
  const Tensor small = Must(test.gpu->Constant<float>({1, 2}));
  Tensor large = Must(test.gpu->Constant<float>({1 << 18}, std::vector<float>(1 << 18)));
  large = Tensor();
  const AllocatorStats stats = Must(test.gpu->GetAllocatorStats("GPU:0"));
  EXPECT_EQ(stats.num_allocs, 2U);
  EXPECT_EQ(stats.bytes_limit, 64_MiB);
  EXPECT_GE(stats.largest_alloc_size, 1_MiB);
  EXPECT_LT(stats.bytes_in_use, 1_MiB);
  EXPECT_GE(stats.peak_bytes_in_use, stats.bytes_in_use + 1_MiB);
  EXPECT_GE(stats.pool_bytes, stats.bytes_in_use);
  AllocatorStats shown;
  shown.bytes_limit = Bytes(67108864);
  shown.num_allocs = 2;
  EXPECT_EQ(shown.DebugString(),
            "Limit:                        67108864\n"
            "InUse:                               0\n"
            "MaxInUse:                            0\n"
            "NumAllocs:                           2\n"
            "MaxAllocSize:                        0\n"
            "Reserved:                            0\n"
            "PeakReserved:                        -\n"
            "LargestFreeBlock:                    0\n");
  ASSERT_TRUE(test.gpu->ResetMemoryStats("GPU:0").ok());
  const AllocatorStats after = Must(test.gpu->GetAllocatorStats("GPU:0"));
  EXPECT_EQ(after.num_allocs, 0U);
  EXPECT_EQ(after.largest_alloc_size, Bytes());
  EXPECT_EQ(after.peak_bytes_in_use, stats.bytes_in_use);
  EXPECT_EQ(after.bytes_in_use, stats.bytes_in_use);
}

TEST(MemoryReportTest, RunningOutSaysTensorFlowsLineThenTheRefusal) {
  const TestContext test;
  const Tensor column = Must(test.gpu->Constant<float>({8192, 1}, std::vector<float>(8192)));
  const absl::Status refused = MatMul(column, column, {.transpose_b = true}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              StartsWith("OOM when allocating tensor with shape[8192,8192] and type float on "
                         "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_lgpu\n"
                         "memory limit reached"));
  const std::optional<Refusal> refusal = GetRefusal(refused);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->what, "output of op MatMul, shape [8192,8192], float");
  ASSERT_EQ(refusal->owners.size(), 1U);
  EXPECT_EQ(refusal->owners[0].op, "_EagerConst");
  EXPECT_EQ(refusal->owners[0].bytes, 32_KiB);
  EXPECT_EQ(refusal->owners[0].blocks, 1U);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("used by"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("op _EagerConst, 1 block"));
  EXPECT_TRUE(column.ToVector<float>().ok());
}

TEST(MemoryReportTest, AnInputThatCannotBeCopiedNamesItsOp) {
  const TestContext test;
  Tensor big;
  {
    const DeviceScope cpu(*test.gpu, "/CPU:0");
    big = Must(test.gpu->Constant<float>({20 << 20}, std::vector<float>(20 << 20)));
  }
  const DeviceScope scope(*test.gpu, "/GPU:0");
  const absl::Status refused = AddN({big, big}).status();
  EXPECT_THAT(std::string(refused.message()),
              StartsWith("Failed copying input tensor from /job:localhost/replica:0/task:0/device:CPU:0 to "
                         "/job:localhost/replica:0/task:0/device:GPU:0 in order to run AddN: OOM when "
                         "allocating tensor with shape[20971520] and type float on "));
  EXPECT_TRUE(GetRefusal(refused).has_value());
}

TEST(MemoryReportTest, TheSummaryIsATable) {
  const TestContext test;
  const Tensor a = Must(test.gpu->Constant<float>({1, 2}));
  const Tensor b = Must(CopyToDevice(a, "GPU:1"));
  const std::string summary = test.gpu->MemorySummary();
  EXPECT_THAT(summary, StartsWith("device            limit"));
  EXPECT_THAT(summary, HasSubstr("/device:GPU:1  64.00MiB"));
  EXPECT_THAT(summary, HasSubstr("\ndevice         blocks  allocations  refused  fragmentation\n"));
  EXPECT_THAT(summary, HasSubstr("largest owners:\n/device:GPU:0  _EagerConst  512B in 1 block\n"));
  EXPECT_THAT(summary, HasSubstr("/device:GPU:0 -> /device:GPU:1       1     8B\n"));
  for (const char c : summary) EXPECT_TRUE(c == '\n' || c >= ' ');
  std::istringstream lines(summary);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
  ASSERT_TRUE(test.gpu->Close().ok());
  EXPECT_EQ(test.gpu->MemorySummary(), "");
}

TEST(MemoryReportTest, TheLongestNamesAndTebibytesFit80Columns) {
  const Bytes huge = Bytes((std::uint64_t{1} << 50) - 1);
  internal::DeviceMemory device{
      .name = "/job:localhost/replica:0/task:0/device:GPU:63", .stats = {}, .owners = {}};
  for (Bytes MemoryStats::*size :
       {&MemoryStats::limit, &MemoryStats::used, &MemoryStats::peak_used, &MemoryStats::held,
        &MemoryStats::largest_free_block, &MemoryStats::workspace}) {
    device.stats.*size = huge;
  }
  device.stats.live_blocks = 1'000'000'000;
  device.stats.num_allocs = 1'000'000'000'000'000;
  device.stats.num_refusals = 1'000'000'000;
  device.owners = {{std::string(26, 'o') + "\xc3\xa9\xc3\xa9", huge, 1'000'000'000}, {"", huge, 1}};
  const std::string text = internal::MemoryTables(
      {device, device},
      {{{device.name, "/job:localhost/replica:0/task:0/device:GPU:62"}, {1u << 30, huge.count()}}});
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
  EXPECT_THAT(text, HasSubstr("  " + std::string(25, 'o') + "...  "));
  EXPECT_THAT(text, HasSubstr("/device:GPU:63 -> /device:GPU:62"));
}

}  // namespace
}  // namespace lgpu
