#include "client/driver/real_driver.h"

#include <dlfcn.h>

#include <atomic>

namespace lgpu::shim {
namespace {

RealDriver FindAll() {
  RealDriver real;
#define LGPU_SHIM_FIND(symbol, name, version, stream, ...) \
  real.symbol = reinterpret_cast<decltype(real.symbol)>(RealDriver::Find(#symbol));
#define LGPU_SHIM_OWN_FIND(symbol, ...) \
  real.symbol = reinterpret_cast<decltype(real.symbol)>(RealDriver::Find(#symbol));
  LGPU_SHIM_SURFACE(LGPU_SHIM_FIND)
  LGPU_SHIM_OWN_USE(LGPU_SHIM_OWN_FIND)
#undef LGPU_SHIM_FIND
#undef LGPU_SHIM_OWN_FIND
  return real;
}

}  // namespace

const RealDriver& RealDriver::Read() {
  static const RealDriver real = FindAll();
  read_.store(&real, std::memory_order_release);
  return real;
}

void* RealDriver::Find(const char* symbol) {
  // The shim needs this library, so it is loaded, and stays. No guard: the loader calls this function with
  // its own lock held, and another thread may wait for that lock.
  static std::atomic<void*> known{nullptr};
  void* library = known.load(std::memory_order_acquire);
  if (library == nullptr) {
    library = ::dlopen("liblgpu_real_cuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    known.store(library, std::memory_order_release);
  }
  return library == nullptr ? nullptr : ::dlsym(library, symbol);
}

}  // namespace lgpu::shim
