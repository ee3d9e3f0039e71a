#ifndef LGPU_TESTS_DRIVER_SHIM_FIXTURE_H_
#define LGPU_TESTS_DRIVER_SHIM_FIXTURE_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/cli/cli_testing.h"
#include "tests/e2e/cuda_fixture.h"

namespace lgpu::testing {

/// A daemon on a fake machine, and programs of its leases that come to the fake driver by themselves.
class ShimTest : public CliTest {
 protected:
  explicit ShimTest(const FakeMachine::CardOptions& card = {}, std::size_t cards = 1)
      : machine_(std::vector<FakeMachine::CardOptions>(cards, card)) {}
  void StartMachine(const std::string& config = "") {
    DaemonProcess::Options options{.simulate = "", .config = config, .environment = machine_.environment()};
    options.dir = home_.path() + "/run";
    options.lock_dir = home_.path() + "/locks";
    options.state_dir = home_.path() + "/state";
    StartDaemon(options);
  }
  void StartSimulated() { StartDaemon({.simulate = "256MiB"}); }
  void RestartDaemon() {
    KillDaemon();
    StartMachine();
  }

  static std::string FakeDriver() { return LGPU_FAKE_DRIVER; }
  static std::string Client(const std::string& way) {
    return way == "linked" ? LGPU_LINKED_DRIVER_CLIENT : LGPU_DRIVER_CLIENT;
  }
  /// `lgpu run -m LIMIT -- COMMAND`. A driver client has said "ok" when this returns.
  std::unique_ptr<ChildProgram> Start(const std::string& limit, const std::vector<std::string>& command,
                                      const ChildProgram::Environment& more = {}) {
    std::vector<std::string> words = {"run", "-m", limit, "--memory-wait", "500ms", "--"};
    words.insert(words.end(), command.begin(), command.end());
    ChildProgram::Options options = Lgpu(words);
    return StartProgram(options.argv, options.environment, more);
  }
  std::unique_ptr<ChildProgram> StartProgram(const std::vector<std::string>& argv,
                                             const ChildProgram::Environment& environment,
                                             const ChildProgram::Environment& more = {}) {
    ChildProgram::Options options{.argv = argv, .environment = machine_.environment()};
    for (const auto& [name, value] : environment) options.environment[name] = value;
    for (const auto& [name, value] : more) options.environment[name] = value;
    auto program = ChildProgram::Start(options);
    EXPECT_TRUE(program.ok()) << program.status();
    if (argv.back().find("libcuda") != std::string::npos || argv.back() == "") {
      const std::optional<std::string> started = (*program)->ReadLine();
      EXPECT_EQ(started, "ok") << (*program)->Errors();
    }
    return *std::move(program);
  }
  std::string CreateLease(const std::string& limit) {
    const ProgramResult created = Run({"create", "-q", "-m", limit});
    EXPECT_EQ(created.code, 0) << created.err;
    return created.out.substr(0, created.out.find('\n'));
  }
  /// The variables that `lgpu env` prints for a lease.
  ChildProgram::Environment EnvironmentOf(const std::string& lease) {
    ChildProgram::Options options = Lgpu({"env", lease, "--format", "json"});
    for (const auto& [name, value] : machine_.environment()) options.environment[name] = value;
    const absl::StatusOr<ProgramResult> result = RunProgram(options);
    EXPECT_TRUE(result.ok() && result->code == 0) << (result.ok() ? result->err : "");
    ChildProgram::Environment environment;
    const json answer = json::parse(result->out);
    for (const auto& [name, value] : answer["variables"].items()) environment[name] = value;
    return environment;
  }
  std::unique_ptr<ChildProgram> StartIn(const std::string& lease) {
    ChildProgram::Environment environment = EnvironmentOf(lease);
    environment["LGPU_MEMORY_WAIT_MS"] = "500";
    return StartProgram({Client("dlopen"), "dlopen", "libcuda.so.1"}, environment);
  }
  static std::string Ask(ChildProgram& client, const std::string& command) {
    client.WriteLine(command);
    return client.ReadLine().value_or("(no answer)");
  }
  static void End(ChildProgram& client) {
    client.WriteLine("exit");
    EXPECT_EQ(client.Wait(), 0) << client.Errors();
  }

  FakeMachine machine_;
  TempDir home_;  // outlives a daemon
};

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_DRIVER_SHIM_FIXTURE_H_
