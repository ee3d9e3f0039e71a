// cuGetProcAddress: a program that looks up a call which the shim changes gets the shim's.

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "client/driver/shim.h"
#include "client/driver/use_notes.h"

namespace lgpu::shim {
namespace {

enum class PerThread { kNone, kLegacy, kPerThread };
using enum PerThread;

struct Entry {
  std::string_view symbol;
  std::string_view name;
  int version;
  PerThread stream;
  void* shim;
};

const Entry kEntries[] = {
#define LGPU_SHIM_ENTRY(symbol, name, version, stream, ...) \
  {#symbol, name, version, stream, reinterpret_cast<void*>(&symbol)},
    LGPU_SHIM_SURFACE(LGPU_SHIM_ENTRY)
#undef LGPU_SHIM_ENTRY
};

/// All names and symbols of the table, in order.
constexpr auto kNames = [] {
  std::array names = {
#define LGPU_SHIM_NAMES(symbol, name, ...) std::string_view(#symbol), std::string_view(name),
      LGPU_SHIM_SURFACE(LGPU_SHIM_NAMES)
#undef LGPU_SHIM_NAMES
  };
  std::sort(names.begin(), names.end());
  return names;
}();

/// The driver's own address of an entry.
void* RealOf(std::size_t index) {
  const RealDriver& real = RealDriver::Get();
  void* const reals[] = {
#define LGPU_SHIM_REAL(symbol, name, version, stream, ...) reinterpret_cast<void*>(real.symbol),
      LGPU_SHIM_SURFACE(LGPU_SHIM_REAL)
#undef LGPU_SHIM_REAL
  };
  return reals[index];
}

/// Whether the driver answered with a later version of the entry than the table has: its parameters are
/// unknown.
bool IsNewer(const Entry& entry, const void* answer) {
  char later[80];
  const std::size_t length = entry.name.size();
  const std::string_view suffix = entry.symbol.substr(length);
  const int version = suffix.size() > 2 && suffix.substr(0, 2) == "_v" ? suffix[2] - '0' : 1;
  if (length + 8 > sizeof(later)) return false;
  for (int next = version + 1; next <= version + 2; ++next) {
    std::memcpy(later, entry.name.data(), length);
    std::memcpy(later + length, "_v", 2);
    later[length + 2] = static_cast<char>('0' + next);
    std::strcpy(later + length + 3, entry.stream == kPerThread ? "_ptsz" : "");
    if (void* const known = RealDriver::Find(later); known != nullptr && known == answer) return true;
  }
  return false;
}

/// The shim's call in place of the driver's `answer` to a look-up; the answer itself where that is not
/// changed.
void* Instead(std::string_view symbol, int version, Flags64 flags, void* answer) {
  // A program begins with hundreds of look-ups, and most are of calls that the shim does not change.
  if (!std::binary_search(kNames.begin(), kNames.end(), symbol)) return answer;
  const bool wants_per_thread = (flags & kPerThreadStream) != 0;
  const Entry* chosen = nullptr;
  bool is_last = false;  // no later version is in the table
  for (const Entry& entry : kEntries) {
    if (entry.name != symbol) continue;
    if (entry.stream != kNone && (entry.stream == kPerThread) != wants_per_thread) continue;
    is_last = entry.version <= version;
    if (is_last) chosen = &entry;
  }
  if (chosen != nullptr && is_last && IsNewer(*chosen, answer)) return answer;
  const bool is_lacking = chosen != nullptr && RealOf(static_cast<std::size_t>(chosen - kEntries)) == nullptr;
  if (chosen != nullptr && !is_lacking) return chosen->shim;
  // A driver that does not have the chosen version answers with an older one; and a driver may know a name
  // with its suffix as well.
  for (std::size_t i = 0; i < std::size(kEntries); ++i) {
    const bool is_asked_for = is_lacking ? kEntries[i].name == symbol : kEntries[i].symbol == symbol;
    if (is_asked_for && answer == RealOf(i)) return kEntries[i].shim;
  }
  return is_lacking ? chosen->shim : answer;
}

/// What a look-up answers in place of the driver's `answer`.
void* Answer(const char* symbol, int version, Flags64 flags, void* answer) {
  void* const instead = Instead(symbol, version, flags, answer);
  return instead == answer ? NotingUse(symbol, answer) : instead;
}

}  // namespace

LGPU_SHIM_EXPORT Result cuGetProcAddress(const char* symbol, void** address, int version, Flags64 flags) {
  const Result result = CallReal(RealDriver::Get().cuGetProcAddress, symbol, address, version, flags);
  if (result == kSuccess && address != nullptr && *address != nullptr) {
    *address = Answer(symbol, version, flags, *address);
  }
  return result;
}

LGPU_SHIM_EXPORT Result cuGetProcAddress_v2(const char* symbol, void** address, int version, Flags64 flags,
                                            int* found) {
  const RealDriver& real = RealDriver::Get();
  if (real.cuGetProcAddress_v2 == nullptr) {
    // A driver before R525: the program found this symbol in the shim alone. The older call answers.
    const Result result = cuGetProcAddress(symbol, address, version, flags);
    if (result != kSuccess && result != kNotFound) return result;
    if (found != nullptr) *found = result == kSuccess ? kSymbolFound : kSymbolNotFound;
    if (result == kNotFound) *address = nullptr;
    return kSuccess;
  }
  const Result result = CallReal(real.cuGetProcAddress_v2, symbol, address, version, flags, found);
  if (result == kSuccess && address != nullptr && *address != nullptr) {
    *address = Answer(symbol, version, flags, *address);
  }
  return result;
}

}  // namespace lgpu::shim
