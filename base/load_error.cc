#include "base/load_error.h"

#include <cerrno>
#include <cstring>

namespace lgpu {

// dlopen tells its reasons in words only.
bool IsPassingLoadError(std::string_view error) {
  for (const int reason : {EMFILE, ENFILE, ENOMEM}) {
    if (error.find(std::strerror(reason)) != std::string_view::npos) return true;
  }
  return error.find("failed to map segment") != std::string_view::npos;
}

}  // namespace lgpu
