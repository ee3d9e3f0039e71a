#include "client/runtime/lease_common.h"

#include <cstdio>

namespace lgpu {

std::string FullDeviceName(int index) {
  return "/job:localhost/replica:0/task:0/device:GPU:" + std::to_string(index);
}

void LogNote(const ContextOptions& options, std::string_view line) {
  if (options.log_sink) {
    options.log_sink(line);
  } else {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  }
}

}  // namespace lgpu
