#include "kernels/cpu/blas.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "absl/status/status.h"
#include "kernels/cpu/gemm.h"

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

TEST(BlasTest, WhatIsNoBlasIsNotFound) {
  const absl::Status missing = Blas::Load("libopenblas-of-no-machine.so.0").status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(missing.message(), HasSubstr("libopenblas-of-no-machine.so.0"));
  const absl::Status other = Blas::Load("libc.so.6").status();
  EXPECT_TRUE(absl::IsNotFound(other)) << other;
  EXPECT_THAT(other.message(), HasSubstr("has no cblas_sgemm"));
}

TEST(BlasTest, MachineWithoutABlasHasLgpusOwn) {
  constexpr std::array<const char*, 2> kFiles = {"libopenblas-of-no-machine.so.0", "libc.so.6"};
  const absl::StatusOr<Blas> own = Blas::Choose(kFiles);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(own->sgemm, &OwnSgemm);
  EXPECT_EQ(own->dgemm, &OwnDgemm);
  const absl::StatusOr<Blas> found =
      Blas::Choose(std::array{"libopenblas-of-no-machine.so.0", "libopenblas.so.0"});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->sgemm, (*Blas::Open())->sgemm);
}

TEST(BlasTest, ItsNamesAreNotVisibleToTheProgram) {
  ASSERT_TRUE(Blas::Open().ok());
  EXPECT_EQ(::dlsym(RTLD_DEFAULT, "cblas_sgemm"), nullptr);
}

}  // namespace
}  // namespace lgpu::cpu
