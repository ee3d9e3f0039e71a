// Every rule of the fake driver catches the client that breaks it, and a correct client breaks no rule.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "tests/fake_cuda/fake_machine.h"

namespace lgpu::fake_cuda {
namespace {

using testing::ChildProgram;
using testing::ProgramResult;
using testing::RunProgram;

std::vector<std::string> WrongClients(const char* program) {
  const absl::StatusOr<ProgramResult> listed = RunProgram({.argv = {program, "--list"}});
  EXPECT_TRUE(listed.ok()) << listed.status();
  std::vector<std::string> names;
  std::istringstream lines(listed.ok() ? listed->out : "");
  for (std::string line; std::getline(lines, line);) names.push_back(line);
  return names;
}

struct Caught {
  ProgramResult result;
  std::vector<Violation> violations;
};

Caught RunClient(const char* program, const std::string& name) {
  FakeMachine machine({{.total = 64_MiB}, {.total = 64_MiB}});
  machine.state().hold_kernels = name == "unmap-under-work" || name == "free-under-work";
  auto environment = machine.environment();
  // Sanitizers would catch the fault, and here it is the result.
  environment["ASAN_OPTIONS"] = "handle_segv=0";
  environment["TSAN_OPTIONS"] = "handle_segv=0";
  const absl::StatusOr<ProgramResult> result =
      RunProgram({.argv = {program, name}, .environment = environment});
  EXPECT_TRUE(result.ok()) << result.status();
  return {result.value_or(ProgramResult()), machine.TakeViolations()};
}

bool IsCaught(const std::string& name, const Caught& caught) {
  if (name == "none") return caught.result.code == 0 && caught.violations.empty();
  if (name == "host-touch") return caught.result.code == 128 + SIGSEGV && caught.violations.empty();
  const std::string rule = name.substr(0, name.find('/'));
  return caught.result.code == 0 && caught.violations.size() == 1 && caught.violations[0].rule == rule;
}

TEST(FakeCudaRulesTest, EveryWrongClientIsCaughtByItsRuleAlone) {
  int caught = 0;
  int wrong = 0;
  for (const char* const program : {LGPU_WRONG_CLIENT, LGPU_WRONG_LT_CLIENT}) {
    for (const std::string& name : WrongClients(program)) {
      const Caught run = RunClient(program, name);
      const bool right = IsCaught(name, run);
      if (name != "none") {
        ++wrong;
        caught += right ? 1 : 0;
      }
      EXPECT_TRUE(right) << name << ": exit code " << run.result.code << ", " << run.violations.size()
                         << " violations\n"
                         << run.result.err;
    }
  }
  std::printf("%d of %d rules caught\n", caught, wrong);
  EXPECT_GE(wrong, 31);
  EXPECT_EQ(caught, wrong);
}

}  // namespace
}  // namespace lgpu::fake_cuda
