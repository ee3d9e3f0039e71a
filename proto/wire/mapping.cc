#include "proto/wire/mapping.h"

#include <sys/mman.h>

#include <cerrno>

namespace lgpu {

Mapping MapWithLibc(const MapRequest& request) {
  const int protection = request.writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const address =
      ::mmap(nullptr, request.bytes, protection, MAP_SHARED, request.fd, static_cast<off_t>(request.offset));
  if (address == MAP_FAILED) return {.start = nullptr, .error = errno};
  Mapping mapping;
  mapping.start =
      std::shared_ptr<void>(address, [bytes = request.bytes](void* start) { ::munmap(start, bytes); });
  if (::madvise(address, request.bytes, MADV_DONTFORK) != 0) return {.start = nullptr, .error = errno};
  return mapping;
}

}  // namespace lgpu
