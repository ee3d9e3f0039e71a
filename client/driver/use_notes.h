#ifndef LGPU_CLIENT_DRIVER_USE_NOTES_H_
#define LGPU_CLIENT_DRIVER_USE_NOTES_H_

#include <atomic>
#include <cstdint>
#include <string_view>

/// The shim notes when its program last used a GPU: submitted work to it, or waited for work. lgpud writes a
/// tick into the session's stats page each second. Code in front of each such call compares the tick with the
/// one that this process has noted, and where they differ, notes the new one in the client page, where lgpud
/// reads it. So a call costs a comparison, and one call a second costs a function.
///
/// The words lie in the shim's own memory, and the page that is compared with is inherited by children: no
/// call of a child, however it was made, reads memory that is not there. A child without a session of its own
/// notes the tick for itself alone.

extern "C" {
// Shared with use_thunks.S.
[[gnu::visibility("hidden")]] extern std::atomic<const std::atomic<std::uint64_t>*> lgpu_use_tick;
[[gnu::visibility("hidden")]] extern std::atomic<std::uint64_t> lgpu_use_seen;
[[gnu::visibility("hidden")]] void lgpu_use_note();
}

namespace lgpu::shim {

/// Whether the calls of used_calls.h are noticed: there is code for this processor.
#if defined(__x86_64__) || defined(__aarch64__)
inline constexpr bool kNotesUse = true;
#else
inline constexpr bool kNotesUse = false;
#endif

/// To be called by the calls of surface.h that submit work to a GPU or wait for it, and, before they reach
/// the driver, by those for plain memory: the driver holds them while the program is suspended.
inline void NoteUse() {
  const std::uint64_t tick = lgpu_use_tick.load(std::memory_order_relaxed)->load(std::memory_order_relaxed);
  if (tick != lgpu_use_seen.load(std::memory_order_relaxed)) lgpu_use_note();
}

/// The process has joined an lgpud, whose tick is `tick`, or another one than before. Stays readable for
/// good.
void WatchTick(const std::atomic<std::uint64_t>* tick);

/// The address that a look-up of `symbol` is answered with, where the driver's answer is `answer`: a function
/// that notes the use and goes on there, for calls of used_calls.h in any version; else `answer`.
void* NotingUse(std::string_view symbol, void* answer);

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_USE_NOTES_H_
