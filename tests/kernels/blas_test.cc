#include "kernels/cpu/blas.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "absl/status/status.h"
#include "kernels/cpu/gemm.h"
#include "tests/support/sanitizers.h"

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

TEST(BlasTest, ALibraryWithoutBlasIsNotFound) {
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

// A file that nothing here opens.
constexpr char kUnopened[] = "libBrokenLocale.so.1";

TEST(BlasTest, ALackOfDescriptorsIsUnavailable) {
  rlimit files = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = files.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status load = Blas::Load(kUnopened).status();
  const absl::Status choose = Blas::Choose(std::array{kUnopened}).status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_TRUE(absl::IsUnavailable(load)) << load;
  EXPECT_THAT(load.message(), HasSubstr("ulimit -n"));
  EXPECT_TRUE(absl::IsUnavailable(choose)) << choose;
}

TEST(BlasTest, ADamagedLibraryIsFailedPrecondition) {
  const absl::Status damaged = Blas::Load("/proc/self/cmdline").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(damaged)) << damaged;
  ASSERT_TRUE(Blas::Choose(std::array{"/proc/self/cmdline"}).ok());
}

TEST(BlasTest, WithoutRoomForThreadsMatMulIsLgpusOwnForTheTimeBeing) {
  if (lgpu::testing::kThreadSanitizer) {
    GTEST_SKIP() << "ThreadSanitizer allows no threads in a child of a program that has some";
  }
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Root may start as many as it likes.
    if (::getuid() == 0 && ::setuid(61236) != 0) ::_exit(2);
    rlimit threads = {};
    if (::getrlimit(RLIMIT_NPROC, &threads) != 0) ::_exit(3);
    const rlimit none = {.rlim_cur = 1, .rlim_max = threads.rlim_max};
    if (::setrlimit(RLIMIT_NPROC, &none) != 0) ::_exit(3);
    const absl::Status load = Blas::Load(kUnopened).status();
    const absl::StatusOr<Blas> now = Blas::Choose(std::array{kUnopened});
    if (::setrlimit(RLIMIT_NPROC, &threads) != 0) ::_exit(3);
    const absl::StatusOr<Blas> later = Blas::Choose(std::array{kUnopened});
    const bool is_own = now.ok() && now->sgemm == &OwnSgemm && !now->is_lasting;
    ::_exit(absl::IsResourceExhausted(load) && is_own && later.ok() && later->is_lasting ? 0 : 1);
  }
  int state = -1;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state));
  EXPECT_EQ(WEXITSTATUS(state), 0);
}

TEST(BlasTest, ItsNamesAreNotVisibleToTheProgram) {
  ASSERT_TRUE(Blas::Open().ok());
  EXPECT_EQ(::dlsym(RTLD_DEFAULT, "cblas_sgemm"), nullptr);
}

}  // namespace
}  // namespace lgpu::cpu
