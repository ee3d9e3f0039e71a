#ifndef LGPU_TESTS_DRIVER_DRIVER_ALLOCATIONS_H_
#define LGPU_TESTS_DRIVER_DRIVER_ALLOCATIONS_H_

#include <cstdint>
#include <string>

#include "client/driver/cuda_abi.h"

namespace lgpu::driver_client {

/// Memory of one kind: "plain", "managed", "array", "pool", "graph", ...
struct Held {
  std::string kind;
  std::uint64_t number = 0, bytes = 0;
  void* graph = nullptr;
  void* executable = nullptr;
};

/// Allocates `made.bytes` bytes of `made.kind`. -1: there is no such kind, or the driver has no such call.
shim::Result Allocate(Held& made);
shim::Result Free(Held old);

/// Makes the pool of the kind "of_made_pool".
shim::Result MakePool();

/// A stream of device 1, made while device 0 is current before and after.
shim::Stream StreamOfDeviceOne();

}  // namespace lgpu::driver_client

#endif  // LGPU_TESTS_DRIVER_DRIVER_ALLOCATIONS_H_
