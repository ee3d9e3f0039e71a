#include "kernels/cpu/blas.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"

namespace lgpu::cpu {
namespace {

using ::testing::HasSubstr;

TEST(BlasTest, IsOpenedOnceAndMultiplies) {
  const absl::StatusOr<const Blas*> blas = Blas::Open();
  ASSERT_TRUE(blas.ok()) << blas.status();
  EXPECT_EQ(*Blas::Open(), *blas);
  const float a[] = {1, 2, 3, 4};
  float product[4] = {};
  (*blas)->sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 2, 2, 2, 1.0F, a, 2, a, 2, 0.0F, product, 2);
  EXPECT_THAT(product, ::testing::ElementsAre(7, 10, 15, 22));
}

TEST(BlasTest, AMissingLibrarySaysWhatToInstall) {
  const absl::Status status = Blas::Load("libopenblas-of-no-machine.so.0").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("libopenblas-of-no-machine.so.0"));
  EXPECT_THAT(status.message(), HasSubstr("apt-get install libopenblas0-pthread"));
}

TEST(BlasTest, AnotherLibraryOfThatNameIsRefused) {
  const absl::Status status = Blas::Load("libc.so.6").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("has no cblas_sgemm"));
}

TEST(BlasTest, ItsNamesAreNotVisibleToTheProgram) {
  ASSERT_TRUE(Blas::Open().ok());
  EXPECT_EQ(::dlsym(RTLD_DEFAULT, "cblas_sgemm"), nullptr);
}

}  // namespace
}  // namespace lgpu::cpu
