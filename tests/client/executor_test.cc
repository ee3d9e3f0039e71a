#include "client/runtime/executor.h"

#include "lgpu/ops.h"
#include "tests/client/context_testing.h"
#include "tests/support/child_program.h"

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using testing::FakeLeaseOptions;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kCpu0;
using testing::kGpu0;
using testing::Must;
using testing::TestContext;

// Each test runs twice: with kernels that run at once, and with kernels that run later, as on a card.
class ExecutorTest : public ::testing::TestWithParam<bool> {
 protected:
  TestContext test_{{.asynchronous = GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(Modes, ExecutorTest, ::testing::Bool());

TEST_P(ExecutorTest, TheFirstProgram) {
  const Tensor a = Must(test_.gpu->Constant<float>({{1, 2, 3}, {4, 5, 6}}));
  const Tensor b = Must(test_.gpu->Constant<float>({{1, 2}, {3, 4}, {5, 6}}));
  const Tensor c = Must(MatMul(a, b));
  EXPECT_EQ(c.device(), kGpu0);
  EXPECT_THAT(Must(c.ToVector<float>()), ElementsAre(22, 28, 49, 64));
  const DeviceScope cpu(*test_.gpu, "/CPU:0");
  const Tensor sum = Must(AddN({c, c}));
  EXPECT_EQ(sum.device(), kCpu0);
  EXPECT_THAT(Must(sum.ToVector<float>()), ElementsAre(44, 56, 98, 128));
}

TEST_P(ExecutorTest, LongChainsReuseMemoryInStreamOrder) {
  const std::vector<float> ones(100000, 1);
  const Tensor one = Must(test_.gpu->Constant<float>({100000}, ones));
  Tensor sum = one;
  for (int i = 0; i < 200; ++i) sum = Must(AddN({sum, one}));
  EXPECT_EQ(Must(sum.ToVector<float>()), std::vector<float>(100000, 201));
  EXPECT_LE(Must(test_.gpu->GetMemoryInfo("GPU:0")).peak, 4_MiB);
}

TEST_P(ExecutorTest, AllDtypesRun) {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kInt64, DType::kFloat16, DType::kBFloat16}) {
    const Tensor start = Must(test_.gpu->Constant<float>({{1, 2}, {3, 4}}));
    const Tensor matrix = Must(Cast(start, dtype));
    const Tensor product = Must(MatMul(matrix, Must(AddN({matrix, matrix}))));
    EXPECT_EQ(product.dtype(), dtype);
    EXPECT_THAT(Must(Must(Cast(product, DType::kFloat32)).ToVector<float>()), ElementsAre(14, 20, 30, 44))
        << dtype;
  }
}

TEST_P(ExecutorTest, EmptyTensorsNeedNoMemory) {
  const Tensor a = Must(test_.gpu->Constant<float>({0, 3}, std::vector<float>()));
  const Tensor b = Must(test_.gpu->Constant<float>({3, 2}, std::vector<float>(6)));
  EXPECT_EQ(Must(MatMul(a, b)).shape(), (Shape{0, 2}));
  EXPECT_EQ(Must(AddN({a, a})).bytes(), Bytes(0));
  EXPECT_THAT(Must(MatMul(a, a, {.transpose_a = true})).shape(), (Shape{3, 3}));
  EXPECT_THAT(Must(Must(MatMul(a, a, {.transpose_a = true})).ToVector<float>()), ::testing::Each(0));
}

TEST_P(ExecutorTest, RecordsEveryOpWhereItRan) {
  const Tensor a = Must(test_.gpu->Constant<float>({{1, 2}, {3, 4}}));
  {
    const DeviceScope scope(*test_.gpu, "/GPU:7");
    Must(MatMul(a, a));
  }
  const DeviceScope scope(*test_.gpu, "/CPU:0");
  Must(AddN({a, a}));
  const std::vector<PlacementEntry> records = test_.Records();
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[0].op, EagerConstOp().index);
  EXPECT_EQ(records[0].requested, PlacementEntry::kNoDevice);
  EXPECT_EQ(records[0].device, 0);
  EXPECT_EQ(records[0].output_bytes, 16U);
  EXPECT_EQ(records[1].op, MatMulOp().index);
  EXPECT_EQ(records[1].requested, 7);
  EXPECT_EQ(records[1].device, 0);
  EXPECT_EQ(records[1].flags, PlacementEntry::kSoftPlaced);
  EXPECT_EQ(records[2].op, AddNOp().index);
  EXPECT_EQ(records[2].device, PlacementEntry::kHostDevice);
  EXPECT_EQ(records[2].requested, PlacementEntry::kHostDevice);
  EXPECT_EQ(records[2].dtype, static_cast<std::uint16_t>(DType::kFloat32));
  EXPECT_GE(records[2].submitted_unix_ns, records[1].submitted_unix_ns);
  EXPECT_EQ(GetOpName(*test_.page, records[1].op), "MatMul");
}

