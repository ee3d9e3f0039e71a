// Programs without any code of lgpu run on the fake driver: each kind of call takes memory of the card, and
// gives it back.

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "tests/fake_cuda/fake_machine.h"

namespace lgpu::fake_cuda {
namespace {

using testing::ProgramResult;
using testing::RunProgram;

TEST(AnyProgramTest, EveryKindOfCallTakesAndReturnsItsMemory) {
  const absl::StatusOr<ProgramResult> listed = RunProgram({.argv = {LGPU_ANY_CLIENT, "--list"}});
  ASSERT_TRUE(listed.ok()) << listed.status();
  std::istringstream lines(listed->out);
  int cases = 0;
  for (std::string name; std::getline(lines, name); ++cases) {
    FakeMachine machine({{.total = 256_MiB}});
    machine.state().any_program = true;
    const auto result = RunProgram({.argv = {LGPU_ANY_CLIENT, name}, .environment = machine.environment()});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->code, 0) << name << ":\n" << result->err;
    EXPECT_EQ(machine.Used(0), Bytes()) << name << ": what a program had is back when it has ended";
  }
  EXPECT_GT(cases, 10);
}

TEST(AnyProgramTest, OlderDriverHasNoNewerCalls) {
  FakeMachine machine({{.total = 256_MiB}});
  machine.state().any_program = true;
  machine.state().driver_version = 12000;
  const auto result = RunProgram({.argv = {LGPU_ANY_CLIENT, "lookup"}, .environment = machine.environment()});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->code, 1);
  EXPECT_NE(result->err.find("cuCtxCreate_v4"), std::string::npos) << result->err;
}

}  // namespace
}  // namespace lgpu::fake_cuda
