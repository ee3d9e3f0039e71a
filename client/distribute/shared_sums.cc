#include "client/distribute/shared_sums.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/text.h"
#include "lgpu/bytes.h"
#include "proto/mapped_region.h"

namespace lgpu::internal {
namespace {

absl::Status NoMemory(std::uint64_t bytes, int error) {
  return absl::ResourceExhaustedError(
      Cat("the processes of a MirroredStrategy add in shared memory of the host: ", FormatBytes(Bytes(bytes)),
          " cannot be had: ", std::strerror(error)));
}

template <typename T>
struct Plain {
  static T Load(T value) { return value; }
  static T Store(T value) { return value; }
};
struct OfHalf {
  static float Load(Half value) { return HalfToFloat(value); }
  static Half Store(float value) { return FloatToHalf(value); }
};
struct OfBFloat16 {
  static float Load(BFloat16 value) { return BFloat16ToFloat(value); }
  static BFloat16 Store(float value) { return FloatToBFloat16(value); }
};
// Whole numbers wrap around, as those of AddN do.
template <typename Signed, typename Unsigned>
struct Wrapping {
  static Unsigned Load(Signed value) { return static_cast<Unsigned>(value); }
  static Signed Store(Unsigned value) { return static_cast<Signed>(value); }
};

}  // namespace

absl::Status SharedSums::Make(int regions, std::uint64_t bytes) {
  const std::uint64_t all = bytes * static_cast<std::uint64_t>(regions);
  UniqueFd fd(::memfd_create("lgpu-sums", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return NoMemory(all, errno);
  // Really allocated, so that a full machine is an error here and no fault later.
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(all)); error != 0) {
    return NoMemory(all, error);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return NoMemory(all, errno);
  }
  return Take(std::move(fd), regions, bytes);
}

absl::Status SharedSums::Take(UniqueFd fd, int regions, std::uint64_t bytes) {
  fd_.Reset();
  memory_ = {};
  bytes_ = 0;
  if (bytes > ~std::uint64_t{0} / static_cast<std::uint64_t>(regions)) {
    return absl::InternalError("process 0 told of more memory than there are addresses");
  }
  const std::uint64_t all = bytes * static_cast<std::uint64_t>(regions);
  struct stat info = {};
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (::fstat(fd.get(), &info) != 0 || static_cast<std::uint64_t>(info.st_size) != all || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    return absl::InternalError("process 0 sent memory of another size than the one that it told");
  }
  memory_ = MapWithBoost({.fd = fd.get(), .bytes = all, .writable = true});
  if (memory_.start == nullptr) return NoMemory(all, memory_.error);
  // A forked child has the sums too: it unmaps them where it destroys this object.
  if (::madvise(memory_.start.get(), all, MADV_DOFORK) != 0) return NoMemory(all, errno);
  fd_ = std::move(fd);
  bytes_ = bytes;
  regions_ = regions;
  return absl::OkStatus();
}

void SharedSums::AddSlice(DType dtype, std::uint64_t offset, std::int64_t elements, int slice) const {
  const std::int64_t begin = elements * slice / regions_;
  const std::int64_t end = elements * (slice + 1) / regions_;
  const auto add = [&]<typename T, typename As>(T, As) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto at = [&](int index) { return reinterpret_cast<T*>(region(index) + offset) + i; };
      auto sum = As::Load(*at(0));
      for (int other = 1; other < regions_; ++other) {
        sum = static_cast<decltype(sum)>(sum + As::Load(*at(other)));
      }
      *at(0) = As::Store(sum);
    }
  };
  switch (dtype) {
    case DType::kFloat32:
      return add(float(), Plain<float>());
    case DType::kFloat64:
      return add(double(), Plain<double>());
    case DType::kFloat16:
      return add(Half(), OfHalf());
    case DType::kBFloat16:
      return add(BFloat16(), OfBFloat16());
    case DType::kInt32:
      return add(std::int32_t(), Wrapping<std::int32_t, std::uint32_t>());
    case DType::kInt64:
      return add(std::int64_t(), Wrapping<std::int64_t, std::uint64_t>());
    case DType::kInvalid:
      return;
  }
}

}  // namespace lgpu::internal
