#ifndef LGPU_ALLOCATOR_DEVICE_ACCESS_WINDOWS_H_
#define LGPU_ALLOCATOR_DEVICE_ACCESS_WINDOWS_H_

#include <cstddef>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// AccessWindows give the host access to the memory of a simulated device only while a kernel or a copy of
/// that device runs. Windows nest and overlap: the first one to open gives access, the last one to close
/// takes it away. Thread-safe.
class AccessWindows {
 public:
  explicit AccessWindows(std::size_t devices) : devices_(devices) {}

  /// The range has its access set: windows cover it from now on.
  absl::Status Add(int device, std::byte* address, Bytes bytes);
  /// No window covers the range from now on. A range that was never added is not an error.
  void Remove(int device, std::byte* address);

  void Open(int device);
  void Close(int device);

 private:
  struct Device {
    std::map<std::byte*, Bytes> ranges;
    int open = 0;
  };
  static absl::Status Protect(const Device& device, int protection);

  // Held over mprotect, against the rule: a kernel must not start before its window is open. This is a
  // test mode.
  Mutex mutex_;
  std::vector<Device> devices_ ABSL_GUARDED_BY(mutex_);
};

/// One window, open for its own lifetime.
class AccessWindow {
 public:
  AccessWindow(AccessWindows& windows, int device) : windows_(windows), device_(device) {
    windows_.Open(device_);
  }
  ~AccessWindow() { windows_.Close(device_); }
  AccessWindow(const AccessWindow&) = delete;
  AccessWindow& operator=(const AccessWindow&) = delete;

 private:
  AccessWindows& windows_;
  int device_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_ACCESS_WINDOWS_H_
