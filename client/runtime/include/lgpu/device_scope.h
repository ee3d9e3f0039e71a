#ifndef LGPU_DEVICE_SCOPE_H_
#define LGPU_DEVICE_SCOPE_H_

#include <memory>
#include <optional>
#include <string_view>

#include "lgpu/context.h"
#include "lgpu/export.h"

namespace lgpu {

/// A DeviceScope asks for a device for all ops and constants of one context on this thread, as long as it
/// lives: `DeviceScope cpu(gpu, "/CPU:0");`. Scopes nest, the innermost counts, and they end in
/// reverse order, on the thread that opened them. Names are TensorFlow's ("/device:GPU:1", "/GPU:1",
/// "GPU:1", "gpu:1", or full ones); a name that is wrong makes the next op in the scope fail with that error.
/// The name is resolved once, here. In a Context of a strict Config names are read and merged as tf.device
/// does: over the scope around this one, or over CPU:0.
class LGPU_API DeviceScope {
 public:
  DeviceScope(const Context& context, std::string_view device);
  /// Asks for no device and overrides the scopes around it: tf.device(None).
  DeviceScope(const Context& context, std::nullopt_t);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  struct Entry;  // of the library

 private:
  std::unique_ptr<Entry> entry_;
};

/// A DevicePolicyScope sets the DevicePolicy of the context's ops on this thread as long as it lives. It
/// nests with DeviceScopes, by the same rules.
class LGPU_API DevicePolicyScope {
 public:
  DevicePolicyScope(const Context& context, DevicePolicy policy);
  ~DevicePolicyScope();
  DevicePolicyScope(const DevicePolicyScope&) = delete;
  DevicePolicyScope& operator=(const DevicePolicyScope&) = delete;

 private:
  std::unique_ptr<DeviceScope::Entry> entry_;
};

}  // namespace lgpu

#endif  // LGPU_DEVICE_SCOPE_H_
