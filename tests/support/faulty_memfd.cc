// Replaces allocator/device/simulated/memfd.cc in the tests' own lgpud: the same, but its calls fail now and
// then, when the environment says so. The installed lgpud has none of this.
//
//   LGPU_TEST_BACKEND_FAULTS=N  every N-th chunk cannot be made, and every N-th cannot be emptied at once
//   LGPU_TEST_NO_CHUNKS=FILE    no chunk can be made while the file is there

#define CreateChunkMemfd RealCreateChunkMemfd
#define EmptyChunkMemfd RealEmptyChunkMemfd
#include "allocator/device/simulated/memfd.cc"
#undef CreateChunkMemfd
#undef EmptyChunkMemfd

#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace lgpu {
namespace {

bool FailsNow(std::atomic<int>& calls) {
  static const char* const plan = std::getenv("LGPU_TEST_BACKEND_FAULTS");
  return plan != nullptr && std::atoi(plan) > 0 && ++calls % std::atoi(plan) == 0;
}

bool IsOutOfMemory() {
  static const char* const file = std::getenv("LGPU_TEST_NO_CHUNKS");
  return file != nullptr && ::access(file, F_OK) == 0;
}

}  // namespace

absl::StatusOr<UniqueFd> CreateChunkMemfd(Bytes bytes, bool sparse, const std::string& name);
absl::Status EmptyChunkMemfd(int fd);

absl::StatusOr<UniqueFd> CreateChunkMemfd(Bytes bytes, bool sparse, const std::string& name) {
  static std::atomic<int> calls = 0;
  if (FailsNow(calls) || IsOutOfMemory()) {
    return MachineRefusal(RefusalReason::kBackend, "chunk that a test lets fail", bytes);
  }
  return RealCreateChunkMemfd(bytes, sparse, name);
}

absl::Status EmptyChunkMemfd(int fd) {
  static std::atomic<int> calls = 0;
  if (FailsNow(calls)) return absl::InternalError("a test lets this fail");
  return RealEmptyChunkMemfd(fd);
}

}  // namespace lgpu
