#ifndef LGPU_TESTS_DRIVER_DRIVER_CALLS_H_
#define LGPU_TESTS_DRIVER_DRIVER_CALLS_H_

#include <optional>
#include <sstream>
#include <string>

#include "client/driver/cuda_abi.h"

namespace lgpu::driver_client {

/// The driver's call, by the way that the program was started with: `name` and `version` for a look-up,
/// `symbol` for dlsym. Null: there is none.
void* Find(const char* symbol, const char* name, int version);

/// -1: the driver has no such call.
template <typename... Parameters>
shim::Result Call(const char* symbol, const char* name, int version, Parameters... parameters) {
  const auto call = reinterpret_cast<shim::Result (*)(Parameters...)>(Find(symbol, name, version));
  return call == nullptr ? -1 : call(parameters...);
}

/// A call whose symbol is its name.
template <typename... Parameters>
shim::Result Call(const char* name, int version, Parameters... parameters) {
  return Call(name, name, version, parameters...);
}

/// Calls `name` with null where it writes its result, and valid parameters else. -1: there is no such call.
shim::Result CallWithNull(const std::string& name);

/// The commands on pools, arrays, green contexts and the program's own descriptors. Nothing: `verb` is none.
std::optional<std::string> ObeyMore(const std::string& verb, std::istringstream& words);

}  // namespace lgpu::driver_client

#endif  // LGPU_TESTS_DRIVER_DRIVER_CALLS_H_
