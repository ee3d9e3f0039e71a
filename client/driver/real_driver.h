#ifndef LGPU_CLIENT_DRIVER_REAL_DRIVER_H_
#define LGPU_CLIENT_DRIVER_REAL_DRIVER_H_

#include <atomic>

#include "client/driver/surface.h"

namespace lgpu::shim {

/// The driver's own calls, of the library behind the shim. A call that this driver does not have is null.
/// Never changes after it was read.
struct RealDriver {
#define LGPU_SHIM_FIELD(symbol, name, version, stream, ...) Result (*symbol)(__VA_ARGS__) = nullptr;
#define LGPU_SHIM_OWN_FIELD(symbol, ...) Result (*symbol)(__VA_ARGS__) = nullptr;
  LGPU_SHIM_SURFACE(LGPU_SHIM_FIELD)
  LGPU_SHIM_OWN_USE(LGPU_SHIM_OWN_FIELD)
#undef LGPU_SHIM_FIELD
#undef LGPU_SHIM_OWN_FIELD

  /// Read at the first call.
  static const RealDriver& Get() {
    const RealDriver* const read = read_.load(std::memory_order_acquire);
    return read != nullptr ? *read : Read();
  }
  /// Of a call that is not in the table; null where the driver does not have it.
  static void* Find(const char* symbol);

 private:
  static const RealDriver& Read();
  static inline std::atomic<const RealDriver*> read_{nullptr};
};

/// The driver's answer, or kNotSupported where the driver does not have the call.
template <typename... Parameters, typename... Arguments>
Result CallReal(Result (*call)(Parameters...), Arguments... arguments) {
  return call == nullptr ? kNotSupported : call(arguments...);
}

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_REAL_DRIVER_H_
