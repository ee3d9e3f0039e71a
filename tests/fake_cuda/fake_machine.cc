#include "tests/fake_cuda/fake_machine.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace lgpu::fake_cuda {
namespace {

UniqueFd Memfd(const char* name, std::uint64_t bytes) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC));
  LGPU_CHECK(fd && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  return fd;
}

}  // namespace

FakeMachine::FakeMachine(const std::vector<CardOptions>& cards) {
  LGPU_CHECK(cards.size() <= static_cast<std::size_t>(State::kMaxCards));
  state_fd_ = Memfd("fake-cuda-state", sizeof(State));
  void* const data = ::mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, state_fd_.get(), 0);
  LGPU_CHECK(data != MAP_FAILED);
  state_ = static_cast<State*>(data);  // zero: the memfd is new
  state_->driver_version = 13000;
  state_->driver_branch = 580;
  state_->too_new_image = 200;  // CUDA_ERROR_INVALID_IMAGE
  state_->card_count = static_cast<std::int32_t>(cards.size());
  for (std::size_t i = 0; i < cards.size(); ++i) {
    memories_.push_back(Memfd("fake-cuda-memory", std::uint64_t{1} << 46));
    Card& card = state_->cards[i];
    std::snprintf(card.name, sizeof(card.name), cards[i].is_mig ? "Fake GPU MIG 1g.10gb" : "Fake GPU");
    card.is_mig = cards[i].is_mig;
    card.reserved = cards[i].reserved.count();
    for (std::size_t k = 0; k < sizeof(card.uuid); ++k) {
      card.uuid[k] = static_cast<unsigned char>(0xfa + k * 7);
    }
    card.uuid[0] = static_cast<unsigned char>((i + 1) << 4);
    card.pci_bus = static_cast<std::uint32_t>(i + 1);
    card.compute_major = cards[i].compute_capability / 10;
    card.compute_minor = cards[i].compute_capability % 10;
    card.speed = cards[i].speed;
    card.total = cards[i].total.count();
    card.context_bytes = cards[i].context.count();
    card.context_step = cards[i].context_step.count();
    card.module_bytes = cards[i].first_module.count();
    card.create_bytes = cards[i].first_create.count();
    card.memory_fd = memories_.back().get();
    card.next_offset = std::uint64_t{2}
                       << 20;  // not 0: that is where a descriptor stands that is no allocation
  }
  state_->magic = State::kMagic;
  view_ = std::make_unique<StateFile>(UniqueFd(::dup(state_fd_.get())), state_, memories_);
}

FakeMachine::~FakeMachine() {
  view_.reset();
  ::munmap(state_, sizeof(State));
}

testing::ChildProgram::Environment FakeMachine::environment() const {
  const char* const path = std::getenv("LD_LIBRARY_PATH");
  const std::string rest = path == nullptr || *path == '\0' ? "" : std::string(":") + path;
  return {{kVariable, "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(state_fd_.get())},
          {"LD_LIBRARY_PATH", LGPU_FAKE_CUDA_DIR + rest},
          {"CUDA_VISIBLE_DEVICES", std::nullopt},
          {"CUDA_DEVICE_ORDER", std::nullopt}};
}

void FakeMachine::FailCall(std::string_view call, int result, int skip, int times, int pid) {
  const StateFile::Lock lock(*view_);
  for (Fault& fault : state_->faults) {
    if (fault.call[0] != '\0') continue;
    std::snprintf(fault.call, sizeof(fault.call), "%.*s", static_cast<int>(call.size()), call.data());
    fault.skip = skip;
    fault.times = times;
    fault.pid = pid;
    fault.result = result;
    state_->has_faults = true;
    return;
  }
  LGPU_CHECK(false);
}

void FakeMachine::ClearFaults() {
  const StateFile::Lock lock(*view_);
  std::memset(state_->faults, 0, sizeof(state_->faults));
}

void FakeMachine::Stop(const testing::ChildProgram& program) {
  const StateFile::Lock lock(*view_);
  program.Signal(SIGSTOP);
}

Bytes FakeMachine::Used(int card) {
  const StateFile::Lock lock(*view_);
  view_->Sweep();
  return Bytes(state_->cards[card].used);
}

std::uint64_t FakeMachine::CallsOf(std::string_view call) {
  const StateFile::Lock lock(*view_);
  for (const CallCount& entry : state_->calls) {
    if (call == entry.call) return entry.count;
  }
  return 0;
}

int FakeMachine::ContextsCreated(int pid) {
  const StateFile::Lock lock(*view_);
  for (const ProcessContexts& entry : state_->processes) {
    if (entry.pid == pid) return static_cast<int>(entry.created);
  }
  return 0;
}

std::optional<FakeMachine::Suspended> FakeMachine::CheckpointsOf(int pid) {
  const StateFile::Lock lock(*view_);
  for (const CheckpointTarget& target : state_->targets) {
    if (target.pid != pid) continue;
    return Suspended{target.state, target.checkpoints, target.restores};
  }
  return std::nullopt;
}

std::vector<Violation> FakeMachine::TakeViolations() {
  const StateFile::Lock lock(*view_);
  std::vector<Violation> violations(state_->violations, state_->violations + state_->violation_count);
  state_->violation_count = 0;
  return violations;
}

}  // namespace lgpu::fake_cuda
