// Kernels of GPUs that call a library, in real programs: cuBLASLt, its workspace inside the limit, and
// machines without it.

#include "absl/strings/str_cat.h"
#include "tests/e2e/cuda_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using CudaKernelsTest = CudaTest;
constexpr int kNotInitialized = 1;  // CUBLAS_STATUS_...
constexpr int kAllocFailed = 3;
constexpr int kExecutionFailed = 13;
constexpr int kNotSupported = 15;

TEST_F(CudaKernelsTest, MatMulRunsOnTheGpu) {
  StartOnMachine();
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  const std::string small = Ask(*client, "product c 3");
  if (real_ && small == absl::StrCat("ok 27 ", kCpu)) {
    End(*client);
    GTEST_SKIP() << "this machine has no cuBLASLt: " << client->Errors();
  }
  EXPECT_EQ(small, absl::StrCat("ok 27 ", kGpu));
  if (!real_) {
    EXPECT_EQ(Ask(*client, "workspace c"), "ok 0") << "nothing asked for it";
  }
  EXPECT_EQ(Ask(*client, "product c 256"), absl::StrCat("ok 1.67772e+07 ", kGpu));
  if (!real_) {
    EXPECT_EQ(Ask(*client, "workspace c"), absl::StrCat("ok ", 32 * kMiB));
    const std::uint64_t chosen = machine_.CallsOf("cublasLtMatmulAlgoGetHeuristic");
    EXPECT_EQ(Ask(*client, "product c 256"), absl::StrCat("ok 1.67772e+07 ", kGpu));
    EXPECT_EQ(machine_.CallsOf("cublasLtMatmulAlgoGetHeuristic"), chosen) << "what was chosen is kept";
    EXPECT_EQ(machine_.CallsOf("cublasLtCreate"), 1u) << "one handle for the card";
  }
  End(*client);
}

TEST_F(CudaKernelsTest, WorkspaceIsInsideASmallLimitAndGivenUpForTensors) {
  StartOnMachine();
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, absl::StrCat("open c timeout=0 limit=", 16 * kMiB)), StartsWith("ok "));
  const std::string first = Ask(*client, "product c 256");
  if (real_ && first == absl::StrCat("ok 1.67772e+07 ", kCpu)) {
    End(*client);
    GTEST_SKIP() << "this machine has no cuBLASLt: " << client->Errors();
  }
  EXPECT_EQ(first, absl::StrCat("ok 1.67772e+07 ", kGpu));
  if (!real_) {
    EXPECT_EQ(Ask(*client, "workspace c"), absl::StrCat("ok ", 2 * kMiB)) << "an eighth";
  }
  EXPECT_THAT(Ask(*client, "stats c"), StartsWith(absl::StrCat("ok ", 256 * 1024, " ")))
      << "the product alone";
  // All that the limit has, but for the product.
  EXPECT_THAT(Ask(*client, absl::StrCat("alloc c t ", 15 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "workspace c"), "ok 0");
  EXPECT_EQ(Ask(*client, "product c 256"), absl::StrCat("ok 1.67772e+07 ", kGpu)) << "without a workspace";
  EXPECT_EQ(Ask(*client, "workspace c"), "ok 0");
  EXPECT_EQ(Ask(*client, "read t"), "ok 3.93216e+06");
  EXPECT_EQ(Ask(*client, "free t"), "ok");
  for (int i = 0; i < 70; ++i) {
    ASSERT_EQ(Ask(*client, "product c 256"), absl::StrCat("ok 1.67772e+07 ", kGpu));
  }
  if (!real_) {
    EXPECT_EQ(Ask(*client, "workspace c"), absl::StrCat("ok ", 2 * kMiB)) << "there is room again";
  }
  EXPECT_THAT(Ask(*client, "trim c"), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "workspace c"), "ok 0");
  End(*client);
}

