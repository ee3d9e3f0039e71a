#ifndef LGPU_CLIENT_RUNTIME_ENVIRONMENT_VARIABLE_H_
#define LGPU_CLIENT_RUNTIME_ENVIRONMENT_VARIABLE_H_

#include <cstdlib>
#include <optional>
#include <string>

namespace lgpu {

/// Its value; nothing: it is not set.
inline std::optional<std::string> EnvironmentVariable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace lgpu

#endif  // LGPU_CLIENT_RUNTIME_ENVIRONMENT_VARIABLE_H_
