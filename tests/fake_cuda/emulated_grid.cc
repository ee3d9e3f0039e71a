#include "tests/fake_cuda/emulated_grid.h"

#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"

namespace lgpu::fake_cuda {
namespace {

constexpr std::size_t kStackBytes = 64 << 10;

// ---- a switch from one stack to another

#ifdef __x86_64__
using Stopped = void*;
extern "C" void lgpu_fake_switch(Stopped* from, Stopped* to);
asm(R"(
  .text
  .hidden lgpu_fake_switch
  .globl lgpu_fake_switch
  .type lgpu_fake_switch, @function
lgpu_fake_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov (%rsi), %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
  .size lgpu_fake_switch, . - lgpu_fake_switch
)");
void Switch(Stopped& from, Stopped& to) { lgpu_fake_switch(&from, &to); }
void Prepare(Stopped& stopped, char* stack, void (*entry)()) {
  constexpr int kSaved = 6;  // registers
  auto** const top = reinterpret_cast<void**>(stack + kStackBytes) - 2;
  top[0] = reinterpret_cast<void*>(entry);
  top[1] = nullptr;  // where `entry` would return to
  std::fill(top - kSaved, top, nullptr);
  stopped = top - kSaved;
}
#else
using Stopped = ucontext_t;
void Switch(Stopped& from, Stopped& to) { ::swapcontext(&from, &to); }
void Prepare(Stopped& stopped, char* stack, void (*entry)()) {
  ::getcontext(&stopped);
  stopped.uc_stack.ss_sp = stack;
  stopped.uc_stack.ss_size = kStackBytes;
  stopped.uc_link = nullptr;
  ::makecontext(&stopped, entry, 0);
}
#endif

/// The threads of one block, on one thread of the host.
class Block {
 public:
  Block(std::size_t threads, absl::FunctionRef<void()> thread) : thread_(thread), fibers_(threads) {
    void* const stacks = ::mmap(nullptr, threads * kStackBytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    LGPU_CHECK(stacks != MAP_FAILED);
    stacks_ = static_cast<char*>(stacks);
    for (std::vector<unsigned>& order : orders_) {
      order.resize(threads);
      std::iota(order.begin(), order.end(), 0U);
    }
    std::reverse(orders_[1].begin(), orders_[1].end());
    std::shuffle(orders_[2].begin(), orders_[2].end(), std::minstd_rand());
  }
  ~Block() { ::munmap(stacks_, fibers_.size() * kStackBytes); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  /// False: some threads ended while other ones wait at a barrier.
  bool Run(unsigned number) {
    running_ = this;
    for (std::size_t i = 0; i < fibers_.size(); ++i) {
      fibers_[i].done = false;
      Prepare(fibers_[i].stopped, stacks_ + i * kStackBytes, Enter);
    }
    std::size_t done = 0;
    for (unsigned phase = number; done == 0; ++phase) {
      for (const unsigned i : orders_[phase % orders_.size()]) {
        threadIdx.x = i;
        current_ = &fibers_[i];
        Switch(scheduler_, fibers_[i].stopped);
        done += fibers_[i].done ? 1 : 0;
      }
    }
    running_ = nullptr;
    return done == fibers_.size();
  }
  static bool IsRunning() { return running_ != nullptr; }
  static void Yield() { Switch(running_->current_->stopped, running_->scheduler_); }

 private:
  struct Fiber {
    Stopped stopped{};
    bool done = false;
  };
  static void Enter() {
    running_->thread_();
    running_->current_->done = true;
    Yield();
    LGPU_CHECK(false);
  }

  static thread_local Block* running_;
  absl::FunctionRef<void()> thread_;
  std::vector<Fiber> fibers_;
  char* stacks_ = nullptr;
  std::array<std::vector<unsigned>, 3> orders_;  // forwards, backwards, shuffled
  Stopped scheduler_{};
  Fiber* current_ = nullptr;
};
thread_local Block* Block::running_ = nullptr;

bool IsSkipped(const char* file, int line) {
  static const char* const skipped = std::getenv("LGPU_FAKE_SKIP_BARRIER");
  if (skipped == nullptr) return false;
  const char* const slash = std::strrchr(file, '/');
  return std::string(slash == nullptr ? file : slash + 1) + ":" + std::to_string(line) == skipped;
}

}  // namespace

void Barrier(const char* file, int line) {
  LGPU_CHECK(Block::IsRunning());
  if (!IsSkipped(file, line)) Block::Yield();
}

bool RunGrid(const Grid& grid, Barriers barriers, absl::FunctionRef<void()> thread) {
  gridDim.x = static_cast<unsigned>(grid.blocks);
  blockDim.x = static_cast<unsigned>(grid.threads);
  std::unique_ptr<Block> block;
  if (barriers == Barriers::kSome) block = std::make_unique<Block>(grid.threads, thread);
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    if (block != nullptr) {
      if (!block->Run(blockIdx.x)) return false;
      continue;
    }
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) thread();
  }
  return true;
}

}  // namespace lgpu::fake_cuda
