#ifndef LGPU_ALLOCATOR_DEVICE_DEVICE_BACKEND_H_
#define LGPU_ALLOCATOR_DEVICE_DEVICE_BACKEND_H_

#include "allocator/device/device_memory.h"
#include "allocator/device/device_work.h"

namespace lgpu {

/// A DeviceBackend gives a program the devices of one kind: their memory and their work. A caller that needs
/// one half takes that half.
class DeviceBackend : public DeviceMemory, public DeviceWork {};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_DEVICE_BACKEND_H_
