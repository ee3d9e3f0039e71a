// The decisions of the library's wrapper: its workspace, and the choices that it keeps. On a machine without
// cuBLASLt these tests are skipped.

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/cublas_lt_matmul.h"
#include "tests/kernels/kernel_testing.h"

namespace lgpu {
namespace {

using testing::ThisRunner;

class CublasLtTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::HasKernel(MatMulOp(), DType::kFloat32)) GTEST_SKIP() << "no cuBLASLt here";
  }
  void TearDown() override {
    // The library needs its context to go.
    if (testing::HasKernel(MatMulOp(), DType::kFloat32)) {
      Do([this](const LibraryCall&) {
        library_.reset();
        return absl::OkStatus();
      });
    }
  }
  static void Do(absl::FunctionRef<absl::Status(const LibraryCall&)> call) {
    const absl::Status status = ThisRunner().launcher().CallLibrary(call);
    EXPECT_TRUE(status.ok()) << status;
  }
  /// [m,k] x [k,n] of these numbers; `workspace`: whether there is one.
  std::vector<float> Multiply(const std::vector<float>& a, const std::vector<float>& b, std::int64_t m,
                              std::int64_t n, bool workspace = true) {
    std::byte* const base = ThisRunner().arena().data();
    constexpr std::size_t kPart = std::size_t{4} << 20;
    const auto k = static_cast<std::int64_t>(a.size()) / m;
    EXPECT_TRUE(ThisRunner().CopyIn(base, std::as_bytes(std::span(a))).ok());
    EXPECT_TRUE(ThisRunner().CopyIn(base + kPart, std::as_bytes(std::span(b))).ok());
    Do([&](const LibraryCall& call) {
      using Queue = absl::FunctionRef<absl::Status(std::span<std::byte>)>;
      const auto none = [](std::uint64_t, Queue) -> std::optional<absl::Status> { return std::nullopt; };
      const auto count = [this] { ++begun_; };
      const LibraryCall with = {.stream = call.stream,
                                .matmul = library_.get(),
                                .workspace_bytes = call.workspace_bytes,
                                .with_workspace = call.with_workspace,
                                .before_work = count};
      const LibraryCall without = {.stream = call.stream,
                                   .matmul = library_.get(),
                                   .workspace_bytes = call.workspace_bytes,
                                   .with_workspace = none,
                                   .before_work = count};
      return library_->MatMul({.dtype = DType::kFloat32,
                               .m = m,
                               .n = n,
                               .k = k,
                               .a = base,
                               .b = base + kPart,
                               .output = base + 2 * kPart},
                              workspace ? with : without);
    });
    std::vector<float> product(static_cast<std::size_t>(m * n));
    EXPECT_TRUE(ThisRunner().CopyOut(std::as_writable_bytes(std::span(product)), base + 2 * kPart).ok());
    return product;
  }

  std::unique_ptr<MatMulLibrary> library_ = MatMulLibrary::Make({});
  int begun_ = 0;  // products
};

TEST_F(CublasLtTest, WorksWithoutAWorkspace) {
  const std::vector<float> ones(64 * 512, 1.0F);
  for (const bool workspace : {true, false, true}) {
    for (const float sum : Multiply(ones, ones, 64, 64, workspace)) ASSERT_EQ(sum, 512.0F);
  }
}

// Where an op's device time begins.
TEST_F(CublasLtTest, SaysOnceThatWorkBegins) {
  const std::vector<float> ones(64 * 512, 1.0F);
  for (int i = 1; i <= 3; ++i) {
    Multiply(ones, ones, 64, 64, i != 2);
    EXPECT_EQ(begun_, i);
  }
}

TEST_F(CublasLtTest, KeepsABoundedNumberOfChoices) {
  const std::vector<float> ones(2048, 1.0F);
  for (std::int64_t n = 1; n < static_cast<std::int64_t>(CublasLtMatMul::kMostPlans) + 100; ++n) {
    ASSERT_EQ(Multiply({2.0F}, std::vector<float>(static_cast<std::size_t>(n), 3.0F), 1, n).back(), 6.0F);
  }
}

}  // namespace
}  // namespace lgpu
