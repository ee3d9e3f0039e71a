#include "client/driver/use_notes.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "client/driver/shim.h"
#include "client/driver/used_calls.h"

namespace {

constexpr std::atomic<std::uint64_t> kNoTick{0};

}  // namespace

std::atomic<const std::atomic<std::uint64_t>*> lgpu_use_tick{&kNoTick};
std::atomic<std::uint64_t> lgpu_use_seen{0};

void lgpu_use_note() {
  const std::uint64_t tick = lgpu_use_tick.load()->load(std::memory_order_relaxed);
  if (lgpu::shim::Shim* const shim = lgpu::shim::Shim::Known()) shim->session.NoteUse(tick);
  lgpu_use_seen.store(tick, std::memory_order_relaxed);
}

namespace lgpu::shim {

void WatchTick(const std::atomic<std::uint64_t>* tick) {
  lgpu_use_tick.store(tick);
  lgpu_use_seen.store(0);
}

}  // namespace lgpu::shim

#if defined(__x86_64__) || defined(__aarch64__)

namespace {

using lgpu::shim::RealDriver;
using lgpu::shim::Result;

constexpr std::size_t kLookUpThunks = 256;
constexpr std::size_t kThunkBytes = 64;

constexpr const char* kUsed[] = {
#define LGPU_SHIM_NAME(symbol) #symbol,
    LGPU_SHIM_USED(LGPU_SHIM_NAME)
#undef LGPU_SHIM_NAME
};

/// A call's name without its version and its twin: "cuMemcpy2D" of "cuMemcpy2D_v2_ptds".
constexpr std::string_view BaseOf(std::string_view symbol) { return symbol.substr(0, symbol.find('_')); }

/// The names of used_calls.h, in order.
constexpr auto kBases = [] {
  std::array<std::string_view, std::size(kUsed)> bases{};
  std::transform(std::begin(kUsed), std::end(kUsed), bases.begin(), BaseOf);
  std::sort(bases.begin(), bases.end());
  return bases;
}();

Result Missing() { return lgpu::shim::kNotSupported; }

}  // namespace

extern "C" {
// Of use_thunks.S.
[[gnu::visibility("hidden")]] extern const char lgpu_use_thunks[];
[[gnu::visibility("hidden")]] extern std::atomic<void*> lgpu_use_targets[];

// Before this library's constructors nothing of libc may be used: a program's functions are found then.
[[gnu::visibility("hidden")]] extern std::atomic<bool> lgpu_use_is_started;
std::atomic<bool> lgpu_use_is_started{false};

/// What a dlsym for an exported call finds.
[[gnu::visibility("hidden")]] const void* lgpu_use_choose(unsigned number);
const void* lgpu_use_choose(unsigned number) {
  if (RealDriver::Find(kUsed[number - kLookUpThunks]) == nullptr) return nullptr;
  return lgpu_use_thunks + number * kThunkBytes;
}

/// The first call of an exported thunk whose word is `target`.
[[gnu::visibility("hidden")]] void lgpu_use_find_target(std::atomic<void*>* target);
void lgpu_use_find_target(std::atomic<void*>* target) {
  const std::ptrdiff_t number = target - lgpu_use_targets - static_cast<std::ptrdiff_t>(kLookUpThunks);
  void* const real = RealDriver::Find(kUsed[number]);
  target->store(real != nullptr ? real : reinterpret_cast<void*>(&Missing));
}
}

namespace lgpu::shim {
namespace {

[[gnu::constructor]] void Start() { lgpu_use_is_started.store(true); }

}  // namespace

void* NotingUse(std::string_view symbol, void* answer) {
  if (!std::binary_search(kBases.begin(), kBases.end(), BaseOf(symbol))) return answer;
  for (std::size_t i = 0; i < kLookUpThunks; ++i) {
    void* known = lgpu_use_targets[i].load();
    if (known == nullptr) lgpu_use_targets[i].compare_exchange_strong(known, answer);
    if (known == nullptr || known == answer) return const_cast<char*>(lgpu_use_thunks + i * kThunkBytes);
  }
  return answer;  // not noticed: there are more forms of these calls than thunks
}

}  // namespace lgpu::shim

#else

void* lgpu::shim::NotingUse(std::string_view, void* answer) { return answer; }

#endif
