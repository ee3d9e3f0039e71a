#include "client/hook/refuse.h"

#include <unistd.h>

#include <cstring>

namespace lgpu::hook {

void Refuse(const std::string& sentence) {
  const std::string line = "lgpu-hook: " + sentence + "\n";
  (void)!::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(1);
}

std::string Reason(int cause) { return ::strerrordesc_np(cause); }

}  // namespace lgpu::hook