TEST_F(CudaKernelsTest, WorkspaceIsGivenUpForAnotherProgram) {
  FAKE_ONLY();
  StartOnMachine({}, "[memory]\noverhead_allowance = \"16MiB\"\n");
  auto one = StartOnGpu();
  auto two = StartOnGpu();
  ASSERT_THAT(Ask(*one, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*two, "open c"), StartsWith("ok "));
  EXPECT_EQ(Ask(*one, "product c 256"), absl::StrCat("ok 1.67772e+07 ", kGpu));
  EXPECT_EQ(Ask(*one, "workspace c"), absl::StrCat("ok ", 32 * kMiB));
  // lgpud has seen both contexts.
  EXPECT_TRUE(Eventually([&] { return Stats().cards(0).overhead_bytes() == 32 * kMiB; }));
  // 256 MiB, less two contexts and the other program's tensors.
  EXPECT_THAT(Ask(*two, absl::StrCat("alloc c t ", 220 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(Ask(*one, "workspace c"), "ok 0");
  EXPECT_EQ(Ask(*one, "product c 256"), absl::StrCat("ok 1.67772e+07 ", kGpu));
  End(*one);
  End(*two);
}

TEST_F(CudaKernelsTest, WithoutTheLibraryMatMulIsTheCpus) {
  FAKE_ONLY();
  StartOnMachine();
  machine_.FailCall("cublasLtCreate", kNotInitialized, 0, -1);
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "product c 3"), absl::StrCat("ok 27 ", kCpu));
  EXPECT_EQ(Ask(*client, "product c 3 GPU:0"), absl::StrCat("ok 27 ", kCpu)) << "soft placement";
  ASSERT_THAT(Ask(*client, "open hard soft=0"), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "product hard 3"), absl::StrCat("ok 27 ", kCpu)) << "nothing was asked for";
  EXPECT_THAT(Ask(*client, "product hard 3 GPU:0"),
              AllOf(StartsWith("error FAILED_PRECONDITION"), HasSubstr("cuBLASLt"),
                    HasSubstr("libcublasLt.so.13 gave CUBLAS_STATUS_NOT_INITIALIZED"),
                    HasSubstr("libcublasLt.so.12"), HasSubstr("LD_LIBRARY_PATH")));
  EXPECT_THAT(client->Errors(), HasSubstr("op MatMul runs on /job:localhost/replica:0/task:0/device:CPU:0"));
  machine_.ClearFaults();
  End(*client);
}

// The library opens, and its code is not for this driver or this GPU.
TEST_F(CudaKernelsTest, LibraryThatCannotLaunchIsNotKept) {
  FAKE_ONLY();
  StartOnMachine();
  machine_.FailCall("cublasLtMatmul", kExecutionFailed, 0, -1);
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c soft=0"), StartsWith("ok "));
  EXPECT_THAT(Ask(*client, "product c 3 GPU:0"),
              AllOf(StartsWith("error FAILED_PRECONDITION"), HasSubstr("there is none that works"),
                    HasSubstr("libcublasLt.so.13 gave CUBLAS_STATUS_EXECUTION_FAILED")));
  machine_.ClearFaults();
  End(*client);
}

TEST_F(CudaKernelsTest, FaultsOfTheLibraryAreErrors) {
  FAKE_ONLY();
  StartOnMachine();
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "product c 3"), absl::StrCat("ok 27 ", kGpu));
  machine_.FailCall("cublasLtMatmul", kExecutionFailed, 0, 1);
  EXPECT_THAT(
      Ask(*client, "product c 3"),
      StartsWith("error INTERNAL cublasLtMatmul of libcublasLt.so.13 gave CUBLAS_STATUS_EXECUTION_FAILED"));
  machine_.FailCall("cublasLtMatmulAlgoGetHeuristic", kExecutionFailed, 0, 1);
  EXPECT_THAT(Ask(*client, "product c 4"), StartsWith("error INTERNAL"));
  machine_.ClearFaults();
  EXPECT_EQ(Ask(*client, "product c 4"), absl::StrCat("ok 64 ", kGpu));
  End(*client);
}

// Matrices of ones would hide the order of the operands and their layout.
TEST_F(CudaKernelsTest, ProductsAreRightHoweverTheirOperandsLie) {
  StartOnMachine();
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  for (const char* sizes : {"5 7 3", "1 9 4", "6 1 2", "13 600 5"}) {
    for (const char* transposes : {"0 0", "0 1", "1 0", "1 1"}) {
      EXPECT_EQ(Ask(*client, absl::StrCat("multiply c ", sizes, " ", transposes)), absl::StrCat("ok ", kGpu))
          << sizes << ", " << transposes;
    }
  }
  End(*client);
}

TEST_F(CudaKernelsTest, ThreadsOnOneDeviceDoNotMixTheirPartialSums) {
  StartOnMachine();
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "multiplies c 4 25"), "ok");
  End(*client);
}

