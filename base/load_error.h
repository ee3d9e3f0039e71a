#ifndef LGPU_BASE_LOAD_ERROR_H_
#define LGPU_BASE_LOAD_ERROR_H_

#include <string_view>

namespace lgpu {

/// Whether this text of dlerror() names a lack that may pass: of descriptors or of memory.
bool IsPassingLoadError(std::string_view error);

}  // namespace lgpu

#endif  // LGPU_BASE_LOAD_ERROR_H_
