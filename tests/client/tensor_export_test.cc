#include "lgpu/tensor_export.h"

#include <thread>

#include "lgpu/tensor_import.h"
#include "tests/client/context_testing.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;
using testing::Must;
using testing::TestContext;

float FirstOf(const TensorExport& lent) { return *static_cast<const float*>(lent.data()); }

TEST(TensorExportTest, LendsTheMemoryItself) {
  const TestContext test;
  const Tensor tensor = Must(test.gpu->Fill<float>({512, 512}, 3));
  const TensorExport first = Must(tensor.Export());
  const TensorExport second = Must(tensor.Export());
  EXPECT_EQ(first.data(), second.data());
  EXPECT_EQ(FirstOf(first), 3);
  EXPECT_EQ(test.gpu->Exports().exports, 2U);
  EXPECT_EQ(test.gpu->Exports().bytes, 2_MiB);
}

TEST(TensorExportTest, KeepsTheBlockOfATensorThatIsGone) {
  const TestContext test;
  TensorExport lent = Must(Must(test.gpu->Constant<float>({7, 8})).Export());
  EXPECT_EQ(Must(test.gpu->GetMemoryStats("GPU:0")).live_blocks, 1U);
  // New tensors, and a trim, leave it alone.
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(test.gpu->Fill<float>({1024, 1024}, i).ok());
  EXPECT_TRUE(test.gpu->Trim().ok());
  EXPECT_EQ(FirstOf(lent), 7);
  lent = TensorExport();
  EXPECT_EQ(Must(test.gpu->GetMemoryStats("GPU:0")).live_blocks, 0U);
  EXPECT_EQ(test.gpu->Exports().exports, 0U);
}

TEST(TensorExportTest, CloseSaysHowManyAreInUseAndChangesNothing) {
  const TestContext test;
  const Tensor tensor = Must(test.gpu->Fill<float>({1024, 1024}, 1));
  TensorExport lent = Must(tensor.Export());
  const TensorExport other = Must(tensor.Export());
  EXPECT_THAT(std::string(test.gpu->Close().message()), HasSubstr("2 arrays (8.00MiB) still use"));
  lent = TensorExport();
  const absl::Status refused = test.gpu->Close();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(IsMemoryInUse(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("1 array (4.00MiB) still uses"));
  EXPECT_TRUE(tensor.ToVector<float>().ok());
  EXPECT_EQ(test.log->closes, 0);
  lent = Must(tensor.Export());  // over the old one, which is empty
  EXPECT_EQ(test.gpu->Exports().exports, 2U);
}

TEST(TensorExportTest, AContextThatGoesClosesWithItsLastExport) {
  TestContext test;
  const Tensor tensor = Must(test.gpu->Constant<float>({5, 6}));
  Tensor idle = Must(test.gpu->Fill<float>({1024, 1024}, 1));
  auto lent = std::make_unique<TensorExport>(Must(tensor.Export()));
  TensorExport other = Must(tensor.Export());
  test.gpu.reset();
  EXPECT_EQ(test.log->closes, 0);
  EXPECT_EQ(FirstOf(*lent), 5);
  EXPECT_EQ(tensor.ToVector<float>().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(tensor.Export().status().code(), absl::StatusCode::kFailedPrecondition);
  idle = Tensor();  // is freed although ops have ended
  std::thread([&lent] { lent.reset(); }).join();
  EXPECT_EQ(test.log->closes, 0);
  other = TensorExport();
  EXPECT_EQ(test.log->closes, 1);
}

TEST(TensorExportTest, ThereAreNoneAfterClose) {
  const TestContext test;
  const Tensor tensor = Must(test.gpu->Constant<float>({5, 6}));
  EXPECT_TRUE(test.gpu->Close().ok());
  EXPECT_EQ(tensor.Export().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Tensor().Export().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TensorExportTest, HostMemoryOutlivesTheContextAndIsNotCounted) {
  TestContext test;
  Tensor tensor;
  {
    const DeviceScope cpu(*test.gpu, "CPU:0");
    tensor = Must(test.gpu->Constant<float>({1, 2}));
  }
  const TensorExport lent = Must(tensor.Export());
  EXPECT_EQ(test.gpu->Exports().exports, 0U);
  EXPECT_TRUE(test.gpu->Close().ok());
  test.gpu.reset();
  EXPECT_EQ(FirstOf(lent), 1);
}

TEST(TensorExportTest, ATensorWithoutElementsHasNoAddress) {
  const TestContext test;
  const TensorExport lent =
      Must(Must(test.gpu->Constant<float>(Shape{0}, std::span<const float>())).Export());
  EXPECT_EQ(lent.data(), nullptr);
}

TEST(TensorExportTest, CopyIsOtherMemoryOfTheSameDevice) {
  TestContext test;
  const Tensor tensor = Must(test.gpu->Fill<float>({512, 512}, 3));
  const TensorExport shared = Must(tensor.Export());
  {
    const TensorExport copy = Must(tensor.Export({.copies = true}));
    EXPECT_NE(copy.data(), shared.data());
    *static_cast<float*>(const_cast<void*>(copy.data())) = 7;
    EXPECT_EQ(FirstOf(shared), 3);
    EXPECT_EQ(Must(test.gpu->GetMemoryStats("GPU:0")).used, 2_MiB);
    EXPECT_EQ(test.gpu->Exports().exports, 2U);
  }
  EXPECT_EQ(Must(test.gpu->GetMemoryStats("GPU:0")).used, 1_MiB);
  EXPECT_EQ(test.gpu->CopyCounts().copies, 0U) << "it is no copy between devices";
}

TEST(TensorExportTest, SimulatedGpusAreOnNoCudaDevice) {
  const TestContext test;
  const Tensor tensor = Must(test.gpu->Constant<float>({1, 2}));
  EXPECT_EQ(tensor.cuda_device(), -1);
  EXPECT_EQ(Tensor().cuda_device(), -1);
  EXPECT_TRUE(absl::IsNotFound(TensorImport::Open(*test.gpu, 0).status()));
  EXPECT_TRUE(absl::IsNotFound(TensorImport::Open(*test.gpu, -1).status()));
}

TEST(TensorExportTest, ManyThreadsExportAndRelease) {
  TestContext test;
  const Tensor tensor = Must(test.gpu->Constant<float>({1, 2}));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&tensor] {
      for (int n = 0; n < 500; ++n) EXPECT_EQ(FirstOf(Must(tensor.Export())), 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(test.gpu->Exports().exports, 0U);
  EXPECT_TRUE(test.gpu->Close().ok());
}

}  // namespace
}  // namespace lgpu
