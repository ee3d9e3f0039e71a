// `lgpu exec` with programs that know the driver alone.

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "tests/driver/shim_fixture.h"

namespace lgpu::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ExecShimTest : public ShimTest {
 protected:
  std::unique_ptr<ChildProgram> StartExec(const std::string& lease) {
    const ChildProgram::Options options =
        Lgpu({"exec", "--memory-wait", "500ms", lease, "--", Client("dlopen"), "dlopen", "libcuda.so.1"});
    return StartProgram(options.argv, options.environment);
  }
};

TEST_F(ExecShimTest, TwoCommandsShareTheLimitOfOneLease) {
  StartMachine();
  const std::string lease = CreateLease("64MiB");
  auto first = StartExec(lease);
  EXPECT_EQ(Ask(*first, absl::StrCat("alloc a plain ", 40 * kMiB)), "ok");
  auto second = StartExec(lease);
  EXPECT_EQ(Ask(*second, "total"), absl::StrCat("ok ", 64 * kMiB));
  EXPECT_EQ(Ask(*second, absl::StrCat("alloc b plain ", 40 * kMiB)), "error 2");
  End(*first);
  EXPECT_THAT(first->Errors(), Not(HasSubstr("lgpu: refused"))) << "that was the other command's";
  End(*second);
  EXPECT_THAT(second->Errors(), HasSubstr("cuMemAlloc_v2"));
  auto third = StartExec(lease);
  End(*third);
  EXPECT_THAT(third->Errors(), Not(HasSubstr("lgpu: refused"))) << "that was before it started";
  EXPECT_EQ(Run({"rm", lease}).code, 0);
}

}  // namespace
}  // namespace lgpu::testing
