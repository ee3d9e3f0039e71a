#include "proto/mapped_region.h"

#include <sys/mman.h>

#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>
#include <memory>
#include <new>
#include <utility>

namespace lgpu {
namespace {

namespace interprocess = boost::interprocess;

// What a mapped_region is made of: a descriptor that stays its owner's.
class BorrowedDescriptor {
 public:
  explicit BorrowedDescriptor(int fd) : fd_(fd) {}
  interprocess::mapping_handle_t get_mapping_handle() const {
    return interprocess::ipcdetail::mapping_handle_from_file_handle(fd_);
  }

 private:
  const int fd_;
};

}  // namespace

Mapping MapWithBoost(const MapRequest& request) {
  try {
    auto region = std::make_shared<interprocess::mapped_region>(
        BorrowedDescriptor(request.fd), request.writable ? interprocess::read_write : interprocess::read_only,
        static_cast<interprocess::offset_t>(request.offset), request.bytes);
    void* const start = region->get_address();
    if (::madvise(start, request.bytes, MADV_DONTFORK) != 0) return {.start = nullptr, .error = errno};
    return {.start = std::shared_ptr<void>(std::move(region), start), .error = 0};
  } catch (const interprocess::interprocess_exception& refused) {
    return {.start = nullptr, .error = refused.get_native_error()};
  } catch (const std::bad_alloc&) {
    return {.start = nullptr, .error = ENOMEM};
  }
}

}  // namespace lgpu
