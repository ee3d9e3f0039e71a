#ifndef LGPU_BASE_NVIDIA_DRIVER_H_
#define LGPU_BASE_NVIDIA_DRIVER_H_

#include <unistd.h>

namespace lgpu {

/// Whether the kernel has an NVIDIA driver: nvidiactl on Linux, dxg under WSL. Nothing is opened.
inline bool HasNvidiaDriver() {
  return ::access("/dev/nvidiactl", F_OK) == 0 || ::access("/proc/driver/nvidia/version", F_OK) == 0 ||
         ::access("/dev/dxg", F_OK) == 0;
}

}  // namespace lgpu

#endif  // LGPU_BASE_NVIDIA_DRIVER_H_
