// The code in front of the calls that use a GPU, with functions of this test in the place of the shim's own.

#include <execinfo.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <iterator>

#include "client/driver/use_notes.h"

#if defined(__x86_64__) || defined(__aarch64__)

extern "C" {
extern const char lgpu_use_thunks[];
extern std::atomic<void*> lgpu_use_targets[];
std::atomic<bool> lgpu_use_is_started{false};
void lgpu_use_find_target(std::atomic<void*>* target);
const void* lgpu_use_choose(unsigned number);
int cuLaunchKernel(int number);  // exported by the thunks
}

namespace {

constexpr std::size_t kThunkBytes = 64;
constexpr std::size_t kLookUpThunks = 256;

std::atomic<std::uint64_t> tick{7};
int notes = 0;
void* frames[16];
int frame_count = 0;

/// Leaves nothing in the registers that a call may have parameters in.
void Clobber() {
#if defined(__x86_64__)
  __asm__ volatile(
      "mov $-1, %%rax\n mov %%rax, %%rdi\n mov %%rax, %%rsi\n mov %%rax, %%rdx\n mov %%rax, %%rcx\n"
      "mov %%rax, %%r8\n mov %%rax, %%r9\n mov %%rax, %%r10\n mov %%rax, %%r11\n"
      "pcmpeqd %%xmm0, %%xmm0\n pcmpeqd %%xmm1, %%xmm1\n pcmpeqd %%xmm2, %%xmm2\n pcmpeqd %%xmm3, %%xmm3\n"
      "pcmpeqd %%xmm4, %%xmm4\n pcmpeqd %%xmm5, %%xmm5\n pcmpeqd %%xmm6, %%xmm6\n pcmpeqd %%xmm7, %%xmm7\n"
      :
      :
      : "rax", "rdi", "rsi", "rdx", "rcx", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
        "xmm5", "xmm6", "xmm7");
#endif
}

double Sum(int a, int b, int c, int d, int e, int f, double g, double h, double i, double j, double k,
           double l, double m, double n, int o, double p) {
  double sum = 0;
  const double all[] = {a * 1.0, b * 2.0, c * 3.0, d * 4.0, e * 5.0, f * 6.0, g,       h,
                        i,       j,       k,       l,       m,       n,       o * 7.0, p};
  for (const double one : all) sum = sum * 3 + one;
  return sum;
}

int Twice(int number) { return 2 * number; }

template <typename Call>
Call* LookUpThunk(std::size_t number, Call* target) {
  lgpu_use_targets[number] = reinterpret_cast<void*>(target);
  return reinterpret_cast<Call*>(lgpu_use_thunks + number * kThunkBytes);
}

TEST(UseThunksTest, EveryParameterArrivesAlsoWhereTheUseIsNoted) {
  lgpu_use_tick = &tick;
  double (*volatile call)(int, int, int, int, int, int, double, double, double, double, double, double,
                          double, double, int, double) = LookUpThunk(0, &Sum);
  const double expected = Sum(1, 2, 3, 4, 5, 6, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8, 9.5);
  notes = 0;
  tick = 8;
  EXPECT_EQ(call(1, 2, 3, 4, 5, 6, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8, 9.5), expected);
  EXPECT_EQ(notes, 1);
  EXPECT_EQ(call(1, 2, 3, 4, 5, 6, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8, 9.5), expected);
  EXPECT_EQ(notes, 1) << "once for each tick";
}

TEST(UseThunksTest, EachThunkGoesToItsOwnTarget) {
  lgpu_use_tick = &tick;
  for (std::size_t i = 0; i < kLookUpThunks; ++i) {
    lgpu_use_targets[i] = reinterpret_cast<void*>(i % 2 == 0 ? &Twice : +[](int number) { return -number; });
  }
  for (std::size_t i = 0; i < kLookUpThunks; ++i) {
    const auto call = reinterpret_cast<int (*)(int)>(lgpu_use_thunks + i * kThunkBytes);
    EXPECT_EQ(call(21), i % 2 == 0 ? 42 : -21) << i;
  }
}

TEST(UseThunksTest, AnExportedCallIsFoundAtItsFirstCall) {
  lgpu_use_tick = &tick;
  EXPECT_EQ(cuLaunchKernel(21), 42);
  EXPECT_EQ(cuLaunchKernel(4), 8);
}

__attribute__((noinline)) int CallsAThunk(int (*call)(int)) {
  const int answer = call(21);
  return answer + 1;
}

TEST(UseThunksTest, ABacktraceThroughAThunkHasTheCaller) {
  lgpu_use_tick = &tick;
  tick = tick + 1;
  frame_count = 0;
  EXPECT_EQ(CallsAThunk(LookUpThunk(1, &Twice)), 43);
  bool is_there = false;
  for (int i = 0; i < frame_count; ++i) {
    const auto offset = static_cast<const char*>(frames[i]) - reinterpret_cast<const char*>(&CallsAThunk);
    is_there = is_there || (offset > 0 && offset < 64);
  }
  EXPECT_TRUE(is_there) << frame_count << " frames";
}

}  // namespace

std::atomic<const std::atomic<std::uint64_t>*> lgpu_use_tick{&tick};
std::atomic<std::uint64_t> lgpu_use_seen{7};
void lgpu_use_note() {
  ++notes;
  frame_count = ::backtrace(frames, static_cast<int>(std::size(frames)));
  lgpu_use_seen = tick.load();
  Clobber();
}
void lgpu_use_find_target(std::atomic<void*>* target) { *target = reinterpret_cast<void*>(&Twice); }
const void* lgpu_use_choose(unsigned number) { return lgpu_use_thunks + number * kThunkBytes; }

#endif