TEST_P(ExecutorTest, RecordsEveryCopyThatAGpuTakesPartIn) {
  constexpr std::uint16_t kHost = PlacementEntry::kHostDevice;
  const auto expect = [](const PlacementEntry& copy, std::uint16_t source, std::uint16_t target) {
    EXPECT_EQ(copy.flags, PlacementEntry::kCopy);
    EXPECT_EQ(copy.source, source);
    EXPECT_EQ(copy.device, target);
    EXPECT_EQ(copy.output_bytes, 16U);
    EXPECT_EQ(copy.dtype, static_cast<std::uint16_t>(DType::kFloat32));
    EXPECT_GT(copy.submitted_unix_ns, 0U);
  };
  test_.gpu->SetLogDevicePlacement(true);
  const Tensor a = Must(test_.gpu->Constant<float>({{1, 2}, {3, 4}}));
  const Tensor b = Must(CopyToDevice(a, "/GPU:1"));
  const Tensor c = Must(CopyToDevice(b, "/CPU:0"));
  const Tensor d = Must(CopyToDevice(c, "/GPU:0"));
  EXPECT_EQ(Must(d.ToVector<float>()), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(Must(c.ToVector<float>()), (std::vector<float>{1, 2, 3, 4}));  // from the host to the host
  const std::vector<PlacementEntry> copies = test_.Copies();
  ASSERT_EQ(copies.size(), 5U);
  expect(copies[0], kHost, 0);
  expect(copies[1], 0, 1);
  expect(copies[2], 1, kHost);
  expect(copies[3], kHost, 0);
  expect(copies[4], 0, kHost);
  EXPECT_EQ(GetOpName(*test_.page, copies[0].op), "Copy");
  for (const std::string& line : *test_.lines) EXPECT_THAT(line, ::testing::Not(HasSubstr("Copy")));
  // The copy of an input is one, too, and the op itself stays one record.
  const DeviceScope scope(*test_.gpu, "/GPU:1");
  Must(AddN({d, d}));
  EXPECT_EQ(test_.Records().size(), 1U);
  const std::vector<PlacementEntry> inputs = test_.Copies();
  ASSERT_EQ(inputs.size(), 1U);
  expect(inputs[0], 0, 1);
  // The table for people has as many.
  const std::string summary = test_.gpu->MemorySummary();
  for (const char* const route :
       {"/device:CPU:0 -> /device:GPU:0 +2 +32B\n", "/device:GPU:0 -> /device:CPU:0 +1 +16B\n",
        "/device:GPU:0 -> /device:GPU:1 +2 +32B\n", "/device:GPU:1 -> /device:CPU:0 +1 +16B\n"}) {
    EXPECT_THAT(summary, ::testing::ContainsRegex(route));
  }
}

TEST_P(ExecutorTest, FailedOpsLeaveNothing) {
  const Tensor a = Must(test_.gpu->Constant<float>({{1, 2}}));
  test_.Records();
  EXPECT_EQ(MatMul(a, a).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(test_.Records(), IsEmpty());
  EXPECT_EQ(test_.page->devices[0].live_blocks, 1U);
}

TEST_P(ExecutorTest, LogsBeforeEachOp) {
  const Tensor a = Must(test_.gpu->Constant<float>({{1, 2}, {3, 4}}));
  test_.gpu->SetLogDevicePlacement(true);
  Must(MatMul(a, a));
  const DeviceScope scope(*test_.gpu, "/CPU:0");
  Must(AddN({a, a}));
  EXPECT_THAT(*test_.lines,
              ElementsAre("Executing op MatMul in device /job:localhost/replica:0/task:0/device:GPU:0",
                          "Executing op AddN in device /job:localhost/replica:0/task:0/device:CPU:0"));
}

TEST_P(ExecutorTest, AddNOfOneTensorIsThatTensor) {
  const Tensor a = Must(test_.gpu->Constant<float>({1, 2}));
  test_.Records();
  const Tensor same = Must(AddN({a}));
  EXPECT_THAT(Must(same.ToVector<float>()), ElementsAre(1, 2));
  EXPECT_THAT(test_.Records(), IsEmpty());
  EXPECT_EQ(AddN(std::span<const Tensor>()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(ExecutorTest, InputsMustHaveAValueAndOneContext) {
  const TestContext other;
  const Tensor a = Must(test_.gpu->Constant<float>({1}));
  const Tensor b = Must(other.gpu->Constant<float>({1}));
  EXPECT_THAT(std::string(AddN({a, b}).status().message()), HasSubstr("belongs to another Context"));
  EXPECT_THAT(std::string(AddN({a, Tensor()}).status().message()), HasSubstr("without a value"));
  EXPECT_EQ(Identity(Tensor()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(ExecutorTest, CastOnGpusIsAnOption) {
  const Tensor a = Must(test_.gpu->Constant<float>({1.5F}));
  EXPECT_EQ(Must(Cast(a, DType::kInt32)).device(), kCpu0);
  const TestContext with({.asynchronous = GetParam()}, {.cast_on_gpu = true});
  EXPECT_EQ(Must(Cast(Must(with.gpu->Constant<float>({1.5F})), DType::kInt32)).device(), kGpu0);
}

TEST_P(ExecutorTest, DeviceTimeOfSomeOpsIsInTheirRecords) {
  TestContext test({.asynchronous = GetParam()}, {.device_time_every = 2});
  const Tensor a = Must(test.gpu->Constant<float>({1, 2}));
  std::vector<PlacementEntry> records;
  for (int i = 0; i < 6; ++i) Must(AddN({a, a}));
  EXPECT_TRUE(testing::Eventually([&] {
    for (const PlacementEntry& record : test.Records()) records.push_back(record);
    return records.size() == 7;
  })) << records.size();
  int measured = 0;
  for (const PlacementEntry& record : records) {
    const bool has_time = (record.flags & PlacementEntry::kHasDeviceTime) != 0;
    measured += has_time ? 1 : 0;
    EXPECT_TRUE(has_time || record.device_ns == 0);
  }
  EXPECT_EQ(measured, 3);
}

TEST_P(ExecutorTest, RecordsOfMeasuredOpsAreThereWhenAContextIsClosed) {
  TestContext test({.asynchronous = GetParam()}, {.device_time_every = 1});
  const Tensor a = Must(test.gpu->Constant<float>({1, 2}));
  for (int i = 0; i < 5; ++i) Must(AddN({a, a}));
  {
    const DeviceScope scope(*test.gpu, "/CPU:0");
    Must(AddN({a, a}));  // the CPU has no device time of its own
  }
  ASSERT_TRUE(test.gpu->Close().ok());
  int measured = 0;
  const std::vector<PlacementEntry> records = test.Records();
  for (const PlacementEntry& record : records) {
    measured += (record.flags & PlacementEntry::kHasDeviceTime) / 2;
  }
  EXPECT_EQ(records.size(), 7U);
  EXPECT_EQ(measured, 5);
}

}  // namespace
}  // namespace lgpu
