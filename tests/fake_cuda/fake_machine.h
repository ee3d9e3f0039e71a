#ifndef LGPU_TESTS_FAKE_CUDA_FAKE_MACHINE_H_
#define LGPU_TESTS_FAKE_CUDA_FAKE_MACHINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lgpu/bytes.h"
#include "tests/fake_cuda/fake_state.h"
#include "tests/support/child_program.h"

namespace lgpu::fake_cuda {

/// A FakeMachine is a machine with GPUs for the processes that get its environment: they open the fake driver
/// and the fake NVML. It lives in memory and goes with its owner. Thread-safe.
class FakeMachine {
 public:
  struct CardOptions {
    Bytes total = 256_MiB;
    Bytes context = 16_MiB;   // of the card, for its first context
    Bytes context_step = {};  // each further context is so much larger than the one before
    Bytes first_module = {};  // a context takes it with its first module
    Bytes first_create = {};  // a process without a context takes it with its first cuMemCreate
    int speed = 0;            // the order of FASTEST_FIRST
    int compute_capability = 90;
    Bytes reserved = {};  // NVML counts it beyond `total`
    bool is_mig = false;  // an instance of a card in MIG mode
  };
  explicit FakeMachine(const std::vector<CardOptions>& cards);
  ~FakeMachine();
  FakeMachine(const FakeMachine&) = delete;
  FakeMachine& operator=(const FakeMachine&) = delete;

  /// LGPU_FAKE_CUDA and LD_LIBRARY_PATH.
  testing::ChildProgram::Environment environment() const;
  State& state() { return *state_; }
  std::string uuid(int card) const { return UuidText(state_->cards[card]); }

  void FailCall(std::string_view call, int result, int skip = 0, int times = 1, int pid = 0);
  void ClearFaults();
  /// SIGSTOP, and never amid a call: a stopped process would keep the lock that the fake driver has in each
  /// call.
  void Stop(const testing::ChildProgram& program);
  /// All bytes allocated now, with those of contexts.
  Bytes Used(int card);
  /// How often a call was made, by all processes.
  std::uint64_t CallsOf(std::string_view call);
  /// How many contexts a process ever made.
  int ContextsCreated(int pid);
  std::vector<Violation> TakeViolations();
  /// A process as the checkpoint calls know it, also after its end: its last state then.
  struct Suspended {
    int state = 0;  // CUprocessState
    int checkpoints = 0, restores = 0;
  };
  std::optional<Suspended> CheckpointsOf(int pid);

 private:
  UniqueFd state_fd_;
  State* state_ = nullptr;
  std::vector<UniqueFd> memories_;
  std::unique_ptr<StateFile> view_;
};

}  // namespace lgpu::fake_cuda

#endif  // LGPU_TESTS_FAKE_CUDA_FAKE_MACHINE_H_
