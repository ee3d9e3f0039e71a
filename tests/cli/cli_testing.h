#ifndef LGPU_TESTS_CLI_CLI_TESTING_H_
#define LGPU_TESTS_CLI_CLI_TESTING_H_

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/harness.h"

namespace lgpu::testing {

using nlohmann::json;

/// The real lgpu against a real lgpud.
class CliTest : public E2eTest {
 protected:
  ChildProgram::Options Lgpu(std::vector<std::string> words) {
    words.insert(words.begin(), DaemonProcess::LgpuPath());
    ChildProgram::Options options{.argv = std::move(words)};
    if (daemon_) options.environment["LGPU_ENDPOINT"] = daemon_->dir();
    options.environment.emplace("NO_COLOR", "1");
    return options;
  }
  ProgramResult Run(const std::vector<std::string>& words) {
    absl::StatusOr<ProgramResult> result = RunProgram(Lgpu(words));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ProgramResult();
  }
  json RunJson(std::vector<std::string> words) {
    words.push_back("--json");
    const ProgramResult result = Run(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  }
  /// The words of `run`: a client that holds a context open for a while.
  static std::vector<std::string> Shell(const std::string& script) { return {"/bin/sh", "-c", script}; }
};

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_CLI_CLI_TESTING_H_
