#ifndef LGPU_TESTS_SIMULATION_MACHINE_REAL_CALLS_H_
#define LGPU_TESTS_SIMULATION_MACHINE_REAL_CALLS_H_

#include <dlfcn.h>

/// The real function of this name, behind the one that this program defines.
#define LGPU_REAL_AS(name, variable) \
  static const auto variable = reinterpret_cast<decltype(&::name)>(::dlsym(RTLD_NEXT, #name))
#define LGPU_REAL(name) LGPU_REAL_AS(name, real)

/// The functions of libc that the simulator defines in front of the real ones.
#define LGPU_IN_FRONT extern "C" __attribute__((visibility("default")))

#endif  // LGPU_TESTS_SIMULATION_MACHINE_REAL_CALLS_H_
