#ifndef LGPU_CLIENT_DISTRIBUTE_SHARED_SUMS_H_
#define LGPU_CLIENT_DISTRIBUTE_SHARED_SUMS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/unique_fd.h"
#include "lgpu/dtype.h"
#include "proto/wire/mapping.h"

namespace lgpu::internal {

/// SharedSums is host memory of several processes: a region for each, in which it leaves its tensors, and
/// where each process adds one slice of all regions into region 0. Not thread-safe; the processes keep each
/// other out of the regions by their rounds.
class SharedSums {
 public:
  SharedSums() = default;
  SharedSums(const SharedSums&) = delete;
  SharedSums& operator=(const SharedSums&) = delete;

  /// Makes memory of `regions` regions of `bytes` each, whose size nobody can change. RESOURCE_EXHAUSTED: the
  /// machine has too little memory.
  absl::Status Make(int regions, std::uint64_t bytes);
  /// Maps the memory that another process made.
  absl::Status Take(UniqueFd fd, int regions, std::uint64_t bytes);
  std::uint64_t region_bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  std::byte* region(int index) const {
    return static_cast<std::byte*>(memory_.start.get()) + static_cast<std::uint64_t>(index) * bytes_;
  }

  /// Adds slice `slice` of `regions` slices of the elements at `offset`, in the order of the regions.
  void AddSlice(DType dtype, std::uint64_t offset, std::int64_t elements, int slice) const;

 private:
  UniqueFd fd_;
  Mapping memory_;
  std::uint64_t bytes_ = 0;
  int regions_ = 0;
};

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_DISTRIBUTE_SHARED_SUMS_H_
