// Any sequence of operations on a sub-allocator, against an account of its own.
//
// Input: steps of 5 bytes: what to do, and two numbers of 2 bytes.

#include <cstddef>
#include <cstdint>

#include "tests/support/suballocator_driver.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lgpu::SuballocatorDriver driver;
  driver.Run(data, size);
  return 0;
}
