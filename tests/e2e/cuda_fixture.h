#ifndef LGPU_TESTS_E2E_CUDA_FIXTURE_H_
#define LGPU_TESTS_E2E_CUDA_FIXTURE_H_

// A daemon and real client processes on the fake driver's GPUs, which they take for real ones. With
// LGPU_REAL_GPU in the environment they run on the machine's own GPUs, without the checks of the fake driver.

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/harness.h"
#include "tests/fake_cuda/fake_machine.h"

namespace lgpu::testing {

using fake_cuda::FakeMachine;

inline constexpr char kGpu[] = "/job:localhost/replica:0/task:0/device:GPU:0";
inline constexpr char kCpu[] = "/job:localhost/replica:0/task:0/device:CPU:0";

class CudaTest : public E2eTest {
 protected:
  explicit CudaTest(
      const std::vector<FakeMachine::CardOptions>& cards = std::vector<FakeMachine::CardOptions>(2))
      : machine_(cards) {}

  void StartOnMachine(const ChildProgram::Environment& more = {}, const std::string& config = "") {
    DaemonProcess::Options options{.simulate = "", .config = config, .environment = With(more)};
    options.dir = home_.path() + "/run";
    options.lock_dir = home_.path() + "/locks";
    StartDaemon(options);
  }
  std::unique_ptr<ChildProgram> StartOnGpu(const ChildProgram::Environment& more = {}) {
    return StartClient(With(more));
  }
  ChildProgram::Environment With(const ChildProgram::Environment& more) const {
    if (real_) return more;
    ChildProgram::Environment environment = machine_.environment();
    for (const auto& [name, value] : more) environment[name] = value;
    return environment;
  }
  void TearDown() override {
    const int daemon = daemon_ ? static_cast<int>(daemon_->pid()) : 0;
    E2eTest::TearDown();
    daemon_.reset();
    if (real_) return;
    EXPECT_EQ(machine_.ContextsCreated(daemon), 0) << "the daemon made a context";
    for (const fake_cuda::Violation& violation : machine_.TakeViolations()) {
      ADD_FAILURE() << "pid " << violation.pid << " broke the rule " << violation.rule << ": "
                    << violation.text;
    }
    for (int card = 0; card < machine_.state().card_count; ++card) {
      EXPECT_TRUE(Eventually([&] { return machine_.Used(card).is_zero(); })) << "card " << card;
    }
  }
  static void End(ChildProgram& client) {
    client.WriteLine("exit");
    EXPECT_EQ(client.Wait(), 0) << client.Errors();
  }

  const bool real_ = std::getenv("LGPU_REAL_GPU") != nullptr;
  FakeMachine machine_;
  TempDir home_;  // outlives a daemon
};

#define FAKE_ONLY() \
  if (real_) GTEST_SKIP() << "only a fake GPU shows it"

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_E2E_CUDA_FIXTURE_H_