TEST_F(CudaKernelsTest, FactorsKeepTheirBitsUnlessTensorFloat32IsAskedFor) {
  StartOnMachine();
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, "open t tf32=1"), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "precision c"), "ok exact");
  EXPECT_EQ(Ask(*client, "precision t"), "ok rounded");
  End(*client);
}

// The library of such a Context was opened later, and is torn down before it.
TEST_F(CudaKernelsTest, ContextsMayLiveAsLongAsStaticObjects) {
  StartOnMachine();
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "product c 300"), absl::StrCat("ok 2.7e+07 ", kGpu));
  EXPECT_EQ(Ask(*client, "leave"), "ok");
  End(*client);
}

TEST_F(CudaKernelsTest, ATransientFailureIsAnErrorAndTriedAgain) {
  FAKE_ONLY();
  StartOnMachine();
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  machine_.FailCall("cublasLtCreate", kAllocFailed, 0, 1);
  EXPECT_THAT(Ask(*client, "product c 3"),
              AllOf(StartsWith("error RESOURCE_EXHAUSTED"), HasSubstr("CUBLAS_STATUS_ALLOC_FAILED")));
  EXPECT_EQ(machine_.CallsOf("cublasLtCreate"), 1u) << "nor is an older library tried";
  EXPECT_EQ(Ask(*client, "product c 3"), absl::StrCat("ok 27 ", kGpu));
  End(*client);
  // The same for its file.
  auto other = StartOnGpu();
  ASSERT_THAT(Ask(*other, "open c"), StartsWith("ok "));
  ASSERT_EQ(Ask(*other, "alloc c t 4096"), absl::StrCat("ok ", kGpu));
  ASSERT_EQ(Ask(*other, "rlimit nofile 0"), "ok");
  // Another thread of the program may close a descriptor just then.
  EXPECT_THAT(Ask(*other, "product c 3"),
              AnyOf(AllOf(StartsWith("error RESOURCE_EXHAUSTED"), HasSubstr("libcublasLt")),
                    absl::StrCat("ok 27 ", kGpu)))
      << "but not the CPU's";
  ASSERT_EQ(Ask(*other, "rlimit nofile all"), "ok");
  EXPECT_EQ(Ask(*other, "product c 3"), absl::StrCat("ok 27 ", kGpu));
  End(*other);
}

TEST_F(CudaKernelsTest, ProductsThatTheLibraryHasNothingForAreTheCpus) {
  FAKE_ONLY();
  StartOnMachine();
  auto client = StartOnGpu();
  ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
  ASSERT_THAT(Ask(*client, "open hard soft=0"), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "product c 3"), absl::StrCat("ok 27 ", kGpu));
  EXPECT_EQ(Ask(*client, "product hard 3"), absl::StrCat("ok 27 ", kGpu));
  machine_.FailCall("cublasLtMatmulAlgoGetHeuristic", kNotSupported, 0, -1);
  EXPECT_EQ(Ask(*client, "product c 4"), absl::StrCat("ok 64 ", kCpu));
  EXPECT_EQ(Ask(*client, "product c 4 GPU:0"), absl::StrCat("ok 64 ", kCpu)) << "soft placement";
  EXPECT_EQ(Ask(*client, "product hard 4"), absl::StrCat("ok 64 ", kCpu)) << "nothing was asked for";
  EXPECT_THAT(Ask(*client, "product hard 4 GPU:0"),
              AllOf(StartsWith("error UNIMPLEMENTED"), HasSubstr("CUBLAS_STATUS_NOT_SUPPORTED")));
  EXPECT_EQ(Ask(*client, "product c 3"), absl::StrCat("ok 27 ", kGpu)) << "the library has this product";
  EXPECT_THAT(client->Errors(), HasSubstr("op MatMul runs on /job:localhost/replica:0/task:0/device:CPU:0"));
  End(*client);
  // A library that has nothing for any product counts as missing.
  auto old = StartOnGpu();
  ASSERT_THAT(Ask(*old, "open c soft=0"), StartsWith("ok "));
  EXPECT_THAT(Ask(*old, "product c 3 GPU:0"), StartsWith("error FAILED_PRECONDITION"));
  EXPECT_EQ(Ask(*old, "product c 3"), absl::StrCat("ok 27 ", kCpu));
  machine_.ClearFaults();
  End(*old);
}

}  // namespace
}  // namespace lgpu::testing
